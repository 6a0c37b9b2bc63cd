// A word-sized learning curve.

import { number } from "../format.js";
import { html } from "./html.js";

const [_WIDTH, _HEIGHT] = [96, 26];

/** @param {{values: number[], isBare?: boolean}} props `isBare`: without the latest value */
export function Sparkline({ values, isBare = false }) {
  if (values.length === 0) return html`<span class="muted">${isBare ? "–" : "no reward yet"}</span>`;
  const low = Math.min(...values);
  const spread = Math.max(...values) - low || 1;
  const place = (/** @type {number} */ value, /** @type {number} */ index) => [
    2 + (index / Math.max(1, values.length - 1)) * (_WIDTH - 4),
    _HEIGHT - 3 - ((value - low) / spread) * (_HEIGHT - 6),
  ];
  const points = values.map(place);
  const [x, y] = points[points.length - 1];
  const [first, last] = [number(values[0]), number(values[values.length - 1])];
  return html`<span class="spark">
    <svg width=${_WIDTH} height=${_HEIGHT} role="img" aria-label=${`Mean reward from ${first} to ${last}`}>
      <polyline points=${points.map((point) => point.join(",")).join(" ")} />
      <circle cx=${x} cy=${y} r="2.5" />
    </svg>
    ${!isBare && html`<span class="figure">${last}</span>`}
  </span>`;
}
