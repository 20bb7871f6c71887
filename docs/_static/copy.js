// A button that copies a block of code; of a console, its commands without the prompt.
document.addEventListener("DOMContentLoaded", () => {
  for (const block of document.querySelectorAll("div.highlight")) {
    const button = document.createElement("button");
    button.className = "copy";
    button.textContent = "copy";
    button.setAttribute("aria-label", "Copy this code");
    button.onclick = async () => {
      const text = block.querySelector("pre").innerText.trimEnd();
      const commands = text.split("\n").filter((line) => line.startsWith("$ ")).map((line) => line.slice(2));
      await navigator.clipboard.writeText(commands.length ? commands.join("\n") : text);
      button.textContent = "copied";
      setTimeout(() => (button.textContent = "copy"), 1500);
    };
    block.append(button);
  }
});
