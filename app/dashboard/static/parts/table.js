// A table of any length that only renders visible rows.

import { useLayoutEffect, useRef, useState } from "../vendor/hooks.js";
import { html } from "./html.js";

const _ROW = 38;
const _WIDTH = 88;
const _MARGIN = 6;

/**
 * @typedef {object} Column
 * @property {string} title
 * @property {(row: any) => any} cell
 * @property {boolean} [isNumber]
 * @property {number} [width] minimum width in a long table, in pixels
 */

/**
 * @param {{caption: string, columns: Column[], rows: any[], keyOf: (row: any) => string | number, height?: number,
 *   toneOf?: (row: any) => string}} props
 */
export function LongTable({ caption, columns, rows, keyOf, height = 420, toneOf }) {
  const [top, setTop] = useState(0);
  const box = useRef(/** @type {HTMLDivElement | null} */ (null));
  const first = Math.max(0, Math.floor(top / _ROW) - _MARGIN);
  const count = Math.ceil(height / _ROW) + 2 * _MARGIN;
  const shown = rows.slice(first, first + count);
  useLayoutEffect(() => {
    if (box.current && box.current.scrollTop > rows.length * _ROW) setTop(0);
  }, [rows.length]);
  const widths = columns.map((column) => column.width ?? _WIDTH);
  const columnWidths = { gridTemplateColumns: widths.map((width) => `minmax(${width}px, ${width}fr)`).join(" ") };
  const whole = { minWidth: `${widths.reduce((sum, width) => sum + width, _ROW)}px` };
  return html`<div
    ref=${box}
    class="long scroll"
    tabindex="0"
    role="table"
    aria-label=${caption}
    aria-rowcount=${rows.length + 1}
    style=${{ maxHeight: `${height}px` }}
    onScroll=${(/** @type {any} */ event) => setTop(event.currentTarget.scrollTop)}
  >
    <div role="rowgroup" class="head" style=${whole}><div role="row" class="row" aria-rowindex="1" style=${columnWidths}>
      ${columns.map((column) => html`<span role="columnheader" class=${column.isNumber ? "num" : ""}>${column.title}</span>`)}
    </div></div>
    <div role="rowgroup" class="body" style=${{ ...whole, height: `${rows.length * _ROW}px` }}>
      ${shown.map(
        (row, index) => html`<div
          role="row"
          class=${`row ${toneOf?.(row) ?? ""}`}
          key=${keyOf(row)}
          aria-rowindex=${first + index + 2}
          style=${{ ...columnWidths, transform: `translateY(${(first + index) * _ROW}px)` }}
        >
          ${columns.map((column) => html`<span role="cell" class=${column.isNumber ? "num" : ""}>${column.cell(row)}</span>`)}
        </div>`,
      )}
    </div>
  </div>`;
}

/** A short table. @param {{caption: string, columns: Column[], rows: any[], keyOf: (row: any) => string | number}} props */
export function Table({ caption, columns, rows, keyOf }) {
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${caption}><table>
    <caption class="unseen">${caption}</caption>
    <thead><tr>${columns.map((column) => html`<th scope="col" class=${column.isNumber ? "num" : ""}>${column.title}</th>`)}</tr></thead>
    <tbody>${rows.map(
      (row) => html`<tr key=${keyOf(row)}>
        ${columns.map((column) => html`<td class=${column.isNumber ? "num" : ""}>${column.cell(row)}</td>`)}
      </tr>`,
    )}</tbody>
  </table></div>`;
}
