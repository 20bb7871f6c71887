"use strict";
// One experiment: its tables and plots, drawn again in place when there is news.
(function () {
  const { make } = Page;
  let library = null; // plotly is large: it is loaded when the first plot is looked at

  function plotly() {
    library = library || new Promise((done, failed) => document.head.append(make("script", { src: "/static/plotly.js", onload: done, onerror: () => { library = null; failed(new TypeError("fetch")); } })));
    return library;
  }
  addEventListener("load", () => setTimeout(() => plotly().catch(() => {}), 200)); // before it is asked for

  // A plot is drawn when it comes near to what is seen; until then its news wait.
  const waiting = new Set();
  const eye = new IntersectionObserver((entries) => entries.forEach((entry) => { if (entry.isIntersecting && waiting.delete(entry.target.id)) Figures.draw(entry.target.id); }), { rootMargin: "300px" });
  function near(plot) {
    const box = plot.getBoundingClientRect();
    return box.top < innerHeight + 300 && box.bottom > -300;
  }
  addEventListener("beforeprint", () => waiting.forEach((name) => waiting.delete(name) && Figures.draw(name)));

  // HTML that the server has escaped; the content policy runs no script in it.
  function html(text) {
    const holder = make("div", {});
    holder.innerHTML = text;
    return holder;
  }

  const select = (label, name, options) => make("label", {}, label, make("select", { name: name }, ...options.map(([value, text]) => make("option", { value: value }, text))));

  function save(name, title, address, view) {
    const picture = (format) => () => Plotly.downloadImage(name, { format: format, filename: title, width: 900, height: 520, scale: format === "png" ? 2 : 1 });
    const csv = address && make("a", { href: `${address}/${name.slice(1)}.csv?${new URLSearchParams(view)}`, download: true }, "CSV");
    return make("div", { class: "save" }, make("button", { type: "button", onclick: picture("svg") }, "SVG"), make("button", { type: "button", onclick: picture("png") }, "PNG"), csv);
  }

  // A setting with all its runs, or one run, which the address names.
  function experiment([key]) {
    const one = key ? null : (({ store, name }) => ({ store, name }))(Page.address().asked);
    const api = one ? "/api/run" : "/api/experiment/" + key, up = make("p", {});
    const title = make("h1", {}, "…"), notes = make("div", {}), seeds = make("div", {}), above = make("div", {}), below = make("div", {});
    const figures = make("div", { class: "plots" }), controls = Page.controls(one || { key: key });
    const tools = make("div", { class: "tools" },
      select("over", "x", [["round", "rounds"], ["hours", "hours of the clock"], ["seconds", "seconds"], ["bytes", "bytes"]]),
      select("scale", "scale", [["", "as it fits"], ["linear", "linear"], ["log", "logarithmic"]]),
      select("smoothing", "smooth", [["0", "none"], ["0.6", "some"], ["0.9", "much"]]));
    const a = make("select", { "aria-label": "algorithm A" }), b = make("select", { "aria-label": "algorithm B" }), verdict = make("div", {});
    const compare = make("details", {}, make("summary", {}, "Compare two algorithms"), make("div", { class: "tools" }, a, " with ", b), verdict);
    const runs = make("details", {}, make("summary", {}, key && key.startsWith("federation-") ? "The clients" : "The runs"), seeds);
    const element = make("section", {}, title, up, notes, controls.element, above, runs, tools, figures, compare, below);
    let busy = Promise.resolve(), first = true;

    const wish = (name) => tools.querySelector(`[name=${name}]`).value;
    const view = () => ({ x: wish("x"), smooth: wish("smooth") });
    tools.addEventListener("change", () => Page.go(one ? "run" : "experiment/" + key, Object.assign({}, one, view(), { scale: wish("scale") }), true));
    [a, b].forEach((box) => box.addEventListener("change", test));
    compare.addEventListener("toggle", test);

    async function test() {
      if (!compare.open || !a.value || !b.value) return;
      try {
        verdict.replaceChildren(...html((await Page.get(`/api/experiment/${key}/compare`, { a: a.value, b: b.value })).html).childNodes);
      } catch (error) {
        verdict.replaceChildren(Page.problem(error.message));
      }
    }

    function fill(box, labels, k) {
      if ([...box.options].map((o) => o.value).join("\n") === labels.join("\n")) return;
      const before = box.value;
      box.replaceChildren(...labels.map((label) => make("option", { value: label }, label)));
      box.value = labels.includes(before) ? before : labels[Math.min(k, labels.length - 1)];
    }

    // The figure keeps its place, its hidden curves and its open table; what it shows is replaced.
    function figure(name, found) {
      const fresh = html(found.html).firstChild, old = document.getElementById("f-" + name);
      const caption = fresh.querySelector("figcaption");
      caption.after(save(name, caption.textContent, one ? null : api, view()));
      if (!old || old.querySelector("figcaption").textContent !== caption.textContent) {
        if (old) old.replaceWith(fresh);
        else figures.append(fresh);
        return;
      }
      const hidden = [...old.querySelectorAll("[data-key][aria-pressed=false]")].map((button) => button.dataset.key);
      found.data.forEach((trace) => { if (hidden.includes(trace.legendgroup)) trace.visible = false; });
      fresh.querySelectorAll("[data-key]").forEach((button) => button.setAttribute("aria-pressed", String(!hidden.includes(button.dataset.key))));
      fresh.querySelector("details").open = old.querySelector("details").open;
      const plot = old.querySelector(".plot");
      plot.setAttribute("aria-label", fresh.querySelector(".plot").getAttribute("aria-label"));
      fresh.querySelector(".plot").replaceWith(plot); // drawn on, not drawn anew
      old.replaceWith(fresh);
    }

    async function draw(found) {
      await plotly();
      for (const name of Object.keys(Figures.plots)) if (!found.figures[name]) { document.getElementById("f-" + name)?.remove(); delete Figures.plots[name]; }
      Object.entries(found.figures).forEach(([name, plot]) => figure(name, plot)); // all have their places, and widths
      for (const [name, plot] of Object.entries(found.figures)) {
        const scale = wish("scale");
        if (scale && plot.curves) plot.layout.yaxis = Object.assign(plot.layout.yaxis, { type: scale }, scale === "linear" ? { tickvals: null } : {});
        plot.layout.uirevision = `${name} ${scale} ${wish("x")}`; // a zoom stays when there is news
        Figures.plots[name] = { data: plot.data, layout: plot.layout };
        const place = document.getElementById(name);
        if (near(place)) {
          waiting.delete(name);
          await Figures.draw(name);
        } else waiting.add(name);
        eye.observe(place);
      }
      document.documentElement.dataset.drawn = String(Page.version);
    }

    async function update(asked) {
      for (const name of ["x", "scale", "smooth"]) if (asked[name] !== undefined) tools.querySelector(`[name=${name}]`).value = asked[name];
      const found = await Page.get(api, Object.assign({}, one, view()));
      title.textContent = found.title;
      document.title = found.title + " – fedstale";
      controls.update(found.states);
      up.replaceChildren(...(found.experiment ? [make("a", { href: "#/experiment/" + found.experiment }, "the experiment of this run")] : []));
      notes.replaceChildren(...found.notes.map(Page.problem));
      seeds.replaceChildren(...html(found.seeds).childNodes);
      above.replaceChildren(...html(found.above).childNodes);
      below.replaceChildren(...html(found.below).childNodes);
      if (first) runs.open = found.running;
      first = false;
      fill(a, found.labels, 0);
      fill(b, found.labels, 1);
      compare.hidden = found.labels.length < 2;
      runs.hidden = !found.seeds;
      tools.hidden = !Object.values(found.figures).some((plot) => plot.curves);
      busy = busy.then(() => draw(found));
      await busy;
    }
    return { element: element, update: update };
  }

  document.addEventListener("theme", (event) => {
    Figures.theme = event.detail === "dark" ? Figures.dark : null;
    Object.keys(Figures.plots).filter((name) => (document.getElementById(name) || {}).data).forEach((name) => Figures.draw(name));
  });
  Page.views.experiment = experiment;
  Page.views.run = () => experiment([null]);
})();
