// A line chart by uPlot in the page's colours, with the same figures as a table for accessibility.

import { useEffect, useRef, useState } from "../vendor/hooks.js";
import uPlot from "../vendor/uplot.js";
import { number } from "../format.js";
import { html } from "./html.js";

/**
 * @typedef {object} Line
 * @property {string} label
 * @property {(number | null)[]} values
 * @property {string} [color] name of a CSS color variable, without `--`
 * @property {boolean} [dashed]
 * @property {boolean} [faint] the edge of a band, not drawn as a line
 * @property {boolean} [dots] only points
 */
/**
 * @typedef {object} ChartProps
 * @property {string} title
 * @property {string} [note] what the chart shows, in one sentence
 * @property {(number | null)[]} x
 * @property {Line[]} lines
 * @property {[number, number][]} [bands] pairs of indices into `lines`: upper edge, lower edge
 * @property {(value: number | null | undefined) => string} [format]
 * @property {[number, number]} [range] range of the y axis
 * @property {boolean} [fromZero] whether the y axis begins at 0, for counts
 * @property {string} [xLabel]
 * @property {number} [height]
 * @property {(x: number) => void} [pick] called when a point is clicked
 * @property {string} [sync] charts with the same name move their cursors together
 */

const _TABLE_ROWS = 500;

/** @param {ChartProps} props */
export function Chart(props) {
  const place = useRef(/** @type {HTMLDivElement | null} */ (null));
  const plot = useRef(/** @type {uPlot | null} */ (null));
  const latest = useRef(props);
  latest.current = props;
  const shape = JSON.stringify([props.lines.map((line) => [line.label, line.color]), props.bands, props.range]);

  useEffect(() => {
    const element = /** @type {HTMLDivElement} */ (place.current);
    const undo = whenSeen(element, () => {
      const made = new uPlot(options(latest, element), dataOf(latest.current), element);
      plot.current = made;
      const end = keptFitting(made, element, heightOf(props));
      return () => {
        plot.current = null;
        end();
        made.destroy();
      };
    });
    return undo;
  }, [shape]);
  useEffect(() => plot.current?.setData(dataOf(props)), [props.x, props.lines]);

  return html`<figure class="chart">
    <figcaption><strong>${props.title}</strong>${props.note && html` <span class="muted">${props.note}</span>`}</figcaption>
    <div ref=${place} class="plot" style=${{ minHeight: `${heightOf(props) + 26}px` }} role="img" aria-label=${summary(props)}></div>
    <${Figures} ...${props} />
  </figure>`;
}

/**
 * Draw a chart when it comes near the viewport, because drawing many of them together would freeze the page.
 * @param {HTMLElement} element
 * @param {() => () => void} draw returns a function that removes the chart
 */
function whenSeen(element, draw) {
  let undo = () => {};
  const observer = new IntersectionObserver(
    ([entry]) => {
      if (!entry.isIntersecting) return;
      observer.disconnect();
      undo = draw();
    },
    { rootMargin: "200px" },
  );
  observer.observe(element);
  return () => {
    observer.disconnect();
    undo();
  };
}

/** Keep a plot as wide as its container and in the page's colours. @param {uPlot} plot @param {HTMLElement} element @param {number} height */
function keptFitting(plot, element, height) {
  const resized = new ResizeObserver(() => element.clientWidth !== plot.width && plot.setSize({ width: element.clientWidth, height }));
  resized.observe(element);
  const repainted = () => plot.redraw(false);
  addEventListener("learnloop.theme", repainted);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  dark.addEventListener("change", repainted);
  return () => {
    removeEventListener("learnloop.theme", repainted);
    dark.removeEventListener("change", repainted);
    resized.disconnect();
  };
}

/** @param {ChartProps} props */
const dataOf = (props) => /** @type {uPlot.AlignedData} */ ([props.x, ...props.lines.map((line) => line.values)]);

/** @param {ChartProps} props */
const heightOf = (props) => props.height ?? 220;

/** The text that screen readers read instead of the chart. @param {ChartProps} props */
function summary({ title, lines, format = number }) {
  const said = lines
    .filter((line) => !line.faint)
    .map((line) => {
      const values = line.values.filter((value) => value !== null);
      if (values.length === 0) return `${line.label}: no figures yet`;
      return `${line.label}: from ${format(values[0])} to ${format(values[values.length - 1])}`;
    });
  return `${title}. ${said.join("; ")}. The table below has all figures.`;
}

/**
 * @param {{current: ChartProps}} latest
 * @param {HTMLElement} element
 * @returns {uPlot.Options}
 */
function options(latest, element) {
  const props = latest.current;
  const format = props.format ?? number;
  const axis = { stroke: () => colour("muted"), grid: { stroke: () => colour("line"), width: 1 }, ticks: { show: false } };
  return {
    width: element.clientWidth,
    height: heightOf(props),
    padding: [8, 12, 0, 0],
    legend: { live: true, markers: { width: 0, fill: (plot, index) => colourOf(latest.current, index) } },
    cursor: {
      drag: { x: true, y: false },
      sync: props.sync ? { key: props.sync, setSeries: false } : undefined,
      bind: { click: (plot, _target, handle) => (event) => (picked(latest.current, plot), handle(event)) },
    },
    scales: { x: { time: false }, y: rangeOf(props) },
    axes: [
      { ...axis, size: 28, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000] },
      { ...axis, size: 56, values: (_plot, values) => values.map((value) => format(value)) },
    ],
    series: [{ label: props.xLabel ?? "Iteration" }, ...props.lines.map((line) => series(line, format))],
    bands: (props.bands ?? []).map(([upper, lower]) => ({
      series: [upper + 1, lower + 1],
      fill: () => colour(`${props.lines[upper].color ?? "accent"}-soft`),
    })),
  };
}

/** @param {ChartProps} props @returns {uPlot.Scale} */
function rangeOf({ range, fromZero }) {
  if (range) return { range };
  return fromZero ? { range: (_plot, _low, high) => [0, Math.max(1, (high ?? 0) * 1.08)] } : {};
}

/** @param {Line} line @param {(value: number | null | undefined) => string} format @returns {uPlot.Series} */
function series(line, format) {
  const stroke = () => colour(line.color ?? "accent");
  return {
    label: line.label,
    stroke: line.faint ? () => "transparent" : stroke,
    width: line.dots ? 0 : 2,
    dash: line.dashed ? [6, 5] : undefined,
    spanGaps: true,
    points: line.faint ? { show: false } : { size: line.dots ? 9 : 6, fill: stroke, show: line.dots ? true : undefined },
    value: (_plot, value) => format(value),
  };
}

/** @param {ChartProps} props @param {uPlot} plot */
function picked(props, plot) {
  const index = plot.cursor.idx;
  const x = index === null || index === undefined ? null : props.x[index];
  if (x !== null) props.pick?.(x);
}

/** A series' mark in the legend. @param {ChartProps} props @param {number} index */
function colourOf(props, index) {
  const line = props.lines[index - 1];
  return colour(line.faint ? `${line.color ?? "accent"}-soft` : (line.color ?? "accent"));
}

/** @type {HTMLElement | undefined} */
let probe;

/** A color of the page in a form that a canvas accepts. @param {string} name */
export function colour(name) {
  if (!probe) {
    probe = document.createElement("i");
    probe.hidden = true;
    document.body.append(probe);
  }
  probe.style.color = `var(--${name})`;
  return getComputedStyle(probe).color;
}

/** The same figures as a table, built when it is opened. @param {ChartProps} props */
function Figures({ title, x, lines, format = number, xLabel = "Iteration" }) {
  const [isOpen, setOpen] = useState(false);
  const from = Math.max(0, x.length - _TABLE_ROWS);
  return html`<details class="figures" onToggle=${(/** @type {any} */ event) => setOpen(event.target.open)}>
    <summary>Table<span class="unseen"> of ${title}</span></summary>
    ${isOpen &&
    html`<div class="scroll" tabindex="0" role="region" aria-label=${`Table of ${title}`}><table>
      <thead><tr><th scope="col">${xLabel}</th>${lines.map((line) => html`<th scope="col">${line.label}</th>`)}</tr></thead>
      <tbody>${x.slice(from).map(
        (value, row) => html`<tr key=${value}>
          <th scope="row">${value}</th>${lines.map((line) => html`<td>${format(line.values[from + row])}</td>`)}
        </tr>`,
      )}</tbody>
    </table></div>`}
  </details>`;
}
