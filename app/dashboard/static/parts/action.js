// Buttons that ask the service for something: busy while it works, and what went wrong beside them.

import { useState } from "../vendor/hooks.js";
import { html } from "./html.js";
import { Text } from "./text.js";

/**
 * @param {{label: string, act: () => Promise<unknown>, confirm?: string, kind?: string, disabled?: boolean}} props
 *   `confirm` is asked first
 */
export function Action({ label, act, confirm: question, kind = "", disabled = false }) {
  const [state, setState] = useState(/** @type {{isBusy?: boolean, error?: Error}} */ ({}));
  async function run() {
    if (question && !window.confirm(question)) return;
    setState({ isBusy: true });
    try {
      await act();
      setState({});
    } catch (error) {
      setState({ error: /** @type {Error} */ (error) });
    }
  }
  return html`<span class="action">
    <button class=${kind} disabled=${disabled || state.isBusy} aria-busy=${state.isBusy} onClick=${run}>${label}</button>
    ${state.error && html`<span class="wrong" role="alert"><${Text} value=${state.error.message} limit=${300} /></span>`}
  </span>`;
}

/** A button that copies a text. @param {{text: string, label?: string}} props */
export function Copy({ text, label = "Copy" }) {
  const [isDone, setDone] = useState(false);
  async function copy() {
    await navigator.clipboard?.writeText(text);
    setDone(true);
    setTimeout(() => setDone(false), 1500);
  }
  return html`<button class="quiet" onClick=${copy}>${isDone ? "Copied" : label}</button>`;
}
