// Where an agent fails: its failing tasks by pattern, now and before, and the rollouts behind each pattern.

import { get } from "../api.js";
import { counted, percent } from "../format.js";
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
/** @typedef {import("../api_types").LostTaskOut} Lost */

/** The failures of one of a run's held-out evaluations. @param {import("./run.js").PartProps} props */
export function RunFailures({ run, query }) {
  const kind = kindOf(run, query);
  const iterations = evaluationsOf(run, kind).map((each) => each.iteration);
  if (iterations.length === 0)
    return html`<${Empty} title="No held-out evaluation yet"><p>The baseline comes first.</p><//>`;
  const iteration = iterations.find((each) => String(each) === query.get("iteration")) ?? iterations.at(-1);
  const choose = (/** @type {any} */ event) => refine({ held: kind.name, iteration: event.target.value });
  return html`<${HeldOutSwitch} run=${run} query=${query} />
    <label class="field"><span>After iteration</span><select value=${iteration} onChange=${choose}>
      ${iterations.map((each) => html`<option value=${each}>${each}</option>`)}</select></label>
    <${Failures} asked=${{ run: run.run_id, split: kind.split, mode: kind.mode, iteration }} />`;
}

/** @param {{asked: Record<string, any>}} props `asked`: the parameters of `GET /failures` */
export function Failures({ asked }) {
  const state = useLoaded((aborted) => get("failures", asked, aborted), [JSON.stringify(asked)]);
  return html`<${Loaded} state=${state} rows=${4}>${(/** @type {FailureMap} */ found) =>
    html`<section class="card"><h2>Where it fails</h2>
      <p>${found.before && html`${solved(found.before)} <span aria-label="to">→</span>${" "}`}${solved(found.now)}</p>
      ${
        found.patterns.length > 0 &&
        html`<${Table} caption="Failing tasks by pattern" class="stacked failures" rows=${found.patterns}
        keyOf="id" columns=${columns(found)} />`
      }</section>
    ${found.lost_tasks > 0 && html`<${LostTasks} found=${found} />`}`}<//>`;
}

/** @param {Side} side */
const solved = ({ name, solved: { tasks }, tasks: of, left_out: others }) =>
  html`${label(name, 80)}: <strong>${tasks} of ${counted(of, "task")} solved</strong>
    ${others > 0 && `, ${others} left out`}`;

/** @param {FailureMap} found */
function columns({ now, before, patterns }) {
  /** @param {"now" | "before"} side @param {string} title */
  const bar = (side, title) => ({
    title,
    by: `${side}.tasks`,
    cell: (/** @type {any} */ { [side]: { tasks, mean, low, high } }) =>
      html`<${Progress} done=${tasks} total=${now.tasks} label=${title} />
        ${tasks} <span class="muted">${percent(mean)}, ${percent(low)} to ${percent(high)}</span>`,
  });
  const failure = {
    title: "Failure",
    isHead: true,
    cell: (/** @type {Pattern} */ each) =>
      html`${label(each.sentence, 160)}<br /><code class="muted small">${label(each.id, 120)}</code>`,
  };
  const became = {
    title: "Became",
    cell: (/** @type {Pattern} */ { id, became }) =>
      became.map(
        ({ pattern, tasks }) => html`<div>${tasks} ${pattern === id ? "unchanged" : nameOf(pattern, patterns)}</div>`,
      ),
  };
  const compared = before ? [bar("before", "Before"), bar("now", "Now"), became] : [bar("now", "Now")];
  return [failure, ...compared, { title: "Rollouts", cell: Rollouts }];
}

/** @param {Pattern} pattern */
const Rollouts = ({ rollouts }) =>
  html`<details><summary>Look</summary><ul>${rollouts.map(
    (each) => html`<li key=${each.trajectory_id}>
      <a href=${href(["trajectories", each.trajectory_id])}>${label(each.scenario_id, 60)}</a>${" "}
      <${Text} class="muted small" value=${[each.why, each.reason].filter(Boolean).join("; ")} limit=${200} /></li>`,
  )}</ul></details>`;

/** @param {{found: FailureMap}} props */
function LostTasks({ found: { lost, lost_tasks: count, patterns } }) {
  /** @param {string} title @param {(each: Lost) => [string, string]} to a trajectory and what it is called */
  const link = (title, to) => ({
    title,
    cell: (/** @type {Lost} */ each) => html`<a href=${href(["trajectories", to(each)[0]])}>${to(each)[1]}</a>`,
  });
  /** @type {import("../parts/table.js").Column<Lost>[]} */
  const columns = [
    { title: "Task", isHead: true, cell: (each) => label(each.scenario_id, 80) },
    link("Before", (each) => [each.before_trajectory_id, "solved"]),
    link("Now", (each) => [each.trajectory_id, nameOf(each.pattern, patterns)]),
  ];
  const shown = counted(count, "task") + (lost.length < count ? `, the first ${lost.length}` : "");
  return html`<section class="card"><h2>Solved before, failing now <span class="muted">${shown}</span></h2>
    <${Table} caption="Tasks solved before and failing now" class="stacked failures" rows=${lost}
      keyOf="trajectory_id" columns=${columns} /></section>`;
}

/** @param {string | null} id null for what is solved @param {Pattern[]} patterns */
const nameOf = (id, patterns) => label(patterns.find((each) => each.id === id)?.sentence ?? "solved", 120);
