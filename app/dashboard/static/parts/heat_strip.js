// All rewards of a run: a column for each iteration, darker where more rollouts have that reward, and their mean as a
// line.

import { counted, number } from "../format.js";
import { Axes, Drawing, nearest } from "./chart.js";
import { html } from "./html.js";
import { scale } from "./scale.js";
import { useState } from "../vendor/hooks.js";

/** @typedef {import("../api_types").RewardHistograms} Rewards */
/** @typedef {{from: number, to: number, counts: number[], mean: number | null}} Column */

/** Columns that a screen has room for; beyond them neighbouring iterations share one. */
const _MOST_COLUMNS = 120;
const _MARGIN = { top: 8, right: 14, bottom: 22, left: 52 };

/**
 * @param {{rewards: Rewards | undefined, means: Map<number, number | null>, total: number, height: number,
 *   isLoading: boolean, empty: string, pick: (iteration: number) => void, thin?: import("./chart.js").Thin}} props
 *   `total` is the number of iterations that the run will have; `thin` the mean of another run
 */
export function HeatStrip({ rewards, means, total, height, isLoading, empty, pick, thin }) {
  const [under, setUnder] = useState(/** @type {Column | null} */ (null));
  const columns = rewards?.low != null ? columnsOf(rewards, means) : [];
  const rollouts = columns.reduce((sum, { counts }) => sum + summed(counts), 0);
  return html`<figure class="chart">
    <figcaption><strong>${rollouts > 0 ? `All ${counted(rollouts, "training reward")}` : "Training rewards"}</strong>
      <span class="muted">darker: more rollouts; line: mean; click to read</span></figcaption>
    <${Drawing} height=${height} label=${summary(columns)} isLoading=${isLoading}
      empty=${columns.length === 0 ? empty : undefined}>
      ${(/** @type {number} */ width) =>
        html`<${Strip} rewards=${rewards} columns=${columns} total=${total} thin=${thin} width=${width}
          height=${height} hover=${setUnder} pick=${pick} />`}
    <//>
    ${
      columns.length > 0 &&
      html`<p class="legend">${described(under ?? columns[columns.length - 1])}
      ${thin && html`<span><i class="thin" style=${{ color: "var(--ink)" }}></i>${thin.label}</span>`}</p>`
    }
  </figure>`;
}

/** @param {number[]} counts */
const summed = (counts) => counts.reduce((sum, count) => sum + count, 0);

/** @param {Column} column */
function described({ from, to, counts, mean }) {
  const name = from === to ? `iteration ${from}` : `iterations ${from} to ${to}`;
  return html`<span>${name}</span><span>${counted(summed(counts), "rollout")}</span>
    <span>mean <b>${number(mean)}</b></span>`;
}

/** @param {Column[]} columns */
function summary(columns) {
  if (columns.length === 0) return "Training rewards. No figures yet.";
  const latest = number(columns[columns.length - 1].mean);
  return `Training rewards. Mean from ${number(columns[0].mean)} to ${latest}. The page Iterations has all figures.`;
}

/**
 * Columns of as many iterations as fit.
 * @param {Rewards} rewards @param {Map<number, number | null>} means @returns {Column[]}
 */
function columnsOf({ iterations }, means) {
  const each = Math.ceil(iterations.length / _MOST_COLUMNS);
  return Array.from({ length: Math.ceil(iterations.length / each) }, (_, index) => {
    const members = iterations.slice(index * each, (index + 1) * each);
    const known = members.map(({ iteration }) => means.get(iteration) ?? null).filter((mean) => mean !== null);
    return {
      from: members[0].iteration,
      to: members[members.length - 1].iteration,
      counts: members[0].counts.map((_, bin) => members.reduce((sum, { counts }) => sum + counts[bin], 0)),
      mean: known.length > 0 ? known.reduce((sum, mean) => sum + mean, 0) / known.length : null,
    };
  });
}

/**
 * @param {{rewards: Rewards, columns: Column[], total: number, thin: import("./chart.js").Thin | undefined,
 *   width: number, height: number, hover: (column: Column | null) => void, pick: (iteration: number) => void}} props
 */
function Strip({ rewards, columns, total, thin, width, height, hover, pick }) {
  const [low, high] = [/** @type {number} */ (rewards.low), /** @type {number} */ (rewards.high)];
  const bins = columns[0].counts.length;
  const margin = (high - low || 1) / bins / 2;
  const across = scale(
    [0.5, Math.max(total, columns[columns.length - 1].to) + 0.5],
    [_MARGIN.left, width - _MARGIN.right],
  );
  const up = scale([low - margin, high + margin], [height - _MARGIN.bottom, _MARGIN.top]);
  const tall = (up.start - up.end) / bins;
  const line = columns
    .filter((column) => column.mean !== null)
    .map((column) => `${across.at((column.from + column.to) / 2)},${up.at(/** @type {number} */ (column.mean))}`);
  const last = Math.max(total, columns[columns.length - 1].to);
  const other = [...(thin?.values ?? [])]
    .filter(([iteration, mean]) => mean !== null && iteration <= last)
    .map(
      ([iteration, mean]) =>
        `${across.at(iteration)},${up.at(Math.min(high, Math.max(low, /** @type {number} */ (mean))))}`,
    );
  const columnAt = (/** @type {any} */ event) => {
    const place = across.back(event.clientX - event.currentTarget.ownerSVGElement.getBoundingClientRect().left);
    const start = nearest(
      columns.map(({ from, to }) => (from + to) / 2),
      place,
    );
    return columns.find(({ from, to }) => (from + to) / 2 === start) ?? null;
  };
  const chosen = (/** @type {any} */ event) => {
    const column = columnAt(event);
    if (column) pick(column.to);
  };
  return html`<${Axes} across=${across} up=${up} format=${number} xLabel="Iteration" />
    ${columns.map(({ from, to, counts }) => {
      const [x, wide] = [across.at(from - 0.5), across.at(to + 0.5) - across.at(from - 0.5)];
      const whole = summed(counts);
      return counts.map(
        (count, bin) =>
          count > 0 &&
          html`<rect key=${`${from}/${bin}`} class="heat" x=${x} width=${Math.max(1, wide - (wide > 6 ? 2 : 0))}
        y=${up.start - (bin + 1) * tall} height=${Math.max(1, tall - 1)}
        style=${{ fillOpacity: 0.15 + 0.85 * Math.sqrt(count / whole) }} />`,
      );
    })}
    ${
      line.length > 1
        ? html`<polyline class="line" points=${line.join(" ")} style=${{ stroke: "var(--series-2)" }} />`
        : line.map(
            (point) =>
              html`<circle cx=${point.split(",")[0]} cy=${point.split(",")[1]} r="3"
                style=${{ fill: "var(--series-2)" }} />`,
          )
    }
    ${
      other.length > 1 &&
      html`<polyline class="line thin" points=${other.join(" ")} style=${{ stroke: "var(--ink)" }} />`
    }
    <rect class="hit pickable" x=${across.start} y=${up.end}
      width=${across.end - across.start} height=${up.start - up.end}
      onPointerMove=${(/** @type {any} */ event) => hover(columnAt(event))}
      onPointerLeave=${() => hover(null)} onClick=${chosen} />`;
}
