// Rewards and their parts.

import { inWords, number, signed } from "../format.js";
import { html } from "./html.js";
import { label } from "./text.js";

/** A signed number with a bar from the middle. @param {{value: number | null, most?: number, name?: string}} props */
export function Signed({ value, most = 2, name = "" }) {
  if (value === null || value === undefined) return html`<span class="muted">none</span>`;
  const share = Math.min(1, Math.abs(value) / most) * 50;
  const where = value < 0 ? { right: "50%", width: `${share}%` } : { left: "50%", width: `${share}%` };
  return html`<span class="signed"><span class="figure">${name}${signed(value)}</span>
    <span class="bar" aria-hidden="true"><span class=${value < 0 ? "less" : "more"}
        style=${where}></span></span></span>`;
}

/** The named parts of a score or reward. @param {{parts: Record<string, number>, caption: string}} props */
export function Parts({ parts, caption }) {
  const rows = Object.entries(parts);
  if (rows.length === 0) return null;
  const most = Math.max(...rows.map(([, value]) => Math.abs(value)), 0.01);
  return html`<table class="parts"><caption>${caption}</caption>
    <tbody>${rows.map(
      ([name, value]) =>
        html`<tr><th scope="row">${label(inWords(name), 60)}</th>
          <td><${Signed} value=${value} most=${most} /></td></tr>`,
    )}</tbody>
  </table>`;
}

/** The rewards of one group as dots on a line. @param {{values: (number | null)[], low: number, high: number}} props */
export function Spread({ values, low, high }) {
  const known = values.filter((value) => value !== null);
  const at = (/** @type {number} */ value) => 4 + ((value - low) / (high - low || 1)) * 152;
  return html`<svg class="spread" width="160" height="20" role="img"
      aria-label=${
        known.length ? `Rewards from ${number(Math.min(...known))} to ${number(Math.max(...known))}` : "No rewards"
      }>
    <line x1="4" x2="156" y1="10" y2="10" />
    ${known.map((value) => html`<circle cx=${at(value)} cy="10" r="4" />`)}
  </svg>`;
}
