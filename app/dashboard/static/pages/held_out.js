// Before and after: held-out scenarios done by the base model and by later checkpoints.

import { all, path } from "../api.js";
import { percent } from "../format.js";
import { html } from "../parts/html.js";
import { SideBySide } from "../parts/side_by_side.js";
import { Empty, Loaded, useLoaded } from "../parts/states.js";
import { Text } from "../parts/text.js";
import { href, refine } from "../router.js";
import { taskOf } from "./trajectories.js";

/** @typedef {import("../api_types").TrajectoryBrief} Brief */
/** @typedef {import("../api_types").CheckpointOut} Checkpoint */
/** @typedef {{checkpoint: Checkpoint, made: Map<string, Brief>}} Column */

const _COLUMNS = 8;

/** @param {import("./run.js").PartProps} props */
export function HeldOut({ run, query }) {
  const state = useLoaded((aborted) => load(run.run_id, aborted), [run.run_id, run.progress.iterations_done]);
  const scenario = query.get("scenario");
  return html`<${Loaded} state=${state} rows=${6}>${(/** @type {Column[]} */ columns) => {
    if (columns.length === 0) return html`<${Empty} title="No held-out evaluation yet"><p>The baseline comes first.</p><//>`;
    return scenario ? html`<${One} runId=${run.run_id} columns=${columns} scenario=${scenario} />` : html`<${Matrix} columns=${columns} />`;
  }}<//>`;
}

/** Load the greedy validation rollouts of the base, the best and the newest checkpoints. @param {string} runId @param {AbortSignal} aborted */
async function load(runId, aborted) {
  const kept = /** @type {Checkpoint[]} */ (await all(path`runs/${runId}/checkpoints`, {}, { aborted }));
  const judged = kept.filter((each) => each.success !== null);
  const shown = judged.filter((each, index) => index === 0 || each.is_best || index > judged.length - _COLUMNS + 1);
  const columns = await Promise.all(
    shown.map(async (checkpoint) => {
      const query = { kind: "evaluation", split: "validation", mode: "greedy", iteration: checkpoint.iteration };
      const found = /** @type {Brief[]} */ (await all(path`runs/${runId}/trajectories`, query, { aborted, most: 1000 }));
      return { checkpoint, made: new Map(found.map((each) => [each.scenario_id, each])) };
    }),
  );
  return columns.filter((column) => column.made.size > 0);
}

/** @param {Checkpoint} checkpoint */
const titleOf = ({ iteration, step, is_best: isBest }) => `${iteration === 0 ? "Before" : `Step ${step}`}${isBest ? " (best)" : ""}`;

/** @param {{columns: Column[]}} props */
function Matrix({ columns }) {
  const scenarios = [...columns[0].made.values()];
  return html`<section class="card"><h2>The same scenarios, before and after</h2>
    <p class="muted">Greedy rollouts on the validation scenarios, which the agent never trains on. Choose one to read what changed.</p>
    <div class="scroll" tabindex="0" role="region" aria-label="Success by scenario and checkpoint"><table class="matrix">
      <thead><tr><th scope="col">Scenario</th>${columns.map(({ checkpoint }) => html`<th scope="col">${titleOf(checkpoint)}</th>`)}</tr></thead>
      <tbody>${scenarios.map((scenario) => html`<tr key=${scenario.scenario_id}>
          <th scope="row"><a href=${location.hash} onClick=${(/** @type {Event} */ event) => (event.preventDefault(), refine({ scenario: scenario.scenario_id }))}><${Text} value=${taskOf(scenario)} limit=${160} /></a></th>
          ${columns.map(({ made }) => html`<td><${Mark} made=${made.get(scenario.scenario_id)} /></td>`)}
        </tr>`)}
        <tr><th scope="row">All</th>${columns.map(({ made }) => html`<td><strong>${percent(share(made))}</strong></td>`)}</tr>
      </tbody>
    </table></div>
  </section>`;
}

/** @param {Map<string, Brief>} made */
const share = (made) => [...made.values()].filter((each) => each.success).length / made.size;

/** @param {{made: Brief | undefined}} props */
function Mark({ made }) {
  if (!made) return html`<span class="muted">–</span>`;
  return made.success ? html`<span class="good" aria-label="success">✓</span>` : html`<span class="bad-ink" aria-label="no success">✗</span>`;
}

/** @param {{runId: string, columns: Column[], scenario: string}} props */
function One({ runId, columns, scenario }) {
  const sides = columns.flatMap(({ checkpoint, made }) => {
    const found = made.get(scenario);
    return found ? [{ id: found.id, title: titleOf(checkpoint), href: href(["runs", runId, "trajectories", found.id]) }] : [];
  });
  const task = columns.map(({ made }) => made.get(scenario)).find((each) => each !== undefined);
  return html`<div class="title-row"><h2>${task ? html`<${Text} value=${taskOf(task)} limit=${300} />` : "Unknown scenario"}</h2>
      <button onClick=${() => refine({})}>All scenarios</button></div>
    ${sides.length > 0 ? html`<${SideBySide} sides=${sides} />` : html`<${Empty} title="This scenario was not evaluated" />`}`;
}
