// What the metrics of runs are called and how they are shown, by their names in the API.

import { compact, dollars, duration, inWords, NONE, number, percent, whole } from "../format.js";
import { label } from "./text.js";

/**
 * @typedef {object} Metric
 * @property {string} title
 * @property {string} [note]
 * @property {(value: number | null | undefined) => string} format
 * @property {[number, number]} [range]
 * @property {boolean} [fromZero]
 * @property {string} [color]
 */

/** Groups in the order in which they are listed, with the beginnings of the names in them. */
const _GROUPS = [
  { title: "Rewards", of: /^(rewards|reward_parts)\./ },
  { title: "Held out", of: /^held_out\./ },
  { title: "Training step", of: /^train_metrics\./ },
  { title: "Rollouts", of: /^(rollouts|outcome)\.|^[^.]+$/ },
  { title: "Judging", of: /^(score_parts|judge)\./ },
  { title: "Groups", of: /^(groups|skipped_groups|lost_rollouts)\./ },
  { title: "Time and tokens", of: /^timing\./ },
  { title: "Cost", of: /^cost\./ },
];
const _REST = "Others";

const _TITLES = /** @type {Record<string, string>} */ ({
  "rewards.mean": "Mean reward",
  "rewards.median": "Median reward",
  "rewards.min": "Lowest reward",
  "rewards.max": "Highest reward",
  "rewards.count": "Number of rewards",
  malformed: "Malformed calls",
  "train_metrics.grad_norm": "Gradient norm",
  "train_metrics.kl_div": "KL divergence",
  "train_metrics.step_kl": "KL divergence of the step",
  "train_metrics.kl_policy_ref": "KL divergence from the reference",
  "skipped_groups.no_signal": "Groups without signal",
  "skipped_groups.unscored": "Groups without scores",
  "timing.total_s": "Seconds of an iteration",
  "timing.rollout_s": "Seconds of rolling out",
  "timing.judge_s": "Seconds of judging",
  "timing.train_s": "Seconds of training",
  "timing.evaluate_s": "Seconds of evaluating",
  "timing.reflect_s": "Seconds of reflecting",
  "timing.ahead_s": "Seconds ahead",
  "timing.prompt_tokens": "Prompt tokens",
  "timing.completion_tokens": "Generated tokens",
  "cost.usd": "Paid calls",
  "cost.machine_usd": "Machine",
});
const _NOTES = /** @type {Record<string, string>} */ ({
  success: "share of the training rollouts that did their task",
  malformed: "share of rollouts that ended in a reply that is no valid tool call",
  staleness: "steps that the policy had taken since it sampled the rollouts",
  "train_metrics.loss": "of the policy gradient",
  "train_metrics.kl_div": "how far a step moved the policy",
  "train_metrics.step_kl": "how far a step moved the policy",
  "train_metrics.kl_policy_ref": "how far the policy is from the reference",
  "train_metrics.entropy": "how undecided the agent is; near 0 it no longer explores",
  "train_metrics.grad_norm": "spikes mean unstable steps",
  "skipped_groups.no_signal": "all rewards alike, so nothing to learn from",
});
/** What the names of a group have before them in a title. */
const _BEFORE = /** @type {Record<string, string>} */ ({
  reward_parts: "Reward: ",
  score_parts: "Score: ",
  outcome: "Outcome: ",
  lost_rollouts: "Lost rollouts: ",
  skipped_groups: "Groups left out: ",
  judge: "Judge: ",
  cost: "Cost: ",
});
const _AFTER = /** @type {Record<string, string>} */ ({
  rollouts: "mean over the training rollouts",
  reward_parts: "mean over the training rollouts that have it",
  score_parts: "mean over the training rollouts that have it",
  outcome: "mean over the training rollouts that have it",
  groups: "sum over the groups",
  judge: "all calls of the iteration",
});
const _COLORS = /** @type {Record<string, string>} */ ({ malformed: "bad", "skipped_groups.no_signal": "warn" });

/** The title of the group that a metric is listed in. @param {string} name */
const groupOf = (name) => _GROUPS.find(({ of }) => of.test(name))?.title ?? _REST;

/** @param {string} name */
export function titleOf(name) {
  if (_TITLES[name]) return _TITLES[name];
  const [first, ...rest] = name.split(".");
  if (first === "held_out") return `Held-out ${inWords(rest.at(-1) ?? "")}, ${rest.slice(0, -1).join(", ")}`;
  const words = label(inWords(rest.join(".") || first).replace(/ s$/, " seconds"), 60);
  return _BEFORE[first] ? _BEFORE[first] + words : words.charAt(0).toUpperCase() + words.slice(1);
}

/** How a metric is drawn. @param {string} name @param {(number | null)[]} values @returns {Metric} */
export function metricOf(name, values) {
  const isShare = /(^|\.)(success|malformed)$|_share$/.test(name);
  const isCount = values.every((value) => value === null || Number.isInteger(value));
  return {
    title: titleOf(name),
    note: _NOTES[name] ?? _AFTER[name.split(".")[0]],
    format: formatOf(name, isShare && !name.startsWith("groups."), isCount),
    range: isShare && !name.startsWith("groups.") ? [0, 1] : undefined,
    fromZero: isCount || /_s$|seconds$|tokens$|usd$/.test(name),
    color: _COLORS[name],
  };
}

/** @param {string} name @param {boolean} isShare @param {boolean} isCount @returns {Metric["format"]} */
function formatOf(name, isShare, isCount) {
  if (isShare) return percent;
  if (/usd$/.test(name)) return dollars;
  if (/_s$|seconds$/.test(name)) return (value) => (value === 0 ? "0 s" : duration(value));
  if (/learning_rate$/.test(name)) return (value) => value?.toExponential(1).replaceAll("-", "\u2212") ?? NONE;
  return (value) => (Math.abs(value ?? 0) >= 1e5 ? compact(value) : isCount ? whole(value) : figure(value));
}

/** Three digits after the point, and none where they would mean nothing. @param {number | null | undefined} value */
const figure = (value) => (Math.abs(value ?? 0) >= 1000 ? whole(value) : number(value, 3));

/**
 * The names that contain a text, by their groups.
 * @param {string[]} names @param {string} text
 * @returns {{title: string, names: string[]}[]}
 */
export function grouped(names, text) {
  const sought = text.trim().toLowerCase();
  const matching = names.filter((name) => `${name} ${titleOf(name)}`.toLowerCase().includes(sought));
  return [..._GROUPS.map(({ title }) => title), _REST]
    .map((title) => ({ title, names: matching.filter((name) => groupOf(name) === title) }))
    .filter((group) => group.names.length > 0);
}

/** Names as one text of the address: a name can have a comma. @param {string[]} names */
export const asText = (names) =>
  names.map((name) => name.replaceAll("%", "%25").replaceAll(",", "%2C")).join(",") || "none";

/** Names of such a text; undefined if the address has none. @param {string | null} text */
export const fromText = (text) =>
  text === null || text === ""
    ? undefined
    : text === "none"
      ? []
      : text.split(",").map((name) => name.replaceAll("%2C", ",").replaceAll("%25", "%"));
