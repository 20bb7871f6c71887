"use strict";
// Buttons that stop and resume runs: where the server allows it, and for those who have its token.
(function () {
  const { make } = Page;
  const KEPT = "fedstale token";
  const given = location.hash.match(/^#token=([\w-]+)$/); // of the address that the terminal shows
  if (given) {
    sessionStorage.setItem(KEPT, given[1]);
    history.replaceState(null, "", "#/");
  }

  async function send(action, asked) {
    const answer = await fetch(`/api/control/${action}?${new URLSearchParams(asked)}`, { method: "POST", headers: { "x-fedstale-token": sessionStorage.getItem(KEPT) || "" } });
    const found = await answer.json();
    return found.said || found.error;
  }

  // The buttons for the runs that `asked` names; `update` is told their states.
  Page.controls = function (asked) {
    const said = make("span", { role: "status" });
    const button = (action, title) => make("button", { type: "button", "data-action": action, title: title, onclick: async () => { said.textContent = await send(action, asked); } }, action);
    const stop = button("stop", "Stops the command that computes them, with a checkpoint, as Ctrl-C does");
    const resume = button("resume", "Starts the command again with --resume");
    const element = make("div", { class: "tools" }, stop, resume, said);
    element.hidden = true;
    function update(states) {
      const mine = Page.control && sessionStorage.getItem(KEPT);
      stop.hidden = !states.includes("running");
      resume.hidden = states.includes("running") || !states.includes("interrupted");
      element.hidden = !mine || (stop.hidden && resume.hidden && !said.textContent);
    }
    return { element: element, update: update };
  };
})();
