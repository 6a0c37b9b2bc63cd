// A button that opens a menu, closed by Escape and when the focus leaves it.

import { useRef } from "../vendor/hooks.js";
import { html } from "./html.js";

/** @param {{title: string, children?: any}} props */
export function Menu({ title, children }) {
  const menu = useRef(/** @type {HTMLDetailsElement | null} */ (null));
  const close = () => menu.current?.removeAttribute("open");
  /** @param {any} event */
  function pressed(event) {
    if (event.key !== "Escape" || !menu.current?.open) return;
    close();
    menu.current.querySelector("summary")?.focus();
  }
  /** @param {any} event */
  function left(event) {
    if (event.relatedTarget && !menu.current?.contains(event.relatedTarget)) close();
  }
  return html`<details class="menu" ref=${menu} onKeyDown=${pressed} onFocusOut=${left}>
    <summary class="button">${title}</summary>
    <div class="menu-items">${children}</div>
  </details>`;
}
