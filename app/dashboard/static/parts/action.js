// Buttons for requests to the service: disabled while the request runs, with an error next to them if it fails.

import { useEffect, useId, useRef, useState } from "../vendor/hooks.js";
import { html } from "./html.js";
import { Refusal } from "./refusal.js";

/**
 * @param {{label: string, act: (isChosen: boolean) => Promise<unknown>, confirm?: string, option?: string,
 *   kind?: string, disabled?: boolean}} props
 *   `confirm` is a question to ask first; `option` can be chosen with the answer
 */
export function Action({ label, act, confirm: question, option, kind = "", disabled = false }) {
  const [state, setState] = useState(/** @type {{isAsking?: boolean, isBusy?: boolean, error?: Error}} */ ({}));
  async function run(isChosen = false) {
    setState({ isBusy: true });
    try {
      await act(isChosen);
      setState({});
    } catch (error) {
      setState({ error: /** @type {Error} */ (error) });
    }
  }
  return html`<span class="action">
    <button class=${kind} disabled=${disabled || state.isBusy} aria-busy=${state.isBusy}
      onClick=${() => (question ? setState({ isAsking: true }) : run())}>${label}</button>
    ${
      state.isAsking &&
      html`<${Question} text=${question} option=${option} yes=${label} kind=${kind}
      answer=${(/** @type {boolean} */ isYes, /** @type {boolean} */ isChosen) =>
        isYes ? run(isChosen) : setState({})} />`
    }
    ${state.error && html`<${Refusal} error=${state.error} />`}
  </span>`;
}

/**
 * A confirmation dialog. Escape means no; focus then returns to where it was.
 * @param {{text: string, option?: string, yes: string, kind: string,
 *   answer: (isYes: boolean, isChosen: boolean) => void}} props
 */
function Question({ text, option, yes, kind, answer }) {
  const [isChosen, setChosen] = useState(false);
  const dialog = useRef(/** @type {HTMLDialogElement | null} */ (null));
  const id = useId();
  useEffect(() => dialog.current?.showModal(), []);
  const closed = (/** @type {any} */ event) => answer(event.currentTarget.returnValue === "yes", isChosen);
  return html`<dialog ref=${dialog} role="alertdialog" aria-labelledby=${id} onClose=${closed}>
    <p id=${id}>${text}</p>
    ${
      option &&
      html`<label class="check"><input type="checkbox" checked=${isChosen}
          onChange=${(/** @type {any} */ event) => setChosen(event.target.checked)} /> ${option}</label>`
    }
    <div class="answers"><button autofocus onClick=${() => dialog.current?.close("no")}>Go back</button>
      <button class=${kind} onClick=${() => dialog.current?.close("yes")}>${yes}</button></div>
  </dialog>`;
}

/**
 * A button that copies text.
 * @param {{text: string | (() => string), label?: string, kind?: string}} props `text` can be a function, called on the
 *   click
 */
export function Copy({ text, label = "Copy", kind = "quiet" }) {
  const [isDone, setDone] = useState(false);
  async function copy() {
    await navigator.clipboard?.writeText(typeof text === "string" ? text : text());
    setDone(true);
    setTimeout(() => setDone(false), 1500);
  }
  return html`<button class=${kind} onClick=${copy}>${isDone ? "Copied" : label}</button>`;
}
