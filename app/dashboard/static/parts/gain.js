// Held-out success before training and now, as a bar; of several runs the mean, and the range of the gain as a band.

import { percent } from "../format.js";
import { html } from "./html.js";

/**
 * @typedef {{first: number | null, latest: number | null, points: number | null, low?: number | null,
 *   high?: number | null}} Gain
 */

/** @param {{gain: Gain}} props shares from 0 to 1, and percentage points */
export function GainBar({ gain: { first, latest, points, low, high } }) {
  if (first === null || latest === null) return html`<span class="muted">–</span>`;
  const tone = points === null || points === 0 ? "" : points > 0 ? "good" : "bad";
  const band = low != null && high != null && span(first + low / 100, first + high / 100);
  return html`<span class="gain">
    <span class="gain-bar" aria-hidden="true">
      ${band && html`<span class=${`band ${tone}`} style=${band}></span>`}
      <span class=${`rise ${tone}`} style=${span(first, latest)}></span>
      <span class="base" style=${{ left: `${100 * first}%` }}></span>
    </span>
    <span class="gain-text">${percent(first)}${
      points !== null && html` <span aria-label="to">→</span> <strong>${percent(latest)}</strong>`
    }</span>
  </span>`;
}

/** @param {number} one @param {number} other */
function span(one, other) {
  const [low, high] = [Math.min(one, other), Math.max(one, other)].map(
    (share) => 100 * Math.min(1, Math.max(0, share)),
  );
  return { left: `${low}%`, width: `${high - low}%` };
}
