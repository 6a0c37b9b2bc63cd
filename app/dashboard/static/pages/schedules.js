// Schedules: what each one learns from, when it runs next, and what came of the last time.

import { useState } from "../vendor/hooks.js";
import { all } from "../api.js";
import { moment } from "../format.js";
import { html } from "../parts/html.js";
import { askedName, Followed, NextTime, RunOf, runOf, ScheduleActions, tasksOf, THEN } from "../parts/schedule.js";
import { Empty, Loaded, useLoaded, useReload } from "../parts/states.js";
import { Table } from "../parts/table.js";
import { label } from "../parts/text.js";
import { href } from "../router.js";
import { may } from "../session.js";
import { NewSchedule } from "./schedule_form.js";

/** @typedef {import("../parts/schedule.js").Schedule} Schedule */
/** @typedef {Schedule & {lastRun: import("../parts/schedule.js").Run | undefined}} Listed */

const _MOST = 200;

export function Schedules() {
  const state = useLoaded(load, []);
  const [news, setNews] = useState(/** @type {unknown} */ (""));
  useReload(state, Boolean(state.data?.some((schedule) => schedule.last?.state === "running")));
  return html`<h1>Schedules</h1>
    <p class="muted">A schedule starts a run at fixed times, from what users asked of a promoted name.</p>
    ${may("write") && html`<${NewSchedule} reload=${state.reload} />`}
    <p class="news" role="status">${news}</p>
    <${Loaded} state=${state}>${(/** @type {Listed[]} */ schedules) =>
      schedules.length === 0
        ? html`<${NoSchedule} />`
        : html`<section class="card"><h2>All schedules</h2>
            <${Table} caption="Schedules, newest first" class="stacked" rows=${schedules}
              keyOf="id" columns=${columns(state.reload, setNews)} />
          </section>`}<//>`;
}

/** The schedules, each with its last run. @param {AbortSignal} aborted @returns {Promise<Listed[]>} */
async function load(aborted) {
  const schedules = /** @type {Schedule[]} */ (await all("schedules", {}, { aborted, most: _MOST }));
  return Promise.all(
    schedules.map(async (schedule) => ({
      ...schedule,
      lastRun: schedule.last?.run_id ? await runOf(schedule.last.run_id, aborted) : undefined,
    })),
  );
}

function NoSchedule() {
  return html`<${Empty} title="No schedule yet">
    <p>Promote a checkpoint, let users ask it with <code>"train": true</code>, and a schedule trains on their tasks
      every night. Make one with “New schedule” above, or with <code>learnloop schedules create</code>.</p><//>`;
}

/**
 * @param {() => void} reload @param {(news: unknown) => void} tell
 * @returns {import("../parts/table.js").Column<Listed>[]}
 */
const columns = (reload, tell) => [
  {
    title: "Schedule",
    by: "name",
    isHead: true,
    cell: (schedule) =>
      html`<a href=${href(["schedules", schedule.id])}>${label(schedule.name)}</a>
        ${" "}<span class="muted">${label(schedule.project)}</span>`,
  },
  {
    title: "Trains on",
    cell: (schedule) => html`${askedName(schedule)}
      <span class="muted small">${`what users asked ${tasksOf(schedule)}`}</span>`,
  },
  {
    title: "Next",
    by: (schedule) => schedule.next_times[0],
    cell: (schedule) => html`<${NextTime} schedule=${schedule} />
      <span class="muted small">${`${schedule.cron} in UTC`}</span>`,
  },
  {
    title: "Then",
    cell: ({ then }) => html`<span title=${THEN[then]}>${then === "nothing" ? then : `a ${then}`}</span>`,
  },
  {
    title: "Last time",
    by: "last.due_at",
    cell: ({ last, lastRun }) =>
      last
        ? html`<span class="muted small">${moment(last.due_at)}</span><${RunOf} due=${last} run=${lastRun} />
            ${" "}<${Followed} due=${last} />`
        : html`<span class="muted">not due yet</span>`,
  },
  {
    title: "",
    cell: (schedule) =>
      may("write") && html`<${ScheduleActions} schedule=${schedule} changed=${reload} tell=${tell} />`,
  },
];
