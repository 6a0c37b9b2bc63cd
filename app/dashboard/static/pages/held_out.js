// Before and after: held-out scenarios done by the base model and by later checkpoints.

import { all, path } from "../api.js";
import { percent } from "../format.js";
import { Expected } from "../parts/expected.js";
import { html } from "../parts/html.js";
import { SideBySide } from "../parts/side_by_side.js";
import { Empty, Loaded, useLoaded } from "../parts/states.js";
import { Text } from "../parts/text.js";
import { described, evaluationsOf, HeldOutSwitch, kindOf } from "../parts/verdict.js";
import { href, refine } from "../router.js";
import { taskOf } from "./trajectories.js";

/** @typedef {import("../api_types").TrajectoryBrief} Brief */
/** @typedef {import("../api_types").RunOut} Run */
/** @typedef {import("../parts/verdict.js").Evaluation} Evaluation */
/** @typedef {import("../parts/verdict.js").Kind} Kind */
/** @typedef {{evaluation: Evaluation, isBest: boolean, made: Map<string, Brief[]>}} Column */

const _COLUMNS = 8;

/** @param {import("./run.js").PartProps} props */
export function HeldOut({ run, query }) {
  const kind = kindOf(run, query);
  const state = useLoaded((aborted) => load(run, kind, aborted), [run.run_id, run.progress.iterations_done, kind.name]);
  const scenario = query.get("scenario");
  return html`<${HeldOutSwitch} run=${run} query=${query} />
    <${Loaded} state=${state} rows=${6}>${(/** @type {Column[]} */ columns) => {
    if (columns.length === 0) return html`<${Empty} title="No held-out evaluation yet"><p>The baseline comes first.</p><//>`;
    return scenario ? html`<${One} run=${run} kind=${kind} columns=${columns} scenario=${scenario} />` : html`<${Matrix} run=${run} kind=${kind} columns=${columns} />`;
  }}<//>`;
}

/** Load the rollouts of a kind by the base, the best and the newest checkpoints. @param {Run} run @param {Kind} kind @param {AbortSignal} aborted */
async function load(run, kind, aborted) {
  const judged = evaluationsOf(run, kind).map((evaluation) => ({ evaluation, isBest: evaluation.step === run.best_checkpoint?.step }));
  const shown = judged.filter((each, index) => index === 0 || each.isBest || index > judged.length - _COLUMNS + 1);
  const columns = await Promise.all(
    shown.map(async (each) => {
      const query = { kind: "evaluation", split: kind.split, mode: kind.mode, iteration: each.evaluation.iteration };
      const found = /** @type {Brief[]} */ (await all(path`runs/${run.run_id}/trajectories`, query, { aborted, most: 1000 }));
      const made = /** @type {Map<string, Brief[]>} */ (new Map());
      for (const rollout of found) made.set(rollout.scenario_id, [...(made.get(rollout.scenario_id) ?? []), rollout]);
      return { ...each, made };
    }),
  );
  return columns.filter((column) => column.made.size > 0);
}

/** @param {Column} column */
const titleOf = ({ evaluation: { iteration, step }, isBest }) => `${iteration === 0 ? "Before" : `Step ${step}`}${isBest ? " (best)" : ""}`;

/** @param {{run: Run, kind: Kind, columns: Column[]}} props */
function Matrix({ run, kind, columns }) {
  const scenarios = [...columns[0].made.values()].map(([first]) => first);
  return html`<section class="card"><h2>The same scenarios, before and after</h2>
    <p class="muted">${described(kind, scenarios.length)}; the agent never trains on them. Choose one to read what changed.</p>
    <div class="scroll" tabindex="0" role="region" aria-label="Success by scenario and checkpoint"><table class="matrix">
      <thead><tr><th scope="col">Scenario</th>${columns.map((column) => html`<th scope="col">${titleOf(column)}</th>`)}</tr></thead>
      <tbody>${scenarios.map((scenario) => html`<tr key=${scenario.scenario_id}>
          <th scope="row"><a href=${href(["runs", run.run_id, "held-out"], { held: kind.name, scenario: scenario.scenario_id })}><${Text} value=${taskOf(scenario)} limit=${160} /></a></th>
          ${columns.map(({ made }) => html`<td><${Mark} made=${made.get(scenario.scenario_id)} /></td>`)}
        </tr>`)}
        <tr><th scope="row">All</th>${columns.map(({ evaluation }) => html`<td><strong>${percent(evaluation.success)}</strong></td>`)}</tr>
      </tbody>
    </table></div>
  </section>`;
}

/** @param {{made: Brief[] | undefined}} props */
function Mark({ made }) {
  if (!made) return html`<span class="muted">–</span>`;
  const right = made.filter((each) => each.success).length;
  const tone = right === made.length ? "good" : right === 0 ? "bad-ink" : "muted";
  if (made.length > 1) return html`<span class=${tone}>${right} of ${made.length}</span>`;
  return right ? html`<span class="good" aria-label="success">✓</span>` : html`<span class="bad-ink" aria-label="no success">✗</span>`;
}

/** @param {{run: Run, kind: Kind, columns: Column[], scenario: string}} props */
function One({ run, kind, columns, scenario }) {
  const sides = columns.flatMap((column) => {
    const found = column.made.get(scenario)?.[0];
    return found ? [{ id: found.id, title: titleOf(column), href: href(["runs", run.run_id, "trajectories", found.id]) }] : [];
  });
  const task = columns.map(({ made }) => made.get(scenario)?.[0]).find((each) => each !== undefined);
  return html`<div class="title-row"><h2>${task ? html`<${Text} value=${taskOf(task)} limit=${300} />` : "Unknown scenario"}</h2>
      <button onClick=${() => refine({ held: kind.name })}>All scenarios</button></div>
    ${task && html`<${Expected} scenario=${task.scenario} />`}
    ${sides.length > 0 ? html`<${SideBySide} sides=${sides} />` : html`<${Empty} title="This scenario was not evaluated" />`}`;
}
