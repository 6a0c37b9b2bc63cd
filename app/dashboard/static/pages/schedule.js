// A schedule: when it runs, from what, and what came of each of its due times.

import { useState } from "../vendor/hooks.js";
import { all, get, path } from "../api.js";
import { counted, moment, number } from "../format.js";
import { html } from "../parts/html.js";
import { askedName, Followed, RunOf, ScheduleActions, tasksOf, THEN } from "../parts/schedule.js";
import { Loaded, useLoaded, useReload } from "../parts/states.js";
import { Status } from "../parts/status.js";
import { Table } from "../parts/table.js";
import { JsonText, label } from "../parts/text.js";
import { go, href } from "../router.js";
import { may } from "../session.js";

/** @typedef {import("../parts/schedule.js").Schedule} Schedule */
/** @typedef {import("../parts/schedule.js").DueTime} DueTime */
/** @typedef {import("../parts/schedule.js").Run} Run */
/** @typedef {Awaited<ReturnType<typeof load>>} Whole */

const _MOST = 50;
/** Maximum length of a text that runs are searched by. */
const _SEARCHED = 100;

/** @param {{id: string}} props */
export function SchedulePage({ id }) {
  const state = useLoaded((aborted) => load(id, aborted), [id]);
  useReload(state, state.data?.dueTimes[0]?.state === "running");
  return html`<p class="crumbs"><a href=${href(["schedules"])}>Schedules</a> / <code>${label(id)}</code></p>
    <${Loaded} state=${state} rows=${6}>${(/** @type {Whole} */ whole) =>
      html`<${Shown} ...${whole} reload=${state.reload} />`}<//>`;
}

/**
 * A schedule, its newest due times, and their runs by id.
 * @param {string} id @param {AbortSignal} aborted
 */
async function load(id, aborted) {
  const [schedule, dueTimes] = await Promise.all([
    get(path`schedules/${id}`, {}, aborted),
    all(path`schedules/${id}/runs`, { limit: _MOST }, { aborted, most: _MOST }),
  ]);
  // Each run is named after the schedule.
  const runs = await get("runs", { search: `${schedule.name}-`.slice(0, _SEARCHED), limit: 200 }, aborted);
  return {
    schedule: /** @type {Schedule} */ (schedule),
    dueTimes: /** @type {DueTime[]} */ (dueTimes),
    runs: new Map(runs.items.map((/** @type {Run} */ run) => [run.run_id, run])),
  };
}

/** @param {{schedule: Schedule, dueTimes: DueTime[], runs: Map<string, Run>, reload: () => void}} props */
function Shown({ schedule, dueTimes, runs, reload }) {
  const [news, setNews] = useState(/** @type {unknown} */ (""));
  return html`<div class="title-row"><h1>${label(schedule.name)}
        ${schedule.paused && html` <${Status} status="paused" />`}</h1>
      ${
        may("write") &&
        html`<${ScheduleActions} schedule=${schedule} changed=${reload} tell=${setNews}
          deleted=${() => go(["schedules"])} />`
      }</div>
    <p class="news" role="status">${news}</p>
    <${Facts} schedule=${schedule} />
    <section class="card"><h2>Due times</h2>
      ${
        dueTimes.length === 0
          ? html`<p class="muted">It has not been due yet.</p>`
          : html`<${Table} caption="Due times, newest first" class="stacked" rows=${dueTimes}
              keyOf="due_at" columns=${columns(runs)} />`
      }</section>
    <details class="card"><summary><h2>Settings of its runs</h2></summary>
      <${JsonText} value=${schedule.run} /></details>`;
}

/** When a schedule runs, and from what. @param {{schedule: Schedule}} props */
function Facts({ schedule }) {
  const {
    cron,
    paused,
    next_times: times,
    promoted_name: name,
    then,
    trials,
    expected_wrong_promotions: wrong,
  } = schedule;
  const next = paused ? "It starts nothing until it is resumed." : times.map(moment).join("; ");
  const errors = `${counted(trials, "trial")} so far; at most ${number(wrong)} wrong promotions to be expected`;
  return html`<section class="card"><dl class="pairs">
    <div><dt>Next</dt><dd>${next} <span class="muted">(${label(cron)} in UTC)</span></dd></div>
    <div><dt>Trains on</dt><dd>what users asked of ${askedName(schedule)}
      ${" "}<span class="muted">${tasksOf(schedule)}</span></dd></div>
    <div><dt>Starts from</dt>
      <dd>the checkpoint of ${label(name, 120)}, or the base model while nothing has that name</dd></div>
    <div><dt>Then</dt><dd>${THEN[then]}${trials > 0 && html` <span class="muted">(${errors})</span>`}</dd></div>
  </dl></section>`;
}

/** @param {Map<string, Run>} runs @returns {import("../parts/table.js").Column<DueTime>[]} */
const columns = (runs) => [
  { title: "Due", by: "due_at", isHead: true, cell: (due) => html`<span class="when">${moment(due.due_at)}</span>` },
  { title: "Run", cell: (due) => html`<${RunOf} due=${due} run=${runs.get(due.run_id ?? "")} />` },
  {
    title: "Tasks",
    by: "tasks",
    cell: ({ tasks, users }) => (tasks === null ? "" : `${counted(tasks, "task")} of ${counted(users ?? 0, "user")}`),
  },
  {
    title: "Started from",
    cell: (due) => (due.state === "skipped" ? "" : label(due.started_from ?? "the base model", 120)),
  },
  { title: "What followed", cell: (due) => html`<${Followed} due=${due} />` },
];
