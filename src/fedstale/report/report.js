"use strict";
(function () {
  const plots = JSON.parse(document.getElementById("plots").textContent);
  const names = Object.keys(plots);
  const touch = matchMedia("(pointer: coarse)").matches; // a finger that drags wants to scroll
  const buttons = [["toImage"], ["zoom2d", "pan2d"], ["zoomIn2d", "zoomOut2d", "resetScale2d"]]; // none that uploads
  const options = { responsive: true, displaylogo: false, displayModeBar: touch ? false : "hover", modeBarButtons: buttons, showSendToCloud: false, plotlyServerURL: "" };

  // The page's font size grows with the screen, and the plots' with it.
  function look() {
    const rem = parseFloat(getComputedStyle(document.documentElement).fontSize);
    const size = Math.round(rem * 0.82);
    return { font: { family: getComputedStyle(document.body).fontFamily, size: size, color: "#111" }, hoverlabel: { font: { size: size }, align: "left" } };
  }

  function draw(name) {
    const plot = plots[name];
    plot.data.filter((t) => t.texttemplate).forEach((t) => (t.textfont.size = look().font.size * 1.2));
    const fixed = { margin: { l: 8, r: 16, t: 8, b: 8 }, paper_bgcolor: "#fff", plot_bgcolor: "#fff", dragmode: touch ? false : "zoom", autosize: true };
    return Plotly.newPlot(name, plot.data, Object.assign({}, fixed, plot.layout, look()), options);
  }

  function toggle(button) {
    const div = button.closest("figure").querySelector(".plot");
    const shown = button.getAttribute("aria-pressed") !== "true";
    const traces = div.data.map((t, k) => (t.legendgroup === button.dataset.key ? k : -1)).filter((k) => k >= 0);
    button.setAttribute("aria-pressed", String(shown));
    Plotly.restyle(div, { visible: shown }, traces);
  }

  // What the second half of the rounds spans, of the curves and bands that are shown.
  function half(div) {
    const shown = div.data.filter((t) => t.visible !== false);
    const end = Math.max(...shown.map((t) => Math.max(...t.x)));
    const y = shown.flatMap((t) => t.y.filter((v, k) => v !== null && t.x[k] >= end / 2));
    const log = div.layout.yaxis.type === "log";
    const ends = [Math.min(...y), Math.max(...y)].map((v) => (log ? Math.log10(Math.max(v, 1e-300)) : v));
    const room = 0.05 * (ends[1] - ends[0]) || 0.01;
    return { "xaxis.range": [end / 2, end * 1.01], "yaxis.range": [ends[0] - room, ends[1] + room] };
  }

  function zoom(button) {
    const div = button.closest("figure").querySelector(".plot");
    const near = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(near));
    Plotly.relayout(div, near ? half(div) : { "xaxis.autorange": true, "yaxis.autorange": true });
  }

  async function all() {
    for (const name of names) {
      await draw(name);
      await new Promise((done) => setTimeout(done)); // the page stays alive meanwhile
    }
    document.documentElement.dataset.drawn = names.length;
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest(".legend button");
    if (button) (button.classList.contains("zoom") ? zoom : toggle)(button);
  });
  let waiting;
  addEventListener("resize", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => names.forEach((name) => document.getElementById(name).data && Plotly.relayout(name, look())), 200);
  });
  addEventListener("beforeprint", () => names.forEach((name) => Plotly.relayout(name, { width: 680, height: 300, "font.size": 12 })));
  addEventListener("afterprint", () => names.forEach((name) => Plotly.relayout(name, Object.assign({ width: null, height: null, autosize: true }, look()))));
  all();
})();
