// One event of a log: what happened in a line, and its data when it is opened.

import { useState } from "../vendor/hooks.js";
import { exactMoment } from "../format.js";
import { html } from "./html.js";
import { JsonText, Text } from "./text.js";

/**
 * @typedef {{seq: number, type: string, iteration?: number | null, actor: string, occurred_at: string,
 *   data: Record<string, any>}} Event
 */

/** @param {{event: Event, gist: string, tone: string}} props `gist`: what happened, as text */
export function EventRow({ event, gist, tone }) {
  const { type, iteration = null, data } = event;
  const [isOpen, setOpen] = useState(false);
  return html`<li class=${tone}>
    <details onToggle=${(/** @type {any} */ toggled) => setOpen(toggled.currentTarget.open)}>
      <summary><span class="num muted">${event.seq}</span> <strong>${type}</strong>
        ${iteration !== null && html` <span class="muted">iteration ${iteration}</span>`}
        ${" "}<span>${gist}</span>
        <time class="muted" datetime=${event.occurred_at}>${exactMoment(event.occurred_at)}</time></summary>
      ${
        isOpen &&
        html`<p class="muted">by <${Text} value=${event.actor} limit=${200} /></p><${JsonText} value=${data} />`
      }
    </details>
  </li>`;
}
