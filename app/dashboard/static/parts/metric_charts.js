// Charts of any metrics of one run or of several: chosen, smoothed, with a logarithmic axis, and of some iterations
// only. The address has all of it.

import { useEffect, useRef, useState } from "../vendor/hooks.js";
import { useSignal } from "../vendor/signals.js";
import { get, path } from "../api.js";
import { counted } from "../format.js";
import { refine } from "../router.js";
import { Chart } from "./chart.js";
import { html } from "./html.js";
import { asText, fromText, grouped, metricOf, titleOf } from "./metrics.js";
import { smoothed, spreads, within } from "./series.js";
import { Empty, Loaded, useLoaded } from "./states.js";

/** @typedef {import("../api_types").RunMetrics} Metrics */
/** @typedef {import("./chart.js").Line} Line */
/** @typedef {{title: string, ids: string[], color?: string}} Entry a line: a run, or all runs of the same settings */
/** @typedef {{smoothing: number, isLog: boolean, from: number, to: number}} View `from` and `to`: iterations */

/** Most metrics of one request. */
const _MOST = 24;
const _HEIGHT = 180;

/**
 * @typedef {object} MetricChartsProps
 * @property {Entry[]} entries
 * @property {import("./baseline.js").Baseline | undefined} baseline
 * @property {URLSearchParams} query
 * @property {string[]} usual names that are charted if the address has none
 * @property {number} [version] changes when there are new figures
 */

/** @param {MetricChartsProps} props */
export function MetricCharts({ entries, baseline, query, usual, version = 0 }) {
  const chosen = fromText(query.get("metrics"));
  const names = (chosen ?? usual).slice(0, _MOST);
  const ids = [...entries.flatMap((entry) => entry.ids), ...(baseline ? [baseline.run.run_id] : [])];
  const state = useMetrics(ids, names, version);
  return html`<${Loaded} state=${state} rows=${6}>${(/** @type {Map<string, Metrics>} */ metrics) => {
    const all = [
      ...new Set(entries.flatMap((entry) => entry.ids.flatMap((id) => metrics.get(id)?.names ?? []))),
    ].sort();
    if (all.length === 0) return html`<${Empty} title="No figures yet"><p>The baseline comes first.</p><//>`;
    const drawn = chosen ? names : names.filter((name) => all.includes(name));
    return html`<${Drawn} entries=${entries} baseline=${baseline} query=${query} metrics=${metrics} all=${all}
      names=${drawn} />`;
  }}<//>`;
}

/**
 * The metrics of these names of runs, by run; those before stay while others are loaded.
 * @param {string[]} ids @param {string[]} names @param {number} version
 */
function useMetrics(ids, names, version) {
  const state = useLoaded(
    async (aborted) => {
      const load = (/** @type {string} */ id) => get(path`runs/${id}/metrics`, { name: names }, aborted);
      return new Map(await Promise.all(ids.map(async (id) => /** @type {const} */ ([id, await load(id)]))));
    },
    [JSON.stringify([ids, names])],
  );
  const loaded = useRef(version);
  useEffect(() => {
    if (loaded.current !== version) state.reload();
    loaded.current = version;
  }, [version]);
  const latest = useRef(/** @type {Map<string, Metrics> | undefined} */ (undefined));
  latest.current = state.data ?? latest.current;
  return { ...state, data: latest.current };
}

/**
 * @typedef {object} DrawnProps
 * @property {Entry[]} entries
 * @property {import("./baseline.js").Baseline | undefined} baseline
 * @property {URLSearchParams} query
 * @property {Map<string, Metrics>} metrics by run
 * @property {string[]} all names of all metrics
 * @property {string[]} names those that are charted
 */

/** The controls, and a chart for each of the chosen metrics. @param {DrawnProps} props */
function Drawn({ entries, baseline, query, metrics, all, names }) {
  const cursor = useSignal(/** @type {number | null} */ (null));
  const [smoothing, setSmoothing] = useState(shareOf(query.get("smooth")));
  const iterations = [...metrics.values()].flatMap((each) => each.iterations);
  const [first, last] = [Math.min(...iterations), Math.max(...iterations)];
  const from = iterationOf(query.get("from"), first);
  const to = Math.max(from, iterationOf(query.get("to"), last));
  const view = { smoothing, isLog: query.get("log") === "1", from, to };
  const change = (/** @type {Parameters<typeof refine>[0]} */ more) =>
    refine({ ...Object.fromEntries(query), ...more });
  const every = Math.max(...[...metrics.values()].map((each) => each.every));
  return html`<div class="filters metric-filters" role="group" aria-label="What the charts show">
      <${Picker} all=${all} names=${names}
        choose=${(/** @type {string[]} */ more) => change({ metrics: asText(more) })} />
      <label class="field"><span>Smoothing <b>${smoothing.toFixed(2)}</b></span>
        <input type="range" min="0" max="0.98" step="0.02" value=${smoothing}
          onInput=${(/** @type {any} */ event) => setSmoothing(Number(event.target.value))}
          onChange=${(/** @type {any} */ event) => change({ smooth: Number(event.target.value) || null })} /></label>
      <label class="check"><input type="checkbox" checked=${view.isLog}
        onChange=${() => change({ log: view.isLog ? null : "1" })} /> Logarithmic</label>
      <${Range} first=${first} last=${last} from=${from} to=${to} change=${change} />
    </div>
    <p class="muted small">Drag over a chart to see some iterations only.
      ${smoothing > 0 && " The faint line is what is smoothed."}
      ${every > 1 && ` Each point is the mean of ${counted(every, "iteration")}.`}</p>
    ${names.length === 0 && html`<${Empty} title="No metric is chosen" />`}
    <div class=${names.length > 2 ? "charts three" : "charts two"}>${names.map(
      (name) => html`<${MetricChart} key=${name} name=${name} entries=${entries} baseline=${baseline} metrics=${metrics}
        view=${view} cursor=${cursor} zoom=${(/** @type {[number, number]} */ range) =>
          change({ from: range[0], to: range[1] })} />`,
    )}</div>`;
}

/** A weight of the address. @param {string | null} text */
const shareOf = (text) => Math.min(0.98, Math.max(0, Number(text) || 0));

/** An iteration of the address. @param {string | null} text @param {number} otherwise */
const iterationOf = (text, otherwise) => (text && /^\d{1,9}$/.test(text) ? Number(text) : otherwise);

/**
 * @typedef {object} RangeProps
 * @property {number} first of all iterations
 * @property {number} last
 * @property {number} from of those that are shown
 * @property {number} to
 * @property {(more: {from?: number | null, to?: number | null}) => void} change
 */

/** The iterations that are shown, for the keyboard. @param {RangeProps} props */
function Range({ first, last, from, to, change }) {
  /** @param {"from" | "to"} name @param {string} title @param {number} value */
  const end = (name, title, value) => {
    const changed = (/** @type {any} */ event) =>
      change({ [name]: iterationOf(event.target.value, name === "from" ? first : last) });
    return html`<label class="field short"><span>${title}</span>
      <input type="number" min=${first} max=${last} value=${value} onChange=${changed} /></label>`;
  };
  return html`${end("from", "From iteration", from)}${end("to", "To iteration", to)}
    <button disabled=${from <= first && to >= last} onClick=${() => change({ from: null, to: null })}>
      All iterations</button>`;
}

/** @param {{all: string[], names: string[], choose: (names: string[]) => void}} props */
function Picker({ all, names, choose }) {
  const [isOpen, setOpen] = useState(false);
  const [text, setText] = useState("");
  const isFull = names.length >= _MOST;
  const toggle = (/** @type {string} */ name) =>
    choose(names.includes(name) ? names.filter((other) => other !== name) : [...names, name]);
  return html`<details class="picker" onToggle=${(/** @type {any} */ event) => setOpen(event.currentTarget.open)}>
    <summary class="button">Metrics: ${names.length} of ${all.length}</summary>
    ${
      isOpen &&
      html`<div class="picker-box card">
      <div class="filters"><label class="field"><span>Find a metric</span>
        <input type="search" value=${text}
          onInput=${(/** @type {any} */ event) => setText(event.target.value)} /></label>
        <button disabled=${names.length === 0} onClick=${() => choose([])}>Choose none</button></div>
      ${isFull && html`<p class="muted">At most ${_MOST} can be charted: leave one out first.</p>`}
      ${grouped(all, text).map(
        (group) => html`<fieldset key=${group.title}><legend>${group.title}</legend>
          <div class="picker-names">${group.names.map(
            (name) => html`<label class="check" key=${name} title=${name}><input type="checkbox"
              checked=${names.includes(name)} disabled=${isFull && !names.includes(name)}
              onChange=${() => toggle(name)} />
              ${" "}${titleOf(name)}</label>`,
          )}</div></fieldset>`,
      )}
    </div>`
    }
  </details>`;
}

/**
 * @typedef {object} MetricChartProps
 * @property {string} name
 * @property {Entry[]} entries
 * @property {import("./baseline.js").Baseline | undefined} baseline
 * @property {Map<string, Metrics>} metrics
 * @property {View} view
 * @property {import("./chart.js").Shared} cursor
 * @property {(range: [number, number]) => void} zoom
 */

/** @param {MetricChartProps} props */
function MetricChart({ name, entries, baseline, metrics, view, cursor, zoom }) {
  const { x, lines } = linesOf(name, entries, metrics, view);
  const metric = metricOf(
    name,
    lines.flatMap((line) => line.values),
  );
  const other = baseline && metrics.get(baseline.run.run_id);
  const thin = other && {
    label: baseline.name,
    values: new Map(
      [...figuresOf(other, name)].filter(([iteration]) => iteration >= view.from && iteration <= view.to),
    ),
  };
  const named = lines.map((line) => ({
    ...line,
    label: [line.label || metric.title, line.isFaint === false && "smoothed"].filter(Boolean).join(", "),
    color: line.color ?? metric.color,
  }));
  return html`<${Chart} ...${metric} x=${x} lines=${named} thin=${thin} height=${_HEIGHT} cursor=${cursor}
    isLog=${view.isLog} zoom=${zoom} empty=${isIn(metrics, name) ? undefined : "Loading …"} />`;
}

/** Whether a metric has been loaded. @param {Map<string, Metrics>} metrics @param {string} name */
const isIn = (metrics, name) =>
  [...metrics.values()].some((each) => each.metrics.some((series) => series.name === name));

/** A metric by iteration. @param {Metrics} metrics @param {string} name @returns {Map<number, number | null>} */
function figuresOf({ iterations, metrics }, name) {
  const values = metrics.find((series) => series.name === name)?.values ?? [];
  return new Map(iterations.map((iteration, index) => [iteration, values[index] ?? null]));
}

/**
 * The lines of a metric, one for each entry, or two where it is smoothed: the faint one is what the other is made of.
 * @param {string} name @param {Entry[]} entries @param {Map<string, Metrics>} metrics @param {View} view
 * @returns {{x: number[], lines: Line[]}}
 */
function linesOf(name, entries, metrics, { smoothing, from, to }) {
  const all = entries.map(({ ids }) =>
    spreads(ids.map((id) => metrics.get(id)).flatMap((each) => (each ? [figuresOf(each, name)] : []))),
  );
  const whole = [...new Set(all.flatMap((each) => [...each.keys()]))].sort((one, other) => one - other);
  const lines = entries.flatMap(({ title, color }, index) => {
    const of = (/** @type {"mean" | "low" | "high"} */ part) => whole.map((x) => all[index].get(x)?.[part] ?? null);
    const part = (/** @type {(number | null)[]} */ values) => within(whole, [values], [from, to]).series[0];
    const isWide = [...all[index].values()].some(({ low, high }) => low < high);
    const values = of("mean");
    const band = isWide ? { low: part(of("low")), high: part(of("high")) } : undefined;
    const line = { label: title, color, values: part(values), band };
    if (smoothing === 0) return [line];
    return [
      { ...line, isFaint: true },
      { ...line, band: undefined, values: part(smoothed(values, smoothing)), isFaint: false },
    ];
  });
  return { x: within(whole, [], [from, to]).x, lines };
}
