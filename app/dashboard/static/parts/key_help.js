// The keys for frequent moves: a button that shows them, and the dialog.

import { isOn, isShown, KEYS, turnKeys } from "../keys.js";
import { Dialog } from "./dialog.js";
import { html } from "./html.js";

export function KeyHelp() {
  const close = () => (isShown.value = false);
  return html`<button class="quiet key-help" onClick=${() => (isShown.value = true)}>Shortcuts <kbd>?</kbd></button>
    ${
      isShown.value &&
      html`<${Dialog} title="Keyboard shortcuts" close=${close}>${(/** @type {() => void} */ leave) => html`
      <dl class="keys">${KEYS.map(
        ([keys, does]) => html`<div><dt>${keys.map((key) => html`<kbd>${key}</kbd> `)}</dt><dd>${does}</dd></div>`,
      )}</dl>
      <label class="check"><input type="checkbox" checked=${isOn.value}
          onChange=${(/** @type {any} */ event) => turnKeys(event.target.checked)} /> Use these shortcuts</label>
      <div class="answers"><button onClick=${leave}>Close</button></div>`}<//>`
    }`;
}
