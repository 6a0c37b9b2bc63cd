// The status of a run or evaluation as a word with a mark, and its progress.

import { percent } from "../format.js";
import { html } from "./html.js";

const _TONES = /** @type {Record<string, string>} */ ({
  queued: "idle",
  running: "live",
  paused: "warn",
  completed: "idle",
  failed: "bad",
  cancelled: "idle",
  delivered: "good",
  pending: "idle",
  open: "live",
  ended: "good",
  expired: "warn",
  trial: "live",
  held: "warn",
  promoted: "good",
  confirmed: "good",
  "rolled back": "bad",
  overtaken: "idle",
  reached: "good",
  "best so far": "good",
  budget: "warn",
  accepted: "good",
  screening: "live",
  measuring: "live",
  training: "live",
  unreachable: "bad",
});

/** @param {{status: string}} props */
export const Status = ({ status }) => html`<span class=${`status ${_TONES[status] ?? "idle"}`}>${status}</span>`;

/** @param {{done: number | null, total: number | null, label: string}} props */
export function Progress({ done, total, label }) {
  const share = total ? Math.min(1, (done ?? 0) / total) : 0;
  return html`<span
    class="progress"
    role="progressbar"
    aria-label=${label}
    aria-valuenow=${done ?? 0}
    aria-valuemin="0"
    aria-valuemax=${total ?? 0}
    title=${`${label}: ${percent(share)}`}
  ><span style=${{ width: `${share * 100}%` }}></span></span>`;
}
