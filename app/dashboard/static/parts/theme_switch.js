// Switches between the light theme, the dark theme, and the system's.

import { useState } from "../vendor/hooks.js";
import { html } from "./html.js";

const _NEXT = /** @type {Record<string, string>} */ ({ system: "light", light: "dark", dark: "system" });

export function ThemeSwitch() {
  const [theme, setTheme] = useState(document.documentElement.dataset.theme ?? "system");
  function change() {
    const next = _NEXT[theme];
    if (next === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = next;
    try {
      localStorage.setItem("learnloop.theme", next);
    } catch {
      // The choice only lasts for this visit.
    }
    setTheme(next);
    dispatchEvent(new Event("learnloop.theme"));
  }
  return html`<button class="quiet" onClick=${change}>Colours: ${theme}</button>`;
}
