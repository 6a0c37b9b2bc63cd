// Leaves out the columns of a table that matter least where it is wider than the page, and says which.

import { useEffect, useLayoutEffect, useRef, useState } from "../vendor/hooks.js";
import { html } from "./html.js";

/** @typedef {import("./table.js").Column} Column */

const _PIXEL = 1; // widths are rounded

/**
 * The columns that fit: those without a weight, and the heaviest ones for which there is room.
 * @param {Column[]} columns
 * @returns {{table: {current: HTMLTableElement | null}, fitting: Column[], note: unknown}}
 */
export function useFitting(columns) {
  const table = useRef(/** @type {HTMLTableElement | null} */ (null));
  const [isWhole, setWhole] = useState(false);
  const [width, setWidth] = useState(0);
  const [state, setState] = useState({ key: "", omitted: /** @type {string[]} */ ([]) });
  const key = `${width} ${columns.map(({ title }) => title).join()}`;
  const omitted = isWhole || state.key !== key ? [] : state.omitted;
  const fitting = omitted.length === 0 ? columns : columns.filter(({ title }) => !omitted.includes(title));
  useEffect(() => {
    const box = table.current?.parentElement;
    if (!box) return undefined;
    const resized = new ResizeObserver(() => setWidth(box.clientWidth));
    resized.observe(box);
    return () => resized.disconnect();
  }, []);
  useLayoutEffect(() => {
    const more = isWhole || !table.current ? [] : superfluous(table.current, fitting);
    if (more.length > 0) setState({ key, omitted: [...omitted, ...more] });
  });
  const news = isWhole ? "All columns are shown." : `Left out for want of room: ${omitted.join(", ")}.`;
  const change = isWhole ? "Fit the page" : "Show them";
  const note = html`${
    (omitted.length > 0 || isWhole) &&
    html`<p class="muted small">${news}
      ${" "}<button class="quiet" onClick=${() => setWhole(!isWhole)}>${change}</button></p>`
  }`;
  return { table, fitting, note };
}

/**
 * The titles of the lightest columns without which a table fits its box.
 * @param {HTMLTableElement} table @param {Column[]} columns
 */
function superfluous(table, columns) {
  const box = /** @type {HTMLElement} */ (table.parentElement);
  const heads = table.tHead?.rows[0].cells ?? [];
  const light = columns
    .map(({ title, weight }, index) => ({ title, weight: weight ?? Infinity, width: heads[index]?.offsetWidth ?? 0 }))
    .filter(({ weight }) => weight < Infinity)
    .sort((one, other) => one.weight - other.weight);
  let excess = box.scrollWidth - box.clientWidth;
  const titles = [];
  for (const { title, width } of light) {
    if (excess <= _PIXEL) break;
    titles.push(title);
    excess -= width;
  }
  return titles;
}
