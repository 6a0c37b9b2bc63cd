// Details that are rendered, and thus loaded, once they are opened.

import { useState } from "../vendor/hooks.js";
import { html } from "./html.js";

/** @param {{title: string, children: () => any}} props */
export function Unfold({ title, children }) {
  const [isOpen, setOpen] = useState(false);
  return html`<details onToggle=${(/** @type {any} */ event) => setOpen(event.target.open)}>
    <summary>${title}</summary>${isOpen && children()}</details>`;
}
