// Tables that can be sorted by their columns. A long one only renders the visible rows.

import { useLayoutEffect, useMemo, useState } from "../vendor/hooks.js";
import { useFitting } from "./fitting.js";
import { html } from "./html.js";
import { Sideways, useOverflowHint } from "./strip.js";

const _ROW = 38;
const _WIDTH = 88;
const _MARGIN = 6;

/**
 * @template [Row=any]
 * @typedef {object} Column
 * @property {string} title
 * @property {(row: Row) => any} cell
 * @property {boolean} [isNumber]
 * @property {boolean} [isHead] whether its cells say what their rows are about
 * @property {number} [width] minimum width in a long table, in pixels
 * @property {number} [weight] the lowest ones are left out of a short table that is too wide; without it, it stays
 * @property {string | ((row: Row) => any)} [by] what the column is sorted by, or where a row has it, such as
 *   `rewards.mean`; without it the column cannot be sorted
 */
/** @typedef {{title: string, isDown: boolean}} Order */

/**
 * The rows in the order that the reader chose, and what heads a column. The first press sorts numbers from the highest
 * down and texts from A, the second turns that round, and the third gives the original order back.
 * @param {Column[]} columns
 * @param {any[]} rows
 * @param {{order?: Order, sort?: (order: Order | undefined) => void}} [elsewhere] the order and how to change it, if
 *   the rows come in it
 */
function useOrder(columns, rows, elsewhere = {}) {
  const [own, setOwn] = useState(/** @type {Order | undefined} */ (undefined));
  const [order, setOrder] = elsewhere.sort ? [elsewhere.order, elsewhere.sort] : [own, setOwn];
  const sorted = useMemo(() => {
    const by = elsewhere.sort ? undefined : columns.find((column) => column.title === order?.title)?.by;
    return order && by
      ? [...rows].sort((one, other) => compared(valueOf(one, by), valueOf(other, by), order.isDown))
      : rows;
  }, [rows, order]);
  /** @param {Column} column */
  function press({ title, isNumber = false }) {
    if (order?.title !== title) setOrder({ title, isDown: isNumber });
    else setOrder(order.isDown === isNumber ? { title, isDown: !isNumber } : undefined);
  }
  /** @param {Column} column */
  function head(column) {
    if (!column.by) return column.title;
    const mark = order?.title !== column.title ? "↕" : order.isDown ? "↓" : "↑";
    return html`<button class="sort" onClick=${() => press(column)}>
      ${column.title} <span aria-hidden="true">${mark}</span></button>`;
  }
  /** @param {Column} column */
  const state = (column) => (order?.title !== column.title ? undefined : order.isDown ? "descending" : "ascending");
  return { sorted, head, state };
}

/** @param {any} row @param {NonNullable<Column["by"]>} by */
const valueOf = (row, by) =>
  typeof by === "function" ? by(row) : by.split(".").reduce((found, name) => found?.[name], row);

/** Compare two values; missing ones come last. @param {any} one @param {any} other @param {boolean} isDown */
function compared(one, other, isDown) {
  const [isMissing, isOtherMissing] = [one ?? null, other ?? null].map((each) => each === null);
  if (isMissing || isOtherMissing) return Number(isMissing) - Number(isOtherMissing);
  const ascending =
    typeof one === "string" ? one.localeCompare(String(other), "en", { numeric: true }) : Number(one) - Number(other);
  return isDown ? -ascending : ascending;
}

/**
 * @param {{caption: string, columns: Column[], rows: any[], keyOf: NonNullable<Column["by"]>, height?: number,
 *   toneOf?: (row: any) => string}} props
 */
export function LongTable({ caption, columns, rows, keyOf, height = 420, toneOf }) {
  const [top, setTop] = useState(0);
  const box = useOverflowHint();
  const first = Math.max(0, Math.floor(top / _ROW) - _MARGIN);
  const count = Math.ceil(height / _ROW) + 2 * _MARGIN;
  const { sorted, head, state } = useOrder(columns, rows);
  const shown = sorted.slice(first, first + count);
  useLayoutEffect(() => {
    if (box.current && box.current.scrollTop > rows.length * _ROW) setTop(0);
  }, [rows.length]);
  const widths = columns.map((column) => column.width ?? _WIDTH);
  const columnWidths = { gridTemplateColumns: widths.map((width) => `minmax(${width}px, ${width}fr)`).join(" ") };
  const whole = { minWidth: `${widths.reduce((sum, width) => sum + width, _ROW)}px` };
  const numeric = (/** @type {Column} */ column) => (column.isNumber ? "num" : "");
  const heading = (/** @type {Column} */ column) =>
    html`<span role="columnheader" aria-sort=${state(column)} class=${numeric(column)}>${head(column)}</span>`;
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
    <div role="rowgroup" class="head" style=${whole}>
      <div role="row" class="row" aria-rowindex="1" style=${columnWidths}>${columns.map(heading)}</div></div>
    <div role="rowgroup" class="body" style=${{ ...whole, height: `${rows.length * _ROW}px` }}>
      ${shown.map(
        (row, index) => html`<div
          role="row"
          class=${`row ${toneOf?.(row) ?? ""}`}
          key=${valueOf(row, keyOf)}
          aria-rowindex=${first + index + 2}
          style=${{ ...columnWidths, transform: `translateY(${(first + index) * _ROW}px)` }}
        >
          ${columns.map((column) => html`<span role="cell" class=${numeric(column)}>${column.cell(row)}</span>`)}
        </div>`,
      )}
    </div>
  </div>`;
}

/**
 * A short table. With the class `stacked`, a phone shows its rows below each other instead of scrolling sideways.
 * @param {{caption: string, columns: Column[], rows: any[], keyOf: NonNullable<Column["by"]>, class?: string,
 *   toneOf?: (row: any) => string, order?: Order, sort?: (order: Order | undefined) => void}} props `order` and `sort`
 *   if the rows are sorted elsewhere
 */
export function Table({ caption, columns, rows, keyOf, class: name = "", toneOf, order, sort }) {
  const { sorted, head, state } = useOrder(columns, rows, { order, sort });
  const { table, fitting, note } = useFitting(columns);
  /** @param {Column} column @param {any} row */
  const cell = ({ title, isHead, isNumber, cell }, row) =>
    isHead
      ? html`<th scope="row">${cell(row)}</th>`
      : html`<td class=${isNumber ? "num" : ""} data-title=${title}>${cell(row)}</td>`;
  const heading = (/** @type {Column} */ column) =>
    html`<th scope="col" aria-sort=${state(column)} class=${column.isNumber ? "num" : ""}>${head(column)}</th>`;
  return html`<${Sideways} label=${caption} class=${name}><table ref=${table}>
    <caption class="unseen">${caption}</caption>
    <thead><tr>${fitting.map(heading)}</tr></thead>
    <tbody>${sorted.map(
      (row) =>
        html`<tr key=${valueOf(row, keyOf)} class=${toneOf?.(row) ?? ""}>
          ${fitting.map((column) => cell(column, row))}</tr>`,
    )}</tbody>
  </table><//>${note}`;
}
