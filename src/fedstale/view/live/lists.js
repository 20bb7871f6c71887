"use strict";
// The tables of experiments and of runs.
(function () {
  const { make, state, progress } = Page;

  function experimentCells(row) {
    const states = make("span", {}, ...Object.entries(row.states).flatMap(([name, count]) => [state(name, count), " "]));
    const share = row.total ? Math.floor((100 * row.done) / row.total) : 0;
    return [
      make("a", { href: "#/experiment/" + row.key }, row.title), states,
      make("span", {}, progress(row.done, row.total, `${share} % of the rounds`), ` ${share}\u00a0%`),
      row.left, row.algorithms, row.best ? `${row.best}, ${row.value.replace(" ", "\u00a0")}` : "–", row.started.slice(0, 16).replace("T", " "),
    ];
  }

  function runCells(row) {
    const address = `#/run?${new URLSearchParams({ store: row.store, name: row.name })}`;
    const label = make("span", {}, make("a", { href: address, title: row.note || null }, row.label), row.origin ? make("small", {}, ` ↳ ${row.origin}`) : "");
    return [
      label, row.seed === null ? "–" : row.seed, state(row.state),
      make("span", {}, progress(row.round, row.rounds, `${row.round} of ${row.rounds} rounds`), ` ${row.round}\u00a0of\u00a0${row.rounds}`),
      row.speed, row.left, row.value, row.started.slice(0, 16).replace("T", " "), row.name,
    ];
  }

  // heading, key that it sorts by, class: wide columns are left out on a phone
  const EXPERIMENTS = [["experiment", "title"], ["state", "state"], ["progress", "progress"], ["time left", "left"], ["algorithms", "algorithms", "wide"], ["best so far", "best"], ["started (UTC)", "started", "wide"]];
  const RUNS = [["algorithm", "label"], ["seed", "seed"], ["state", "state"], ["round", "progress"], ["rounds/s", "speed"], ["time left", "left"], ["last 10 rounds", "value"], ["started (UTC)", "started", "wide"], ["run", "name", "wide"]];

  function list(name, columns, cells, empty) {
    const search = make("input", { type: "search", placeholder: "search", "aria-label": "Search" });
    const chips = make("div", { class: "chips", role: "group", "aria-label": "Show one state only" });
    const count = make("p", { class: "note", role: "status" });
    const head = make("tr", {});
    const body = make("tbody", {});
    const table = make("div", { class: "scroll", role: "region", "aria-label": name, tabindex: "0" }, make("table", {}, make("thead", {}, head), body));
    const before = make("button", { type: "button", onclick: () => turn(-1) }, "◀ before");
    const after = make("button", { type: "button", onclick: () => turn(1) }, "next ▶");
    const where = make("span", {});
    const element = make("section", {}, make("div", { class: "tools" }, search, chips), count, table, make("div", { class: "tools" }, before, where, after));
    let asked = {};
    const ask = (change) => Page.go(name, Object.assign({}, asked, { page: "" }, change), true);
    const turn = (by) => ask({ page: String((shown.page || 1) + by) });
    let shown = {}, waiting;
    search.addEventListener("input", () => {
      clearTimeout(waiting);
      waiting = setTimeout(() => ask({ q: search.value }), 150);
    });

    function heading([text, key, cls]) {
      if (!key) return make("th", { scope: "col", class: cls }, text);
      const sorted = shown.sort === key ? (shown.down ? "descending" : "ascending") : null;
      const click = () => ask({ sort: key, down: sorted === "ascending" ? "1" : "0" });
      return make("th", { scope: "col", class: cls, "aria-sort": sorted }, make("button", { type: "button", onclick: click, "data-sort": key }, text));
    }

    function chip(word, number) {
      const on = (asked.state || "") === word;
      return make("button", { type: "button", "aria-pressed": String(on), "data-state": word, onclick: () => ask({ state: on ? "" : word }) }, word ? state(word, number) : "all");
    }

    async function update(now) {
      asked = now;
      shown = await Page.get("/api/" + name, asked);
      if (document.activeElement !== search) search.value = asked.q || "";
      const focus = document.activeElement && document.activeElement.dataset;
      const sorted = focus && focus.sort, stated = focus && focus.state;
      chips.replaceChildren(...Object.entries(shown.counts).map(([word, number]) => chip(word, number)));
      head.replaceChildren(...columns.map(heading));
      body.replaceChildren(...shown.rows.map((row) => make("tr", {}, ...cells(row).map((cell, k) => make(k ? "td" : "th", k ? { class: columns[k][2] || null } : { scope: "row" }, cell)))));
      if (sorted) head.querySelector(`[data-sort="${sorted}"]`)?.focus(); // the keyboard stays where it was
      if (stated) chips.querySelector(`[data-state="${stated}"]`)?.focus();
      count.textContent = shown.all ? `${shown.found} of ${shown.all} ${name}${shown.whole ? "" : ", still reading"}` : shown.whole ? empty : "reading the store …";
      where.textContent = `page ${shown.page} of ${shown.pages}`;
      before.disabled = shown.page <= 1;
      after.disabled = shown.page >= shown.pages;
    }
    return { element: element, update: update };
  }

  const none = "No runs yet: start `fedstale run EXPERIMENT` in another terminal, and they appear here.";
  Page.views.experiments = () => list("experiments", EXPERIMENTS, experimentCells, none);
  Page.views.runs = () => list("runs", RUNS, runCells, none);
})();
