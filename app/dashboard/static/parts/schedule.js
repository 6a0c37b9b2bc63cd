// What pages say about schedules: when one is due, what came of a due time, and what a person can do with one.

import { get, path, post, remove } from "../api.js";
import { counted, moment, signed } from "../format.js";
import { href } from "../router.js";
import { Action } from "./action.js";
import { html } from "./html.js";
import { shortNameOf } from "./run_name.js";
import { Status } from "./status.js";
import { label, Text } from "./text.js";
import { VerdictMark } from "./verdict.js";

/** @typedef {import("../api_types").ScheduleOut} Schedule */
/** @typedef {import("../api_types").ScheduleRunOut} DueTime */
/** @typedef {Pick<import("../api_types").RunListed, "run_id" | "name" | "model" | "verdict">} Run */

/** What follows a run that is completed. @type {Record<Schedule["then"], string>} */
export const THEN = {
  trial: "a trial for the name",
  release: "a release to some of the users",
  nothing: "nothing",
};

const _DECISIONS = /** @type {Record<string, string>} */ ({
  promote: "promoted",
  refuse: "refused",
  undecided: "undecided",
  overtaken: "overtaken",
});

/** The promoted name whose users' requests a schedule learns from. @param {Schedule} schedule */
export const askedName = ({ run, promoted_name: name }) => label(run.source?.sessions?.model ?? name, 120);

/** From which tasks a run is made. @param {Schedule} schedule */
export function tasksOf({ least_new_tasks: least, window_days: days }) {
  const since = days === null ? "since the last run" : `in the ${counted(days, "day")} before`;
  return `${since}, at least ${counted(least, "new task")}`;
}

/** @param {{schedule: Schedule}} props */
export const NextTime = ({ schedule: { paused, next_times: next } }) =>
  paused ? html`<${Status} status="paused" />` : html`<span class="when">${moment(next[0])}</span>`;

/**
 * The run of a due time with whether it learned, or why there was none.
 * @param {{due: DueTime, run: Run | undefined}} props `run` is what is known of it
 */
export function RunOf({ due, run }) {
  if (due.state === "skipped")
    return html`<${Status} status="skipped" /> <span class="muted"><${Text} value=${due.detail} limit=${300} /></span>`;
  if (!due.run_id) return html`<span class="muted">the run was deleted</span>`;
  const verdict = run?.verdict;
  const gain = verdict?.points == null ? "" : ` ${signed(verdict.points, 0)}\u00a0points`;
  return html`<a href=${href(["runs", due.run_id])}>${run ? shortNameOf(run) : "a run"}</a>
    ${" "}<${Status} status=${due.run_status ?? ""} />
    ${verdict && html` <${VerdictMark} state=${verdict.state} text=${verdict.text} />${gain}`}`;
}

/**
 * What followed a run: a trial with its decision, a release, or the reason why nothing did.
 * @param {{due: DueTime}} props
 */
export function Followed({ due }) {
  const { state, evaluation_id: trial, release_id: release, reason, decision, evaluation_status: status } = due;
  if (state === "skipped") return null;
  if (trial) return html`<a href=${href(["evaluations", trial])}>trial</a>: ${_DECISIONS[decision ?? ""] ?? status}`;
  if (release) return html`<a href=${href(["releases", release])}>a release</a>`;
  if (reason) return html`<span class="muted">nothing: <${Text} value=${due.detail} limit=${300} /></span>`;
  return html`<span class="muted">${state === "running" ? "not yet" : "nothing followed"}</span>`;
}

/**
 * @param {{schedule: Schedule, changed: () => void, tell: (news: unknown) => void, deleted?: () => void}} props
 *   `tell` shows what came of it; with `deleted`, it can be deleted
 */
export function ScheduleActions({ schedule: { id, name, paused }, changed, tell, deleted }) {
  async function run() {
    const due = /** @type {DueTime} */ (await post(path`schedules/${id}/run`));
    tell(
      due.run_id
        ? html`${label(name)} has started <a href=${href(["runs", due.run_id])}>a run</a>.`
        : html`${label(name)} has started no run: <${Text} value=${due.detail} limit=${300} />`,
    );
    changed();
  }
  const turn = async () => (await post(`${path`schedules/${id}`}/${paused ? "resume" : "pause"}`), changed());
  const question = `Delete the schedule ${label(name)}? Its runs stay, and a running one continues without a trial.`;
  const erase = async () => (await remove(path`schedules/${id}`), deleted?.());
  return html`<div class="actions">
    ${!paused && html`<${Action} label="Run now" act=${run} />`}
    <${Action} label=${paused ? "Resume" : "Pause"} act=${turn} />
    ${deleted && html`<${Action} label="Delete" kind="danger" confirm=${question} act=${erase} />`}
  </div>`;
}

/** A run; undefined if it was deleted. @param {string} id @param {AbortSignal} aborted */
export const runOf = (id, aborted) =>
  get(path`runs/${id}`, {}, aborted).then(
    (run) => /** @type {Run} */ (run),
    () => undefined,
  );
