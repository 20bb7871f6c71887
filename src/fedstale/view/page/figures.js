"use strict";
// Draws the plots of a page and answers to the buttons of their legends.
// `theme` maps colours to others, for a dark page.
const Figures = (function () {
  const plots = {}; // name → { data, layout }
  const touch = matchMedia("(pointer: coarse)").matches; // a finger that drags wants to scroll
  const buttons = [["toImage"], ["zoom2d", "pan2d"], ["zoomIn2d", "zoomOut2d", "resetScale2d"]]; // none that uploads
  const options = { responsive: true, displaylogo: false, displayModeBar: touch ? false : "hover", modeBarButtons: buttons, showSendToCloud: false, plotlyServerURL: "" };
  const dark = { "#111": "#eceff2", "#fff": "#14181d", "#ffffff": "#14181d", "#000000": "#f4f4f4", "#3B4A5A": "#b8c9da", "#e5e5e5": "#2c333a", "#444": "#a9b3bd", "#0072B2": "#3fa0e0", "#888": "#999", "rgba(0,0,0,0.14)": "rgba(255,255,255,0.16)" };
  const self = { plots: plots, theme: null, dark: dark };

  function coloured(value) {
    if (!self.theme) return value;
    return JSON.parse(JSON.stringify(value).replace(/"(#[0-9a-fA-F]{3,6}|rgba\(0,0,0,0\.14\))"/g, (all, c) => (self.theme[c] ? `"${self.theme[c]}"` : all)));
  }

  // The page's font size grows with the screen, and the plots' with it.
  function look() {
    const rem = parseFloat(getComputedStyle(document.documentElement).fontSize);
    const size = Math.round(rem * 0.82);
    return coloured({ font: { family: getComputedStyle(document.body).fontFamily, size: size, color: "#111" }, hoverlabel: { font: { size: size }, align: "left" } });
  }

  self.layout = function (name) {
    // Above the plot there is room for plotly's buttons, so that they cover nothing.
    const fixed = { margin: { l: 8, r: 16, t: touch ? 8 : 28, b: 8 }, paper_bgcolor: "#fff", plot_bgcolor: "#fff", dragmode: touch ? false : "zoom", autosize: true };
    return Object.assign(coloured(Object.assign(fixed, plots[name].layout)), look());
  };

  self.draw = function (name) {
    const data = coloured(plots[name].data);
    data.filter((t) => t.texttemplate).forEach((t) => (t.textfont.size = look().font.size * 1.2));
    return Plotly.react(name, data, self.layout(name), options);
  };

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

  // Hours or bytes instead of rounds, and back.
  function over(button) {
    const div = button.closest("figure").querySelector(".plot"), plot = plots[div.id], x = button.dataset.x;
    const on = button.getAttribute("aria-pressed") !== "true";
    button.closest(".legend").querySelectorAll(".zoom").forEach((b) => b.setAttribute("aria-pressed", String(on && b === button)));
    const unit = !on ? "round %{x}" : x === "bytes" ? "%{x:.4s}B" : "%{x:.4g} h";
    const told = plot.data.map((t) => (t.hovertemplate || "").replace("round %{x}", unit));
    Plotly.restyle(div, { x: on ? plot.over[x] : plot.data.map((t) => t.x), hovertemplate: told });
    Plotly.relayout(div, { "xaxis.title.text": on ? x : plot.layout.xaxis.title.text, "xaxis.dtick": null, "xaxis.tickformat": on && x === "bytes" ? ".3s" : null, "xaxis.autorange": true, "yaxis.autorange": true });
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest(".legend button");
    if (button) (button.dataset.x ? over : button.classList.contains("zoom") ? zoom : toggle)(button);
  });
  // Of tables side by side the one that the filters above them choose; the last one says that there is none.
  document.addEventListener("change", (event) => {
    const filters = event.target.closest(".filters");
    if (!filters) return;
    const chosen = [...filters.querySelectorAll("select")].map((box) => box.value).join("|");
    const boards = [...filters.parentElement.querySelectorAll("[data-board]")];
    const found = boards.find((board) => board.dataset.board === chosen) || boards.at(-1);
    boards.forEach((board) => (board.hidden = board !== found));
  });
  const drawn = () => Object.keys(plots).filter((name) => (document.getElementById(name) || {}).data);
  let waiting;
  addEventListener("resize", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => drawn().forEach((name) => Plotly.relayout(name, look())), 200);
  });
  addEventListener("beforeprint", () => drawn().forEach((name) => Plotly.relayout(name, { width: 680, height: 300, "font.size": 12 })));
  addEventListener("afterprint", () => drawn().forEach((name) => Plotly.relayout(name, Object.assign({ width: null, height: null, autosize: true }, look()))));
  return self;
})();
