"use strict";
// What all views share: the address after #, the connection to the server, and small pieces of HTML.
const Page = (function () {
  const self = { views: {}, version: 0, control: false };
  const view = document.getElementById("view");
  const live = document.getElementById("live");
  let current = null; // { update, address }
  let building = false, due = false, notBefore = 0, timer = null;

  // An element with these attributes and children; texts are texts, never HTML.
  self.make = function (tag, attributes, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) {
      if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
    }
    element.append(...children.filter((child) => child !== null && child !== undefined));
    return element;
  };

  self.state = (state, count) => self.make("span", { class: "state " + state }, count === undefined ? state : `${state} ${count}`);

  self.progress = (done, total, label) => self.make("progress", { value: done, max: Math.max(total, 1), "aria-label": label, title: label });

  // The JSON at an address; an answer that is a sentence is thrown as one.
  self.get = async function (path, asked) {
    const query = new URLSearchParams(Object.entries(asked || {}).filter(([, value]) => value !== "" && value !== undefined));
    const answer = await fetch(`${path}?${query}`);
    const found = await answer.json();
    if (found.error) throw new Error(found.error);
    notBefore = performance.now() + 1000 * Math.max(found.pause || 0, 0.3);
    return found;
  };

  // `#/runs?state=running` → { name: "runs", rest: [], asked: { state: "running" } }
  self.address = function () {
    const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
    const [name, ...rest] = path.split("/").map(decodeURIComponent);
    return { name: name || "experiments", rest: rest, asked: Object.fromEntries(new URLSearchParams(query || "")) };
  };

  self.go = function (name, asked, replace) {
    const query = new URLSearchParams(Object.entries(asked).filter(([, value]) => value !== "" && value !== undefined));
    const address = `#/${name}${query.size ? "?" + query : ""}`;
    if (replace) history.replaceState(null, "", address);
    else history.pushState(null, "", address);
    open();
  };

  self.problem = (sentence) => self.make("p", { class: "problem", role: "alert" }, sentence);

  async function open() {
    const { name, rest, asked } = self.address();
    document.querySelectorAll(".bar nav a").forEach((a) => a.toggleAttribute("aria-current", a.hash.replace(/^#\/?/, "") === (name === "experiments" ? "" : [name, ...rest].join("/"))));
    const make = self.views[name];
    if (!make) return view.replaceChildren(self.problem("There is no such page."));
    const kept = current && current.name === name && current.rest === rest.join("/");
    if (!kept) {
      current = { name: name, rest: rest.join("/"), view: make(rest) };
      view.replaceChildren(current.view.element);
    }
    notBefore = 0;
    await update();
  }

  // Builds the view anew: one at a time, and not more often than the server can do at little cost.
  async function update() {
    if (building) return void (due = true);
    const wait = notBefore - performance.now();
    if (wait > 0) {
      clearTimeout(timer);
      timer = setTimeout(update, wait);
      return;
    }
    building = true;
    due = false;
    const shown = current;
    try {
      await shown.view.update(self.address().asked);
      if (shown.problem) shown.problem.remove();
    } catch (error) {
      if (shown.problem) shown.problem.remove();
      const lost = error instanceof TypeError && /fetch/i.test(error.message);
      shown.problem = lost ? null : self.problem(error.message);
      if (shown.problem) shown.view.element.prepend(shown.problem);
    }
    building = false;
    if (due || shown !== current) update();
  }

  function connect() {
    const events = new EventSource("/api/events"); // it connects again by itself when the server is back
    const say = (on, text) => { live.className = on ? "on" : "off"; live.textContent = text; };
    events.onopen = () => say(true, "live");
    events.onerror = () => {
      say(false, "not connected; trying again");
      if (events.readyState === EventSource.CLOSED) setTimeout(connect, 1000);
    };
    events.onmessage = (event) => {
      const found = JSON.parse(event.data);
      document.getElementById("about").textContent = found.about;
      self.version = found.version;
      self.control = found.control;
      document.getElementById("arena").hidden = !found.arena;
      update();
    };
  }

  function theme(name) {
    document.documentElement.dataset.theme = name;
    document.dispatchEvent(new CustomEvent("theme", { detail: name }));
  }

  self.start = function () {
    const wish = matchMedia("(prefers-color-scheme: dark)");
    theme(wish.matches ? "dark" : "light");
    wish.addEventListener("change", () => theme(wish.matches ? "dark" : "light"));
    document.getElementById("theme").addEventListener("click", () => theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
    addEventListener("hashchange", open);
    addEventListener("popstate", open);
    open();
    connect();
  };
  addEventListener("DOMContentLoaded", () => self.start());
  return self;
})();
