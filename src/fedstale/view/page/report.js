"use strict";
(async function () {
  Object.assign(Figures.plots, JSON.parse(document.getElementById("plots").textContent));
  const names = Object.keys(Figures.plots);
  const wish = matchMedia("(prefers-color-scheme: dark)");
  const theme = () => (Figures.theme = wish.matches ? Figures.dark : null);
  wish.addEventListener("change", () => { theme(); names.forEach((name) => Figures.draw(name)); });
  theme();
  for (const name of names) {
    await Figures.draw(name);
    await new Promise((done) => setTimeout(done)); // the page stays alive meanwhile
  }
  document.documentElement.dataset.drawn = names.length;
})();
