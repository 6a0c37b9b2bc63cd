// All iterations of a run with all figures.

import { useEffect } from "../vendor/hooks.js";
import { duration, moment, number, percent, whole } from "../format.js";
import { html } from "../parts/html.js";
import { Empty } from "../parts/states.js";
import { LongTable } from "../parts/table.js";
import { href } from "../router.js";

/** @typedef {import("../run_data.js").Iteration} Iteration */

const _NO_SIGNAL = /** @type {Record<string, string>} */ ({
  malformed: "all malformed",
  constant_reward: "one reward for all",
  equal_rewards: "equal rewards",
  judge_silent: "judge silent",
  rollouts_failed: "rollouts failed",
});

/** @param {import("./run.js").PartProps} props */
export function RunIterations({ data, run }) {
  useEffect(data.readAll, [data]);
  const rows = [...data.iterations.value].reverse();
  if (rows.length === 0)
    return html`<${Empty} title="No iteration yet">
      <p>The baseline comes first: it measures the agent before any training.</p><//>`;
  return html`<h2 class="unseen">Iterations</h2>
    <${LongTable} caption="Iterations, newest first" rows=${rows} height=${640} columns=${columns(
      run.run_id,
      rows.some((each) => each.supervised),
    )}
      keyOf="iteration"
      toneOf=${(/** @type {Iteration} */ each) => (each.no_signal ? "warn" : "")} />`;
}

/** How far a step moved the policy, by the backend's measure. @param {Iteration} each */
const kl = (each) => each.train_metrics?.kl_policy_ref ?? each.train_metrics?.step_kl ?? each.train_metrics?.kl_div;

/** @param {string} runId @param {boolean} isSupervised @returns {import("../parts/table.js").Column[]} */
function columns(runId, isSupervised) {
  const link = (/** @type {Iteration} */ each) =>
    html`<a href=${href(["runs", runId, "trajectories"], { iteration: each.iteration })}>
      ${each.iteration === 0 ? "0 (baseline)" : each.iteration}</a>`;
  /**
   * @param {string} title
   * @param {import("../parts/table.js").Column["by"]} by
   * @param {(each: Iteration) => unknown} cell
   */
  const figure = (title, by, cell) => ({ title, by, cell, isNumber: true, width: 62 + title.length * 7 });
  return [
    { title: "Iteration", by: "iteration", cell: link, width: 116 },
    figure("Mean reward", "rewards.mean", (each) => number(each.rewards.mean)),
    figure("Median", "rewards.median", (each) => number(each.rewards.median)),
    figure("Min", "rewards.min", (each) => number(each.rewards.min)),
    figure("Max", "rewards.max", (each) => number(each.rewards.max)),
    figure("Success", "success", (each) => percent(each.success)),
    figure("Malformed", "malformed", (each) => percent(each.malformed)),
    figure("Loss", "train_metrics.loss", (each) => number(each.train_metrics?.loss, 4)),
    ...(isSupervised
      ? [figure("Held-out loss", "supervised.held_out_loss", (each) => number(each.supervised?.held_out_loss, 4))]
      : []),
    figure("KL", kl, (each) => number(kl(each), 4)),
    figure("Entropy", "train_metrics.entropy", (each) => number(each.train_metrics?.entropy, 3)),
    figure("Grad norm", "train_metrics.grad_norm", (each) => number(each.train_metrics?.grad_norm, 3)),
    figure("Staleness", "staleness", (each) => whole(each.staleness)),
    figure("Failed", "failed_rollouts", (each) => whole(each.failed_rollouts)),
    { title: "Without signal", cell: skipped, width: 190 },
    figure("Seconds", "timing.total_s", (each) => duration(each.timing?.total_s)),
    { title: "Saved", by: "finished_at", cell: (each) => moment(each.finished_at), width: 190 },
  ];
}

/** @param {Iteration} each */
function skipped(each) {
  if (each.no_signal) return `all: ${_NO_SIGNAL[each.no_signal] ?? each.no_signal}`;
  const counts = Object.values(each.skipped_groups ?? {}).reduce((sum, count) => sum + count, 0);
  return counts ? `${counts} of the groups` : "";
}
