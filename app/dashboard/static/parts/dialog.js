// A dialog over the page. Escape closes it; focus then returns to where it was.

import { useEffect, useId, useRef } from "../vendor/hooks.js";
import { html } from "./html.js";

/**
 * @param {{title: string, close: () => void, children: (close: () => void) => any}} props `children` is given what
 *   closes it
 */
export function Dialog({ title, close, children }) {
  const dialog = useRef(/** @type {HTMLDialogElement | null} */ (null));
  const id = useId();
  useEffect(() => dialog.current?.showModal(), []);
  return html`<dialog ref=${dialog} class="sheet" aria-labelledby=${id} onClose=${close}>
    <h2 id=${id}>${title}</h2>
    ${children(() => dialog.current?.close())}
  </dialog>`;
}
