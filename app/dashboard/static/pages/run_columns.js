// The columns of the table of runs: figures, and settings by their paths. An entry is a run, or the newest of several
// that differ only in their seed.

import { ago, compact, counted, dollars, duration, inWords, NONE, number, percent, signed, whole } from "../format.js";
import { GainBar } from "../parts/gain.js";
import { html } from "../parts/html.js";
import { EditRun, Star, StarAll, Tags } from "../parts/run_edit.js";
import { idEnd, nameOf, shortNameOf } from "../parts/run_name.js";
import { Sparkline } from "../parts/sparkline.js";
import { Status } from "../parts/status.js";
import { label, visible } from "../parts/text.js";
import { VerdictMark } from "../parts/verdict.js";
import { href } from "../router.js";

/** @typedef {import("../api_types").RunListed & {isMember?: boolean}} Run */
/** @typedef {import("../parts/table.js").Column<Run>} Column */
/**
 * @typedef {object} Table
 * @property {Set<string>} chosen keys of the entries to compare
 * @property {(key: string) => void} choose
 * @property {Set<string>} unfolded hashes of the settings whose runs are shown
 * @property {(hash: string) => void} fold
 * @property {() => unknown} changed
 */

/**
 * Those that can be left out, by their names in the address, and whether they are shown at first.
 * @type {(Column & {name: string, isUsual?: boolean})[]}
 */
export const COLUMNS = [
  { name: "environment", title: "Task", by: "environment", cell: (run) => label(run.environment, 30) },
  { name: "verdict", isUsual: true, title: "Verdict", by: "verdict", cell: verdict },
  { name: "status", isUsual: true, title: "Status", by: "status", cell: status },
  {
    name: "reward",
    isUsual: true,
    title: "Reward",
    cell: (run) => html`<${Sparkline} values=${run.curve ?? []} isBare=${true} />`,
  },
  {
    name: "success",
    isUsual: true,
    title: "Held out",
    by: "success",
    cell: (run) => html`<${GainBar} gain=${gainOf(run)} />`,
  },
  { name: "gain", isUsual: true, title: "Points", by: "gain", isNumber: true, cell: points },
  { name: "iterations", isUsual: true, title: "Done", by: "iterations", isNumber: true, cell: iterations },
  {
    name: "time",
    isUsual: true,
    title: "Time",
    by: "time",
    isNumber: true,
    cell: (run) => duration(mean(run, "time", secondsOf(run))),
  },
  {
    name: "tokens",
    isUsual: true,
    title: "Tokens",
    by: "tokens",
    isNumber: true,
    cell: (run) => compact(mean(run, "tokens", run.tokens.prompt + run.tokens.completion) || null),
  },
  {
    name: "learning_rate",
    title: "Learning rate",
    by: "learning_rate",
    isNumber: true,
    cell: (run) => run.learning_rate ?? NONE,
  },
  { name: "seed", title: "Seed", isNumber: true, cell: (run) => (run.same_settings ? "" : (run.seed ?? NONE)) },
  {
    name: "judge_usd",
    title: "Judge cost",
    by: "judge_usd",
    isNumber: true,
    cell: (run) => dollars(mean(run, "judge_usd", run.judge_usd)),
  },
  { name: "cost", title: "Cost", by: "cost", isNumber: true, cell: (run) => dollars(mean(run, "cost", run.cost_usd)) },
  {
    name: "rollouts",
    title: "Rollouts so far",
    isNumber: true,
    cell: (run) => (run.same_settings ? "" : whole(run.rollouts)),
  },
  {
    name: "best",
    title: "Best",
    isNumber: true,
    cell: (run) => (run.same_settings ? "" : percent(run.best_checkpoint?.success)),
  },
  {
    name: "notes",
    title: "Notes",
    cell: (run) => html`<span class="clip" title=${visible(run.notes)}>${label(run.notes, 60)}</span>`,
  },
  { name: "created", title: "Created", by: "created", isNumber: true, cell: (run) => ago(run.created_at) },
];

/** The settings in which the listed runs differ, as a column that can be left out like the others. */
export const DIFFERING = "differing";
const _MOST_DIFFERING = 4;
/** Those that are shown first if many differ. */
const _FIRST = [
  "environment",
  "model.base_model",
  "learning_rate",
  "judge.name",
  "groups_per_iteration",
  "rollouts_per_group",
  "seed",
  "iterations",
  "max_turns",
];
/** A model's name is the run's, and the project and hashes of documents tell a reader nothing. */
const _HIDDEN = /^model\.(name|project)$|sha256$/;
const _TITLES = /** @type {Record<string, string>} */ ({
  "model.base_model": "Base model",
  "judge.name": "Judge",
  groups_per_iteration: "Groups",
  rollouts_per_group: "Rollouts",
});

/**
 * @param {string | null} names as the address has them @param {boolean} isPriced whether a run has a cost
 * @returns {Set<string>}
 */
export const shownColumns = (names, isPriced) =>
  new Set(
    names === null
      ? [
          ...COLUMNS.filter((each) => each.isUsual || (isPriced && each.name === "cost")).map((each) => each.name),
          DIFFERING,
        ]
      : names.split(","),
  );

/** The paths of the settings of runs, in order. @param {Run[]} runs */
export const pathsOf = (runs) => [...new Set(runs.flatMap((run) => Object.keys(run.settings ?? {})))].sort();

/** What is shown and is none of the columns that all tables offer: settings. @param {Set<string>} shown */
export const settingsIn = (shown) =>
  [...shown].filter((name) => name !== DIFFERING && name !== "none" && !COLUMNS.some((each) => each.name === name));

/** @param {string} path */
export const titleOf = (path) =>
  _TITLES[path] ?? (path[0].toUpperCase() + path.slice(1)).replace(/\.name$/, "").replaceAll(/[._]/g, " ");

/** The names of the columns in which the runs differ, the most telling ones first. @param {Run[]} runs */
function differing(runs) {
  const found = pathsOf(runs).filter((path) => {
    if (_HIDDEN.test(path)) return false;
    const single = path === "seed" ? runs.filter((run) => !run.same_settings) : runs;
    return new Set(single.map((run) => run.settings?.[path]).filter((value) => value !== undefined)).size > 1;
  });
  const rank = (/** @type {string} */ name) => (_FIRST.includes(name) ? _FIRST.indexOf(name) : _FIRST.length);
  return found
    .map((path) => (path === "environment.name" ? "environment" : path))
    .sort((one, other) => rank(one) - rank(other))
    .slice(0, _MOST_DIFFERING);
}

/** @param {string} path @returns {Column} */
const settingColumn = (path) => ({
  title: titleOf(path),
  isNumber: true,
  cell: (run) => label(String(run.settings?.[path] ?? NONE), 30),
});

/** Figures that always stay, and those that give way to all others where there is no room. */
const _ALWAYS = ["status", "success", "gain", "cost"];
const _LEAST = ["reward", "tokens", "time", "iterations", "verdict"];
/** Weight of the setting that tells most; each further one weighs less. */
const _SETTINGS = 1000;

/** @param {string} name */
function weightOf(name) {
  if (_ALWAYS.includes(name)) return undefined;
  return _LEAST.includes(name) ? _LEAST.indexOf(name) : _LEAST.length;
}

/** The columns of a table. @param {Table} table @param {Set<string>} shown @param {Run[]} runs @returns {Column[]} */
export function columnsOf(table, shown, runs) {
  const apart = shown.has(DIFFERING) ? differing(runs) : [];
  const first = [...new Set([...apart, ...settingsIn(shown)])];
  const names = runs.filter((run) => !run.same_settings).map((run) => shortNameOf(run));
  const isRepeated = (/** @type {Run} */ run) =>
    names.indexOf(shortNameOf(run)) !== names.lastIndexOf(shortNameOf(run));
  return [
    {
      title: "Run",
      by: "name",
      isHead: true,
      cell: (run) => (run.same_settings ? several(run, table) : single(run, table, isRepeated(run))),
    },
    ...first.map((name, index) => ({
      ...(COLUMNS.find((each) => each.name === name) ?? settingColumn(name)),
      weight: _SETTINGS - index,
    })),
    ...COLUMNS.filter((each) => shown.has(each.name) && !first.includes(each.name)).map((column) => ({
      ...column,
      weight: weightOf(column.name),
    })),
    { title: "", cell: (run) => !run.same_settings && html`<${EditRun} run=${run} changed=${table.changed} />` },
  ];
}

/** @param {Run} run @param {Table} table @param {boolean} hasId whether others have its name */
function single(run, { chosen, choose, changed }, hasId) {
  const name = nameOf(run);
  const whole = `${visible(run.model.project)}/${visible(run.model.name)}`;
  return html`<span class="run-cell">
    <input type="checkbox" aria-label=${`Compare ${name}`} checked=${chosen.has(run.run_id)}
      onChange=${() => choose(run.run_id)} />
    <${Star} run=${run} changed=${changed} />
    <a class="run-name" href=${href(["runs", run.run_id])}
      title=${`${name} · ${label(whole)} · ${run.run_id}`}>${shortNameOf(run)}</a>
    ${hasId && run.name && html`<code class="muted">${idEnd(run.run_id)}</code>`}
    <${Tags} tags=${run.tags} />
  </span>`;
}

/** What the page that compares takes for all runs of the same settings. @param {Run} run */
const keyOf = (run) => `same:${run.settings_hash}`;

/** @param {Run} run @param {Table} table */
function several(run, { chosen, choose, unfolded, fold, changed }) {
  const isOpen = unfolded.has(run.settings_hash);
  const name = nameOf(run);
  const count = counted(run.same_settings?.runs ?? 0, "run");
  return html`<span class="run-cell">
    <input type="checkbox" aria-label=${`Compare all like ${name}`} checked=${chosen.has(keyOf(run))}
      onChange=${() => choose(keyOf(run))} />
    <${StarAll} run=${run} changed=${changed} />
    <button class="quiet fold" aria-expanded=${isOpen} aria-label=${`${count} like ${name}`}
      onClick=${() => fold(run.settings_hash)}>
      <span aria-hidden="true">${isOpen ? "▾" : "▸"}</span>${count}</button>
    <span class="run-name" title=${`the newest is ${name}`}>${shortNameOf(run).replace(/ · seed \d+$/, "")}</span>
  </span>`;
}

/**
 * The mean over the runs of an entry, or the run's own value.
 * @param {Run} run @param {string} name @param {number | null} own
 */
const mean = (run, name, own) => (run.same_settings ? (run.same_settings.means[name] ?? null) : own);

/** @param {Run} run @returns {import("../parts/gain.js").Gain} */
function gainOf({ same_settings: same, verdict }) {
  if (same)
    return {
      first: same.first,
      latest: same.means.success ?? null,
      points: same.means.gain ?? null,
      low: same.gain_low,
      high: same.gain_high,
    };
  return {
    first: verdict.on?.first.success ?? null,
    latest: (verdict.on?.latest ?? verdict.on?.first)?.success ?? null,
    points: verdict.points,
  };
}

/** @param {Run} run */
function points(run) {
  const { points: mean, low, high } = gainOf(run);
  if (mean === null) return NONE;
  const spread = run.same_settings?.gain_sd;
  const title =
    low != null && high != null
      ? `from ${signed(low, 0)} to ${signed(high, 0)}; standard deviation between the runs`
      : undefined;
  const between = spread != null && html` <span class="muted">± ${number(spread, 0)}</span>`;
  return html`<strong class=${mean > 0 ? "good" : mean < 0 ? "bad-ink" : ""} title=${title}>${signed(mean, 0)}${between}
    </strong>`;
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

/**
 * What most runs of an entry are, and how many.
 * @param {Record<string, number>} counts @param {(name: any) => unknown} mark
 */
function commonest(counts, mark) {
  const found = Object.entries(counts).sort(([, one], [, other]) => other - one);
  const all = found.reduce((sum, [, count]) => sum + count, 0);
  const title = found.map(([name, count]) => `${count} ${inWords(name)}`).join(", ");
  const share = found.length > 1 && html` <span class="muted">${found[0][1]}/${all}</span>`;
  return html`<span title=${title}>${mark(found[0][0])}${share}</span>`;
}

/** @param {Run} run */
function iterations(run) {
  const { iterations_done: done, iterations_total: total } = run.progress;
  return run.same_settings
    ? number(run.same_settings.means.iterations, 0)
    : html`${done}<span class="muted">/${total}</span>`;
}

/** Seconds from a run's start to its end, or so far. @param {Run} run */
function secondsOf(run) {
  if (!run.started_at) return null;
  return ((run.finished_at ? Date.parse(run.finished_at) : Date.now()) - Date.parse(run.started_at)) / 1000;
}
