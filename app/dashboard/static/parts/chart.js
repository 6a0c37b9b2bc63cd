// Line charts as SVG in the page's colours, with the same figures as a table and as CSV.

import { useLayoutEffect, useMemo, useRef, useState } from "../vendor/hooks.js";
import { signal } from "../vendor/signals.js";
import { counted, number, whole } from "../format.js";
import { html } from "./html.js";
import { labelled, logRangeOf, logTicks, rangeOf, scale, thinned, ticks } from "./scale.js";

/**
 * @typedef {object} Line
 * @property {string} label
 * @property {(number | null)[]} values
 * @property {string} [color] name of a CSS color variable, without `--`
 * @property {boolean} [dashed]
 * @property {boolean} [dots] only points
 * @property {{low: (number | null)[], high: (number | null)[]}} [band] an area around the line
 * @property {boolean} [isThin] without points
 * @property {boolean} [isFaint] what a smoothed line is made of, behind it; the legend leaves it out
 */
/** @typedef {{label: string, values: Map<number, number | null>}} Thin a line of another run, by its own x values */
/** @typedef {import("../vendor/signals.js").Signal<number | null>} Shared an x value that charts share */
/**
 * @typedef {object} ChartProps
 * @property {string} title
 * @property {string} [note] what the chart shows, in one sentence
 * @property {number[]} x
 * @property {Line[]} lines
 * @property {Thin} [thin] a thin line behind the others
 * @property {{label: string, value: number, low: number, high: number}} [reference] drawn over the whole width
 * @property {{x: number, label: string}} [mark] a vertical line with a word
 * @property {(value: number | null | undefined) => string} [format]
 * @property {[number, number]} [range] range of the y axis
 * @property {[number, number]} [span] range of the x axis; by default that of `x`
 * @property {boolean} [fromZero] whether the y axis begins at 0, for counts
 * @property {number} [height] in pixels
 * @property {string} [empty] text shown while there is no figure
 * @property {Shared} [cursor] x value under the pointer
 * @property {boolean} [isLog] whether the y axis is logarithmic; figures of 0 or less are left out then
 * @property {(range: [number, number]) => void} [zoom] called with the x values over which the pointer was dragged
 */

const _X = "Iteration";
const _TABLE_ROWS = 500;
/** Most points of a line; more than a screen has columns, and few enough to be drawn without a pause. */
const _MOST_POINTS = 2000;
/** Points are marked while a reader can tell them apart. */
const _MOST_MARKS = 20;
/** While a page is laid out, a chart can be narrower than its margins for a moment. */
const _LEAST_WIDTH = 100;
/** Room for the word of a mark, above the lines. */
const _MARK_HEIGHT = 14;
const _MARGIN = { top: 8, right: 14, bottom: 22, left: 52 };
const _LETTER_WIDTH = 6.3;
const _LABEL_GAP = 10;

/** @param {ChartProps} props */
export function Chart(props) {
  const { title, note, height = 220, format = number, isLog = false } = props;
  const { x, lines } = withThin(props);
  const drawn = isLog ? lines.map(above0) : lines;
  const cursor = useMemo(() => props.cursor ?? signal(/** @type {number | null} */ (null)), [props.cursor]);
  const isEmpty = drawn.every((line) => line.values.every((value) => value === null));
  const empty = props.empty ?? (isEmpty && countOf(lines) > 0 ? "No figure is above 0." : "No figures yet.");
  return html`<figure class="chart">
    <figcaption><strong>${title}</strong>${note && html` <span class="muted">${note}</span>`}</figcaption>
    <${Drawing} height=${height} label=${summary({ ...props, lines })} empty=${isEmpty ? empty : undefined}>
      ${(/** @type {number} */ width) =>
        html`<${Plot} ...${props} x=${x} lines=${drawn} width=${width} height=${height} cursor=${cursor} />`}
    <//>
    ${!isEmpty && html`<${Legend} x=${x} lines=${lines} xLabel=${_X} format=${format} cursor=${cursor} />`}
    ${isLog && html`<${Hidden} count=${countOf(lines) - countOf(drawn)} />`}
    ${countOf(lines) > 0 && html`<${Figures} title=${title} x=${x} lines=${lines} xLabel=${_X} format=${format} />`}
  </figure>`;
}

/** A line without what a logarithmic axis does not have. @param {Line} line @returns {Line} */
function above0(line) {
  const only = (/** @type {(number | null)[]} */ values) =>
    values.map((value) => (value !== null && value > 0 ? value : null));
  const band = line.band && { low: only(line.band.low), high: only(line.band.high) };
  return { ...line, values: only(line.values), band };
}

/** Number of figures of lines, without those that are made of others. @param {Line[]} lines */
const countOf = (lines) => {
  const faint = lines.filter((line) => line.isFaint);
  return (faint.length > 0 ? faint : lines).reduce(
    (sum, { values }) => sum + values.filter((value) => value !== null).length,
    0,
  );
};

/** @param {{count: number}} props */
const Hidden = ({ count }) =>
  count > 0 &&
  html`<p class="muted small">${counted(count, "figure")} of 0 or less ${count === 1 ? "is" : "are"} not drawn:
    a logarithmic axis has none.</p>`;

/**
 * The lines with the thin one, over the x values of both.
 * @param {ChartProps} props @returns {{x: number[], lines: Line[]}}
 */
function withThin({ x, lines, thin }) {
  if (!thin || thin.values.size === 0) return { x, lines };
  const both = [...new Set([...x, ...thin.values.keys()])].sort((one, other) => one - other);
  const at = new Map(x.map((value, index) => [value, index]));
  const spread = (/** @type {(number | null)[]} */ values) => both.map((value) => values[at.get(value) ?? -1] ?? null);
  const wider = lines.map((line) => ({
    ...line,
    values: spread(line.values),
    band: line.band && { low: spread(line.band.low), high: spread(line.band.high) },
  }));
  return {
    x: both,
    lines: [
      ...wider,
      { label: thin.label, values: both.map((value) => thin.values.get(value) ?? null), color: "ink", isThin: true },
    ],
  };
}

/**
 * An SVG as wide as its container; `children` draws it for a width in pixels.
 * @param {{height: number, label: string, isLoading?: boolean, empty?: string, children: (width: number) => any}} props
 */
export function Drawing({ height, label, isLoading, empty, children }) {
  const place = useRef(/** @type {HTMLDivElement | null} */ (null));
  const [width, setWidth] = useState(0);
  useLayoutEffect(() => {
    const element = /** @type {HTMLDivElement} */ (place.current);
    const fit = () => setWidth(element.clientWidth);
    fit();
    const observer = new ResizeObserver(fit);
    observer.observe(element);
    return () => observer.disconnect();
  }, []);
  return html`<div ref=${place} class="plot" style=${{ minHeight: `${height}px` }}>
    ${
      isLoading
        ? html`<p class="muted plot-empty loading" role="status">Loading …</p>`
        : empty
          ? html`<p class="muted plot-empty">${empty}</p>`
          : width > _LEAST_WIDTH &&
            html`<svg width=${width} height=${height} role="img" aria-label=${label}>${children(width)}</svg>`
    }
  </div>`;
}

/** The text that screen readers read instead of the chart. @param {ChartProps} props */
function summary({ title, lines, mark, format = number }) {
  const said = lines.map((line) => {
    const values = line.values.filter((value) => value !== null);
    if (values.length === 0) return `${line.label}: no figures yet`;
    return `${line.label}: from ${format(values[0])} to ${format(values[values.length - 1])}`;
  });
  const marked = mark ? ` Marked at ${mark.x}: ${mark.label}.` : "";
  return `${title}. ${said.join("; ")}.${marked} The table below has all figures.`;
}

/** @param {ChartProps & {width: number, height: number, cursor: Shared}} props */
function Plot(props) {
  const { x, lines, reference, mark, width, height, range, fromZero = false, format = number, isLog = false } = props;
  const figures = lines.flatMap((line) => [...line.values, ...(line.band?.low ?? []), ...(line.band?.high ?? [])]);
  const up = scale(
    isLog ? logRangeOf(figures) : (range ?? rangeOf([...figures, reference?.value], fromZero)),
    [height - _MARGIN.bottom, _MARGIN.top + (mark ? _MARK_HEIGHT : 0)],
    isLog,
  );
  const named = (isLog ? logTicks : labelled)(up.from, up.to, 4, format);
  const left = leftOf(named.map(format));
  const across = scale(props.span ?? [x[0], x[x.length - 1]], [left, width - _MARGIN.right]);
  return html`
    <${Axes} across=${across} up=${up} named=${named} format=${format} xLabel=${_X} />
    ${reference && html`<${Reference} ...${reference} across=${across} up=${up} />`}
    ${lines.map(
      (line) =>
        line.band &&
        html`<path class="area" d=${area(x, line.band, across, up)}
          style=${{ fill: `var(--${line.color ?? "accent"})` }} />`,
    )}
    ${lines.map((line) => html`<${Drawn} line=${line} x=${x} across=${across} up=${up} />`)}
    ${mark && html`<${Mark} ...${mark} across=${across} up=${up} />`}
    <${Cursor} x=${x} lines=${lines} across=${across} up=${up} cursor=${props.cursor} zoom=${props.zoom} />`;
}

/** Where the plot begins, so that the labels of its y axis have room. @param {string[]} labels */
const leftOf = (labels) =>
  Math.max(_MARGIN.left, Math.max(...labels.map((label) => label.length)) * _LETTER_WIDTH + _LABEL_GAP);

/** @typedef {import("./scale.js").Scale} Scale */

/**
 * @param {{across: Scale, up: Scale, named?: number[], format: (value: number) => string, xLabel: string}} props
 *   `named`: the values that the y axis names
 */
export function Axes({ across, up, format, xLabel, named = labelled(up.from, up.to, 4, format) }) {
  return html`<g class="axes" aria-hidden="true">
    ${named.map(
      (value) => html`<g key=${value}>
        <line x1=${across.start} x2=${across.end} y1=${up.at(value)} y2=${up.at(value)} />
        <text x=${across.start - 7} y=${up.at(value) + 4} text-anchor="end">${format(value)}</text></g>`,
    )}
    <${XAxis} across=${across} y=${up.start} xLabel=${xLabel} />
  </g>`;
}

/** The whole numbers below a chart. @param {{across: Scale, y: number, xLabel: string}} props */
export function XAxis({ across, y, xLabel }) {
  const named = ticks(across.from, across.to, Math.max(2, Math.round((across.end - across.start) / 70)), 1);
  return html`${named.map(
    (value) => html`<text key=${value} x=${across.at(value)} y=${y + 16} text-anchor="middle">${whole(value)}</text>`,
  )}
    <text class="axis-title" x=${across.start - 7} y=${y + 16} text-anchor="end">${xLabel.toLowerCase()}</text>`;
}

/** @param {{label: string, value: number, low: number, high: number, across: Scale, up: Scale}} props */
function Reference({ label, value, low, high, across, up }) {
  return html`<g class="reference">
    <rect x=${across.start} width=${across.end - across.start} y=${up.at(high)} height=${up.at(low) - up.at(high)} />
    <line x1=${across.start} x2=${across.end} y1=${up.at(value)} y2=${up.at(value)} />
    <text x=${across.end - 4} y=${up.at(value) - 5} text-anchor="end">${label}</text>
  </g>`;
}

/** @param {{x: number, label: string, across: Scale, up: Scale}} props */
function Mark({ x, label, across, up }) {
  const isRight = across.at(x) > (across.start + across.end) / 2;
  return html`<g class="reference mark-x">
    <line x1=${across.at(x)} x2=${across.at(x)} y1=${up.end - _MARK_HEIGHT} y2=${up.start} />
    <text x=${across.at(x) + (isRight ? -5 : 5)} y=${up.end - 6}
      text-anchor=${isRight ? "end" : "start"}>${label}</text>
  </g>`;
}

/**
 * One line, interrupted nowhere, and its points if there are few.
 * @param {{line: Line, x: number[], across: Scale, up: Scale}} props
 */
function Drawn({ line, x, across, up }) {
  const points = thinned(line.values, _MOST_POINTS).filter((index) => line.values[index] !== null);
  const at = (/** @type {number} */ index) => [across.at(x[index]), up.at(/** @type {number} */ (line.values[index]))];
  const color = `var(--${line.color ?? "accent"})`;
  const isBare = line.isThin || line.isFaint;
  const isMarked = line.dots || (!isBare && points.length < _MOST_MARKS) || points.length === 1;
  const kind = ["line", line.dashed && "dashed", line.isThin && "thin", line.isFaint && "faint"];
  return html`<g>
    ${
      !line.dots &&
      points.length > 1 &&
      html`<polyline class=${kind.filter(Boolean).join(" ")} style=${{ stroke: color }}
        points=${points.map((index) => at(index).map(short).join(",")).join(" ")} />`
    }
    ${
      isMarked &&
      points.map(
        (index) => html`<circle key=${index} cx=${at(index)[0]} cy=${at(index)[1]} r=${line.dots ? 4.5 : 3}
          style=${{ fill: color }} />`,
      )
    }
  </g>`;
}

/** @param {number} pixels */
const short = (pixels) => Math.round(pixels * 10) / 10;

/**
 * @param {number[]} x
 * @param {{low: (number | null)[], high: (number | null)[]}} band
 * @param {Scale} across
 * @param {Scale} up
 */
function area(x, { low, high }, across, up) {
  const known = thinned(high, _MOST_POINTS).filter((index) => low[index] !== null && high[index] !== null);
  const edge = (/** @type {(number | null)[]} */ values) =>
    known.map((index) => `${short(across.at(x[index]))},${short(up.at(/** @type {number} */ (values[index])))}`);
  return known.length > 1 ? `M${edge(high).join("L")}L${edge(low).reverse().join("L")}Z` : "";
}

/**
 * What is under the pointer, and the x values over which it is dragged.
 * @param {{x: number[], lines: Line[], across: Scale, up: Scale, cursor: Shared, zoom: ChartProps["zoom"]}} props
 */
function Cursor({ x, lines, across, up, cursor, zoom }) {
  const [from, setFrom] = useState(/** @type {number | null} */ (null));
  const value = cursor.value;
  const index = value === null ? -1 : x.indexOf(value);
  const under = (/** @type {any} */ event) =>
    nearest(x, across.back(event.clientX - event.currentTarget.ownerSVGElement.getBoundingClientRect().left));
  function pressed(/** @type {any} */ event) {
    if (!zoom || event.button !== 0) return;
    event.currentTarget.setPointerCapture(event.pointerId); // the drag can end outside of the chart
    setFrom(under(event));
  }
  function released() {
    if (from !== null && value !== null && from !== value) zoom?.([Math.min(from, value), Math.max(from, value)]);
    setFrom(null);
  }
  const ends = from === null || value === null ? null : [across.at(from), across.at(value)].sort((a, b) => a - b);
  return html`<g>
    ${
      ends &&
      html`<rect class="dragged" x=${ends[0]} width=${ends[1] - ends[0]} y=${up.end} height=${up.start - up.end} />`
    }
    ${
      index >= 0 &&
      html`<line class="cursor" x1=${across.at(x[index])} x2=${across.at(x[index])} y1=${up.end} y2=${up.start} />
      ${lines.map(
        (line) =>
          line.values[index] !== null &&
          !line.isFaint &&
          html`<circle cx=${across.at(x[index])} cy=${up.at(/** @type {number} */ (line.values[index]))} r="4"
            style=${{ fill: `var(--${line.color ?? "accent"})` }} />`,
      )}`
    }
    <rect class=${`hit ${zoom ? "zoomable" : ""}`} x=${across.start - 6} y=${up.end}
      width=${across.end - across.start + 12} height=${up.start - up.end}
      onPointerMove=${(/** @type {any} */ event) => (cursor.value = under(event))}
      onPointerLeave=${() => (cursor.value = null)}
      onPointerDown=${pressed} onPointerUp=${released} onPointerCancel=${() => setFrom(null)} />
  </g>`;
}

/** The value of `x` closest to `place`. @param {number[]} x ascending @param {number} place */
export function nearest(x, place) {
  let [low, high] = [0, x.length - 1];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (x[middle] <= place) low = middle;
    else high = middle;
  }
  return high < 0 ? null : place - x[low] <= x[high] - place ? x[low] : x[high];
}

/**
 * @typedef {object} FiguresProps
 * @property {number[]} x
 * @property {Line[]} lines
 * @property {string} xLabel
 * @property {(value: number | null) => string} format
 */

/** The figures under the pointer, or else the latest ones. @param {FiguresProps & {cursor: Shared}} props */
function Legend({ x, lines, xLabel, format, cursor }) {
  const value = cursor.value;
  const at = value === null ? x.length - 1 : x.indexOf(value);
  const figure = (/** @type {Line} */ line) =>
    (value === null ? line.values.findLast((latest) => latest !== null) : line.values[at]) ?? null;
  const listed = lines.filter((line) => !line.isFaint);
  return html`<p class="legend">
    <span>${value === null ? "latest" : `${xLabel.toLowerCase()} ${value}`}</span>
    ${listed.map((line) => {
      const kind = line.dots ? "dot" : line.dashed ? "dashed" : line.isThin ? "thin" : "";
      return html`<span><i class=${kind} style=${{ color: `var(--${line.color ?? "accent"})` }}></i>
      ${lines.length > 1 && `${line.label} `}<b>${format(figure(line))}</b></span>`;
    })}
  </p>`;
}

/** The same figures as a table, built when it is opened. @param {FiguresProps & {title: string}} props */
function Figures({ title, x, lines, xLabel, format }) {
  const [isOpen, setOpen] = useState(false);
  const from = Math.max(0, x.length - _TABLE_ROWS);
  return html`<details class="figures" onToggle=${(/** @type {any} */ event) => setOpen(event.target.open)}>
    <summary>Table<span class="unseen"> of ${title}</span></summary>
    ${
      isOpen &&
      html`<div class="scroll" tabindex="0" role="region" aria-label=${`Table of ${title}`}><table>
      <thead><tr>
        <th scope="col">${xLabel}</th>${lines.map((line) => html`<th scope="col">${line.label}</th>`)}
      </tr></thead>
      <tbody>${x.slice(from).map(
        (value, row) => html`<tr key=${value}>
          <th scope="row">${value}</th>${lines.map((line) => html`<td>${format(line.values[from + row])}</td>`)}
        </tr>`,
      )}</tbody>
    </table></div>
    <a download=${`${title.toLowerCase().replaceAll(/[^a-z0-9]+/g, "-")}.csv`} href=${asCsv(xLabel, x, lines)}>
      ${x.length === 1 ? "The row" : `All ${whole(x.length)} rows`} as CSV</a>`
    }
  </details>`;
}

/**
 * The figures, unrounded, as the address of a CSV file.
 * @param {string} xLabel @param {number[]} x @param {Line[]} lines
 */
function asCsv(xLabel, x, lines) {
  const header = [xLabel, ...lines.map((line) => line.label)].map((label) =>
    /^[=+@\t\r\n\uff1d\uff0b\uff0d\uff20-]/.test(label) ? `'${label}` : label,
  );
  const rows = [header, ...x.map((value, row) => [value, ...lines.map((line) => line.values[row] ?? "")])];
  const text = rows
    .map((row) =>
      row.map((cell) => (/[",\n]/.test(String(cell)) ? `"${String(cell).replaceAll('"', '""')}"` : cell)).join(","),
    )
    .join("\r\n");
  return `data:text/csv;charset=utf-8,${encodeURIComponent(text)}`;
}
