// The columns of the table of runs. An entry is a run, or the newest of several that differ only in their seed.

import { ago, compact, counted, dollars, duration, inWords, NONE, number, signed } from "../format.js";
import { GainBar } from "../parts/gain.js";
import { html } from "../parts/html.js";
import { EditRun, Star, Tags } from "../parts/run_edit.js";
import { nameOf, shortNameOf } from "../parts/run_name.js";
import { Sparkline } from "../parts/sparkline.js";
import { Status } from "../parts/status.js";
import { label, visible } from "../parts/text.js";
import { VerdictMark } from "../parts/verdict.js";
import { href } from "../router.js";

/** @typedef {import("../api_types").RunListed & {isMember?: boolean}} Run */
/** @typedef {import("../parts/table.js").Column} Column */
/**
 * @typedef {object} Table
 * @property {Set<string>} chosen ids of the runs to compare
 * @property {(id: string) => void} choose
 * @property {Set<string>} unfolded hashes of the settings whose runs are shown
 * @property {(hash: string) => void} fold
 * @property {() => unknown} changed
 */

/** Those that can be left out, by their names in the address, and whether they are shown at first. @type {{name: string, isUsual: boolean, column: Column}[]} */
export const COLUMNS = [
  { name: "environment", isUsual: false, column: { title: "Task", by: "environment", cell: (/** @type {Run} */ run) => label(run.environment, 30) } },
  { name: "verdict", isUsual: true, column: { title: "Verdict", by: "verdict", cell: verdict } },
  { name: "status", isUsual: true, column: { title: "Status", by: "status", cell: status } },
  { name: "reward", isUsual: true, column: { title: "Reward", cell: (/** @type {Run} */ run) => html`<${Sparkline} values=${run.curve ?? []} isBare=${true} />` } },
  { name: "success", isUsual: true, column: { title: "Held out", by: "success", cell: (/** @type {Run} */ run) => html`<${GainBar} gain=${gainOf(run)} />` } },
  { name: "gain", isUsual: true, column: { title: "Points", by: "gain", isNumber: true, cell: points } },
  { name: "iterations", isUsual: true, column: { title: "Done", by: "iterations", isNumber: true, cell: iterations } },
  { name: "time", isUsual: true, column: { title: "Time", by: "time", isNumber: true, cell: (/** @type {Run} */ run) => duration(mean(run, "time", secondsOf(run))) } },
  { name: "tokens", isUsual: true, column: { title: "Tokens", by: "tokens", isNumber: true, cell: (/** @type {Run} */ run) => compact(mean(run, "tokens", run.tokens.prompt + run.tokens.completion) || null) } },
  { name: "learning_rate", isUsual: false, column: { title: "Learning rate", by: "learning_rate", isNumber: true, cell: (/** @type {Run} */ run) => run.learning_rate ?? NONE } },
  { name: "seed", isUsual: false, column: { title: "Seed", isNumber: true, cell: (/** @type {Run} */ run) => (run.same_settings ? "" : (run.seed ?? NONE)) } },
  { name: "judge_usd", isUsual: false, column: { title: "Judge", by: "judge_usd", isNumber: true, cell: (/** @type {Run} */ run) => dollars(mean(run, "judge_usd", run.judge_usd)) } },
  { name: "cost", isUsual: false, column: { title: "Cost", by: "cost", isNumber: true, cell: (/** @type {Run} */ run) => dollars(mean(run, "cost", run.cost_usd)) } },
  { name: "notes", isUsual: false, column: { title: "Notes", cell: (/** @type {Run} */ run) => html`<span class="clip" title=${visible(run.notes)}>${label(run.notes, 60)}</span>` } },
  { name: "created", isUsual: false, column: { title: "Created", by: "created", isNumber: true, cell: (/** @type {Run} */ run) => ago(run.created_at) } },
];

/** @param {string | null} names as the address has them @param {boolean} isPriced whether a run has a cost @returns {Set<string>} */
export const shownColumns = (names, isPriced) =>
  new Set(names === null ? COLUMNS.filter((each) => each.isUsual || (isPriced && each.name === "cost")).map((each) => each.name) : names.split(","));

/** The columns of a table. @param {Table} table @param {Set<string>} shown @returns {Column[]} */
export function columnsOf(table, shown) {
  return [
    { title: "Run", by: "name", isHead: true, cell: (/** @type {Run} */ run) => (run.same_settings ? several(run, table) : single(run, table)) },
    ...COLUMNS.filter((each) => shown.has(each.name)).map((each) => each.column),
    { title: "", cell: (/** @type {Run} */ run) => !run.same_settings && html`<${EditRun} run=${run} changed=${table.changed} />` },
  ];
}

/** @param {Run} run @param {Table} table */
function single(run, { chosen, choose, changed }) {
  const name = nameOf(run);
  const whole = `${visible(run.model.project)}/${visible(run.model.name)}`;
  return html`<span class="run-cell">
    <input type="checkbox" aria-label=${`Compare ${name}`} checked=${chosen.has(run.run_id)} onChange=${() => choose(run.run_id)} />
    <${Star} run=${run} changed=${changed} />
    <a class="run-name" href=${href(["runs", run.run_id])} title=${`${name} · ${label(whole)}`}>${shortNameOf(run)}</a>
    <${Tags} tags=${run.tags} />
  </span>`;
}

/** @param {Run} run @param {Table} table */
function several(run, { unfolded, fold }) {
  const isOpen = unfolded.has(run.settings_hash);
  const name = nameOf(run);
  return html`<span class="run-cell">
    <button class="quiet fold" aria-expanded=${isOpen} aria-label=${`${counted(run.same_settings?.runs ?? 0, "run")} like ${name}`} onClick=${() => fold(run.settings_hash)}>
      <span aria-hidden="true">${isOpen ? "▾" : "▸"}</span>${counted(run.same_settings?.runs ?? 0, "run")}</button>
    <span class="run-name" title=${`the newest is ${name}`}>${shortNameOf(run)}</span>
  </span>`;
}

/** The mean over the runs of an entry, or the run's own value. @param {Run} run @param {string} name @param {number | null} own */
const mean = (run, name, own) => (run.same_settings ? (run.same_settings.means[name] ?? null) : own);

/** @param {Run} run @returns {import("../parts/gain.js").Gain} */
function gainOf({ same_settings: same, verdict }) {
  if (same) return { first: same.first, latest: same.means.success ?? null, points: same.means.gain ?? null, low: same.gain_low, high: same.gain_high };
  return { first: verdict.on?.first.success ?? null, latest: (verdict.on?.latest ?? verdict.on?.first)?.success ?? null, points: verdict.points };
}

/** @param {Run} run */
function points(run) {
  const { points: mean, low, high } = gainOf(run);
  if (mean === null) return NONE;
  const spread = run.same_settings?.gain_sd;
  const title = low != null && high != null ? `from ${signed(low, 0)} to ${signed(high, 0)}; standard deviation between the runs` : undefined;
  return html`<strong class=${mean > 0 ? "good" : mean < 0 ? "bad-ink" : ""} title=${title}>${signed(mean, 0)}${spread != null && html` <span class="muted">± ${number(spread, 0)}</span>`}</strong>`;
}

/** @param {Run} run */
function status(run) {
  if (run.same_settings) return commonest(run.same_settings.statuses, (each) => html`<${Status} status=${each} />`);
  return html`<span title=${visible(run.error ?? "").slice(0, 600)}><${Status} status=${run.status} /></span>`;
}

/** @param {Run} run */
function verdict(run) {
  if (run.same_settings) return commonest(run.same_settings.verdicts, (each) => html`<${VerdictMark} state=${each} />`);
  return html`<${VerdictMark} state=${run.verdict.state} text=${run.verdict.text} />`;
}

/** What most runs of an entry are, and how many. @param {Record<string, number>} counts @param {(name: any) => unknown} mark */
function commonest(counts, mark) {
  const found = Object.entries(counts).sort(([, one], [, other]) => other - one);
  const all = found.reduce((sum, [, count]) => sum + count, 0);
  const title = found.map(([name, count]) => `${count} ${inWords(name)}`).join(", ");
  return html`<span title=${title}>${mark(found[0][0])}${found.length > 1 && html` <span class="muted">${found[0][1]}/${all}</span>`}</span>`;
}

/** @param {Run} run */
function iterations(run) {
  const { iterations_done: done, iterations_total: total } = run.progress;
  return run.same_settings ? number(run.same_settings.means.iterations, 0) : html`${done}<span class="muted">/${total}</span>`;
}

/** Seconds from a run's start to its end, or so far. @param {Run} run */
function secondsOf(run) {
  if (!run.started_at) return null;
  return ((run.finished_at ? Date.parse(run.finished_at) : Date.now()) - Date.parse(run.started_at)) / 1000;
}
