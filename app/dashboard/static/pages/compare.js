// Compares runs, and all runs of the same settings as one: their metrics in charts, held-out questions won and lost,
// and the settings that differ.

import { get, path } from "../api.js";
import { counted, number, percent, signed } from "../format.js";
import { useBaseline } from "../parts/baseline.js";
import { html } from "../parts/html.js";
import { MetricCharts } from "../parts/metric_charts.js";
import { namesOf } from "../parts/run_name.js";
import { Empty, Loaded, useLoaded } from "../parts/states.js";
import { Status } from "../parts/status.js";
import { Sideways } from "../parts/strip.js";
import { label, visible } from "../parts/text.js";
import { Headline } from "../parts/verdict.js";
import { href } from "../router.js";
import { WonLost } from "./won_lost.js";

/** @typedef {import("../api_types").RunOut} Run */
/** @typedef {import("../api_types").SameSettingsOut} Same */
/**
 * @typedef {object} Compared a run, or all of the same settings
 * @property {Run} run the newest of them
 * @property {Same | null} same
 * @property {string[]} ids of them all
 */

const _COLOURS = ["series-1", "series-2", "series-3", "series-4", "series-5", "series-6"];
/** Most runs of the same settings that are drawn: the newest. */
const _MOST_SEEDS = 12;
const _SAME = "same:";
const _USUAL = ["rewards.mean", "held_out.validation.sampled.success"];

/** @param {{query: URLSearchParams}} props */
export function Compare({ query }) {
  const keys = (query.get("runs") ?? "").split(",").filter(Boolean).slice(0, _COLOURS.length);
  const state = useLoaded((aborted) => Promise.all(keys.map((key) => load(key, aborted))), [keys.join()]);
  if (keys.length === 0)
    return html`<${Empty} title="Nothing to compare"><p>Mark some runs in <a href=${href([])}>the list</a>.</p><//>`;
  return html`<p class="crumbs"><a href=${href([])}>Runs</a></p><h1>Compare runs</h1>
    <${Loaded} state=${state} rows=${8}>${(/** @type {Compared[]} */ found) =>
      html`<${Whole} found=${found} query=${query} />`}<//>`;
}

/**
 * @param {string} key a run's id, or the hash of the settings of several
 * @param {AbortSignal} aborted
 * @returns {Promise<Compared>}
 */
async function load(key, aborted) {
  const settings_hash = key.startsWith(_SAME) ? key.slice(_SAME.length) : undefined;
  const [[entry], listed] =
    settings_hash === undefined
      ? [[], [{ run_id: key }]]
      : await Promise.all(
          [{ fold: "true" }, { limit: _MOST_SEEDS }].map(
            async (how) => (await get("runs", { settings_hash, ...how }, aborted)).items,
          ),
        );
  const ids = listed.map((/** @type {{run_id: string}} */ each) => each.run_id);
  return { run: await get(path`runs/${ids[0]}`, {}, aborted), same: entry?.same_settings ?? null, ids };
}

/** @param {{found: Compared[], query: URLSearchParams}} props */
function Whole({ found, query }) {
  const runs = found.map(({ run }) => run);
  const baseline = useBaseline(
    runs[0].environment,
    runs.map((run) => run.run_id),
  );
  const names = namesOf(runs, 40);
  const titles = found.map(
    ({ run, same }) => `${names.get(run.run_id)}${same ? `, ${counted(same.runs, "run")}` : ""}`,
  );
  const single = found.filter(({ same }) => !same).map(({ run }) => run);
  const entries = found.map(({ ids }, index) => ({ title: titles[index], ids, color: _COLOURS[index] }));
  return html`${
    found.some(({ same }) => same) &&
    html`<p class="muted">Of several runs the charts show the mean, with the lowest and the highest.</p>`
  }
    <${MetricCharts} entries=${entries} baseline=${baseline} query=${query} usual=${_USUAL} />
    ${single.length > 1 && html`<${WonLost} runs=${single} query=${query} />`}
    <section class="card"><h2>Figures and settings</h2><${Sideways} label="Figures and settings"><table>
      <thead><tr><th scope="col">Figure</th>${found.map(
        ({ run }, index) => html`<th scope="col"><a href=${href(["runs", run.run_id])}>${titles[index]}</a></th>`,
      )}</tr></thead>
      <tbody>
        ${row("Status", found, ({ run, same }) =>
          same ? counts(same.statuses) : html`<${Status} status=${run.status} />`,
        )}
        ${row("Iterations", found, ({ run }) => `${run.progress.iterations_done} of ${run.progress.iterations_total}`)}
        ${row("Held-out success", found, ({ run, same }) =>
          same
            ? html`${percent(same.first)} <span aria-label="to">→</span> ${percent(same.means.success)}`
            : html`<${Headline} verdict=${run.verdict} />`,
        )}
        ${row("Verdict", found, ({ run, same }) =>
          same
            ? gained(same)
            : html`${visible(run.verdict.sentence)}<span class="small-print">${visible(run.verdict.details)}</span>`,
        )}
        ${row("Latest reward", found, ({ run, same }) => (same ? "" : number(run.iterations.at(-1)?.rewards.mean)))}
        ${differing(runs.map((run) => run.request)).map(([name, values]) =>
          row(name, found, (_, index) => label(values[index], 120)),
        )}
      </tbody></table><//></section>`;
}

/** @param {Same} same */
const gained = ({ means, gain_sd, verdicts }) =>
  html`<strong>${signed(means.gain, 0)}${gain_sd !== null && ` ± ${number(gain_sd, 0)}`} points</strong>
    ${" "}<span class="muted">${counts(verdicts)}</span>`;

/** @param {Record<string, number>} found */
const counts = (found) =>
  Object.entries(found)
    .map(([name, count]) => `${count} ${name.replaceAll("_", " ")}`)
    .join(", ");

/** @param {string} title @param {Compared[]} found @param {(each: Compared, index: number) => unknown} cell */
const row = (title, found, cell) =>
  html`<tr><th scope="row">${title}</th>${found.map((each, index) => html`<td>${cell(each, index)}</td>`)}</tr>`;

/**
 * The settings that differ between the requests.
 * @param {Record<string, any>[]} requests @returns {[string, string[]][]}
 */
function differing(requests) {
  const flat = requests.map((request) => new Map(leaves(request, "")));
  const names = [...new Set(flat.flatMap((each) => [...each.keys()]))].sort();
  return names
    .map((name) => /** @type {[string, string[]]} */ ([name, flat.map((each) => each.get(name) ?? "")]))
    .filter(([, values]) => new Set(values).size > 1);
}

/** @param {any} value @param {string} name @returns {[string, string][]} */
function leaves(value, name) {
  if (value === null || typeof value !== "object" || Array.isArray(value)) return [[name, JSON.stringify(value) ?? ""]];
  return Object.entries(value).flatMap(([key, each]) => leaves(each, name ? `${name}.${key}` : key));
}
