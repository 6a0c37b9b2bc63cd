// Held-out questions that one of two compared runs answers and the other does not, with their rollouts.

import { get, path } from "../api.js";
import { counted, percent, signed } from "../format.js";
import { html } from "../parts/html.js";
import { nameOf, shortNameOf } from "../parts/run_name.js";
import { Empty, Loaded, useLoaded } from "../parts/states.js";
import { Table } from "../parts/table.js";
import { Text } from "../parts/text.js";
import { described } from "../parts/verdict.js";
import { href, refine } from "../router.js";
import { taskOf } from "./trajectories.js";

/** @typedef {import("../api_types").RunOut} Run */
/** @typedef {import("../api_types").RunComparison} Comparison */
/** @typedef {import("../api_types").ComparedKindOut} Compared */
/** @typedef {import("../api_types").DecidedScenarioOut} Decided */

/**
 * The first run of the page is compared with one of the others.
 * @param {{runs: Run[], query: URLSearchParams}} props
 */
export function WonLost({ runs, query }) {
  const [run, ...others] = runs;
  const other = others.find((each) => each.run_id === query.get("with")) ?? others[0];
  const state = useLoaded(
    (aborted) => get(path`runs/${run.run_id}/comparison`, { other: other.run_id }, aborted),
    [run.run_id, other.run_id],
  );
  return html`<section class="card"><h2>Questions won and lost</h2>
    <div class="switch" role="group" aria-label="Run B">
      <span>A: <strong>${shortNameOf(run)}</strong></span> <span>B:</span>
      ${others.map(
        (each) =>
          html`<button key=${each.run_id} aria-pressed=${each === other}
            onClick=${() => refine({ runs: query.get("runs"), with: each.run_id })}>${shortNameOf(each, 40)}</button>`,
      )}
    </div>
    <${Loaded} state=${state} rows=${4}>${(
      /** @type {Comparison} */ { held_out: found, run_held_out_seed: ours, other_held_out_seed: theirs },
    ) => {
      if (found.length === 0) return html`<${Empty} title="Both have no held-out evaluation of the same kind" />`;
      const seeds =
        `The held-out scenarios were drawn with different seeds, A's with ${ours} and B's with ${theirs}: ` +
        "only those that both have are compared.";
      return html`${ours !== theirs && html`<p>${seeds}</p>`}${found.map(
        (kind) =>
          html`<${Kind} key=${kind.split + kind.mode} kind=${kind} run=${run}
            other=${other} isOpen=${kind === found[0]} />`,
      )}`;
    }}<//>
  </section>`;
}

/** @param {{kind: Compared, run: Run, other: Run, isOpen: boolean}} props */
function Kind({ kind, run, other, isOpen }) {
  const found = kind.difference;
  const title = described({ name: "", title: "", split: kind.split, mode: kind.mode }, found?.scenarios ?? 0);
  if (!found) return html`<p><strong>${title}:</strong> no scenario in common</p>`;
  const said = `B wins ${kind.other_better} and loses ${kind.run_better}, ${signed(100 * found.mean, 0)} points`;
  const finding = found.is_shown ? "" : "; no difference shown";
  const interval = `95%: ${signed(100 * found.low, 0)} to ${signed(100 * found.high, 0)}, paired${finding}`;
  return html`<details class="kind" open=${isOpen}>
    <summary><strong>${title}:</strong> ${said} <span class="muted">(${interval})</span></summary>
    <div class="columns">
      <${Wins} title="Won by B" count=${kind.other_better} found=${kind.other_wins} run=${run} other=${other} />
      <${Wins} title="Won by A" count=${kind.run_better} found=${kind.run_wins} run=${run} other=${other} />
    </div></details>`;
}

/** @param {{title: string, count: number, found: Decided[], run: Run, other: Run}} props */
function Wins({ title, count, found, run, other }) {
  if (count === 0) return html`<div><h3>${title}</h3><p class="muted">none</p></div>`;
  /** @param {string} letter @param {Run} of @param {"run" | "other"} side */
  const share = (letter, of, side) => ({
    title: letter,
    isNumber: true,
    cell: (
      /** @type {Decided} */ each,
    ) => html`<a class=${each[side].success > 0.5 ? "good" : each[side].success === 0 ? "bad-ink" : ""}
      href=${href(["runs", of.run_id, "trajectories", each[side].trajectory_id])}
      aria-label=${`${percent(each[side].success)}: a rollout by ${nameOf(of)}`}>${percent(each[side].success)}</a>`,
  });
  const task = {
    title: "Question",
    isHead: true,
    cell: (/** @type {Decided} */ each) => html`<${Text} value=${taskOf(each)} limit=${140} />`,
  };
  return html`<div><h3>${title} <span class="muted">
      ${counted(count, "question")}${found.length < count ? `, the first ${found.length}` : ""}</span></h3>
    <${Table} caption=${title} class="won" columns=${[task, share("A", run, "run"), share("B", other, "other")]}
      rows=${found} keyOf="scenario_id" /></div>`;
}
