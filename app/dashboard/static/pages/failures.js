// Where an agent fails: its failing tasks by pattern, now and before, and the rollouts behind each pattern.

import { get } from "../api.js";
import { counted, inWords, percent } from "../format.js";
import { html } from "../parts/html.js";
import { Empty, Loaded, useLoaded } from "../parts/states.js";
import { Progress } from "../parts/status.js";
import { Table } from "../parts/table.js";
import { label, Text } from "../parts/text.js";
import { evaluationsOf, HeldOutSwitch, kindOf } from "../parts/verdict.js";
import { href, refine } from "../router.js";

/** @typedef {import("../api_types").FailureMap} FailureMap */
/** @typedef {import("../api_types").FailureSideOut} Side */
/** @typedef {import("../api_types").FailurePatternOut} Pattern */
/** @typedef {import("../api_types").FailedRolloutOut} Rollout */
/** @typedef {import("../api_types").TaskCountOut} Count */
/** @typedef {import("../api_types").LostTaskOut} Lost */
/** @typedef {import("../api_types").BecameOut} Became */

/** The failures of one of a run's held-out evaluations. @param {import("./run.js").PartProps} props */
export function RunFailures({ run, query }) {
  const kind = kindOf(run, query);
  const iterations = evaluationsOf(run, kind).map((each) => each.iteration);
  if (iterations.length === 0)
    return html`<${Empty} title="No held-out evaluation yet"><p>The baseline comes first.</p><//>`;
  const chosen = iterations.find((each) => String(each) === query.get("iteration")) ?? iterations.at(-1);
  const choose = (/** @type {any} */ event) => refine({ held: kind.name, iteration: event.target.value });
  return html`<${HeldOutSwitch} run=${run} query=${query} />
    <label class="field"><span>After iteration</span><select value=${chosen} onChange=${choose}>
      ${iterations.map((each) => html`<option value=${each}>${each}</option>`)}</select></label>
    <${Failures} asked=${{ run: run.run_id, split: kind.split, mode: kind.mode, iteration: chosen }} />`;
}

/** @param {{asked: Record<string, any>}} props `asked`: the parameters of `GET /failures` */
export function Failures({ asked }) {
  const state = useLoaded((aborted) => get("failures", asked, aborted), [JSON.stringify(asked)]);
  return html`<${Loaded} state=${state} rows=${4}>${(/** @type {FailureMap} */ found) =>
    html`<${Patterns} found=${found} /><${LostTasks} found=${found} />`}<//>`;
}

/** @param {{found: FailureMap}} props */
function Patterns({ found: { now, before, patterns } }) {
  const left = now.all_tasks - now.tasks;
  return html`<section class="card"><h2>Where it fails</h2>
    <p>${before && html`${sideName(before)}: ${solved(before)} <span aria-label="to">→</span>${" "}`}
      ${sideName(now)}: ${solved(now)}${" "}
      <span class="muted">${left > 0 && `of the tasks that both have; ${counted(left, "other")} left out`}</span></p>
    ${
      patterns.length === 0
        ? html`<p class="muted">No task fails.</p>`
        : html`<${Table} caption="Failing tasks by pattern" class="stacked failures" rows=${patterns}
            keyOf=${(/** @type {Pattern} */ each) => each.id} columns=${columns(now, before, patterns)} />`
    }</section>`;
}

/** @param {Side} now @param {Side | null} before @param {Pattern[]} patterns */
function columns(now, before, patterns) {
  /** @param {"now" | "before"} side @param {string} title */
  const count = (side, title) => ({
    title,
    by: `${side}.tasks`,
    cell: (/** @type {Pattern} */ each) => html`<${Tasks} count=${each[side]} of=${now.tasks} label=${title} />`,
  });
  const became = {
    title: "Became",
    cell: (/** @type {Pattern} */ each) =>
      each.became.map((/** @type {Became} */ { pattern, tasks }) => {
        const now = pattern === each.id ? "unchanged" : pattern ? nameOf(pattern, patterns) : "solved";
        return html`<div>${tasks} ${now}</div>`;
      }),
  };
  return [
    {
      title: "Failure",
      isHead: true,
      cell: (/** @type {Pattern} */ each) =>
        html`${label(each.sentence, 160)}<br /><code class="muted small">${label(each.id, 120)}</code>`,
    },
    ...(before ? [count("before", "Before")] : []),
    count("now", "Now"),
    ...(before ? [became] : []),
    {
      title: "Rollouts",
      cell: (/** @type {Pattern} */ each) =>
        html`<${Rollouts} title="now" found=${each.rollouts} />
          <${Rollouts} title="before" found=${each.before_rollouts} />`,
    },
  ];
}

/** @param {{count: Count, of: number, label: string}} props */
const Tasks = ({ count: { tasks, share }, of, label: title }) =>
  html`<span><${Progress} done=${tasks} total=${of} label=${title} />
    ${tasks} <span class="muted">${percent(share.mean)}, ${percent(share.low)} to ${percent(share.high)}</span></span>`;

/** @param {{title: string, found: Rollout[]}} props */
function Rollouts({ title, found }) {
  if (found.length === 0) return null;
  return html`<details><summary>${title}</summary><ul>${found.map(
    (each) => html`<li key=${each.trajectory_id}>
      <a href=${href(["trajectories", each.trajectory_id])}>${label(each.scenario_id, 60)}</a>${" "}
      <${Text} class="muted small" value=${[each.why, each.reason].filter(Boolean).join("; ")} limit=${200} /></li>`,
  )}</ul></details>`;
}

/** @param {{found: FailureMap}} props */
function LostTasks({ found: { lost, lost_tasks: count, patterns } }) {
  if (count === 0) return null;
  const columns = [
    { title: "Task", isHead: true, cell: (/** @type {Lost} */ each) => label(each.scenario_id, 80) },
    {
      title: "Before",
      cell: (/** @type {Lost} */ each) => html`<a href=${href(["trajectories", each.before_trajectory_id])}>solved</a>`,
    },
    {
      title: "Now",
      cell: (/** @type {Lost} */ each) =>
        html`<a href=${href(["trajectories", each.trajectory_id])}>${nameOf(each.pattern, patterns)}</a>`,
    },
  ];
  const shown = counted(count, "task") + (lost.length < count ? `, the first ${lost.length}` : "");
  return html`<section class="card"><h2>Solved before, failing now <span class="muted">${shown}</span></h2>
    <${Table} caption="Tasks solved before and failing now" class="stacked" rows=${lost}
      keyOf=${(/** @type {Lost} */ each) => each.trajectory_id} columns=${columns} /></section>`;
}

/** @param {string} id @param {Pattern[]} patterns */
const nameOf = (id, patterns) => label(patterns.find((each) => each.id === id)?.sentence ?? inWords(id), 120);

/** @param {Side} side */
const sideName = ({ model, iteration }) => (model === null ? `iteration ${iteration}` : label(model, 80));

/** @param {Side} side */
const solved = ({ solved: { tasks }, tasks: of }) => html`<strong>${tasks} of ${counted(of, "task")} solved</strong>`;
