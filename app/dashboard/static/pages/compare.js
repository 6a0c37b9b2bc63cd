// Compares runs: their curves in one chart, held-out questions won and lost, and the settings that differ.

import { all, get, path } from "../api.js";
import { number, percent } from "../format.js";
import { Chart } from "../parts/chart.js";
import { html } from "../parts/html.js";
import { nameOf } from "../parts/run_name.js";
import { Empty, Loaded, useLoaded } from "../parts/states.js";
import { Status } from "../parts/status.js";
import { Sideways } from "../parts/strip.js";
import { label, visible } from "../parts/text.js";
import { Headline } from "../parts/verdict.js";
import { href } from "../router.js";
import { WonLost } from "./won_lost.js";

/** @typedef {import("../api_types").RunOut} Run */
/** @typedef {{run: Run, rewards: Map<number, number | null>}} Compared */

const _COLOURS = ["series-1", "series-2", "series-3", "series-4", "series-5", "series-6"];

/** @param {{query: URLSearchParams}} props */
export function Compare({ query }) {
  const ids = (query.get("runs") ?? "").split(",").filter(Boolean).slice(0, _COLOURS.length);
  const state = useLoaded((aborted) => Promise.all(ids.map((id) => load(id, aborted))), [ids.join()]);
  if (ids.length === 0) return html`<${Empty} title="Nothing to compare"><p>Mark some runs in <a href=${href([])}>the list</a>.</p><//>`;
  return html`<p class="crumbs"><a href=${href([])}>Runs</a></p><h1>Compare runs</h1>
    <${Loaded} state=${state} rows=${8}>${(/** @type {Compared[]} */ found) => html`<${Whole} found=${found} query=${query} />`}<//>`;
}

/** @param {string} id @param {AbortSignal} aborted @returns {Promise<Compared>} */
async function load(id, aborted) {
  const [run, iterations] = await Promise.all([get(path`runs/${id}`, {}, aborted), all(path`runs/${id}/iterations`, {}, { aborted })]);
  return { run, rewards: new Map(iterations.filter((each) => each.iteration > 0).map((each) => [each.iteration, each.rewards.mean])) };
}

/** @param {{found: Compared[], query: URLSearchParams}} props */
function Whole({ found, query }) {
  const x = [...new Set(found.flatMap(({ rewards }) => [...rewards.keys()]))].sort((one, other) => one - other);
  const held = found.map(({ run }) => new Map(run.evaluations.filter((each) => each.split === "validation" && each.mode === "sampled").map((each) => [each.iteration, each.success])));
  const heldX = [...new Set(held.flatMap((each) => [...each.keys()]))].sort((one, other) => one - other);
  return html`<div class="charts two">
      <${Chart} title="Mean reward" x=${x} lines=${found.map(({ run, rewards }, index) => ({ label: nameOf(run), color: _COLOURS[index], values: x.map((each) => rewards.get(each) ?? null) }))} />
      <${Chart} title="Held-out success" note="validation, sampled" x=${heldX} format=${percent} range=${[0, 1]}
        lines=${found.map(({ run }, index) => ({ label: nameOf(run), color: _COLOURS[index], values: heldX.map((each) => held[index].get(each) ?? null) }))} />
    </div>
    ${found.length > 1 && html`<${WonLost} runs=${found.map(({ run }) => run)} query=${query} />`}
    <section class="card"><h2>Figures and settings</h2><${Sideways} label="Figures and settings"><table>
      <thead><tr><th scope="col">Figure</th>${found.map(({ run }) => html`<th scope="col"><a href=${href(["runs", run.run_id])}>${nameOf(run)}</a></th>`)}</tr></thead>
      <tbody>
        ${row("Status", found, ({ run }) => html`<${Status} status=${run.status} />`)}
        ${row("Iterations", found, ({ run }) => `${run.progress.iterations_done} of ${run.progress.iterations_total}`)}
        ${row("Held-out success", found, ({ run }) => html`<${Headline} verdict=${run.verdict} />`)}
        ${row("Verdict", found, ({ run }) => html`${visible(run.verdict.sentence)}<span class="small-print">${visible(run.verdict.details)}</span>`)}
        ${row("Latest reward", found, ({ rewards }) => number([...rewards.values()].at(-1)))}
        ${differing(found.map(({ run }) => run.request)).map(([name, values]) => row(name, found, (_, index) => label(values[index], 120)))}
      </tbody></table><//></section>`;
}

/** @param {string} title @param {Compared[]} found @param {(each: Compared, index: number) => unknown} cell */
const row = (title, found, cell) => html`<tr><th scope="row">${title}</th>${found.map((each, index) => html`<td>${cell(each, index)}</td>`)}</tr>`;

/** The settings that differ between the requests. @param {Record<string, any>[]} requests @returns {[string, string[]][]} */
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
