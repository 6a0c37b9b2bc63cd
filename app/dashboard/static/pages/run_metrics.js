// All metrics of a run as charts. At first those that an expert checks first: the health of the training.

import { html } from "../parts/html.js";
import { MetricCharts } from "../parts/metric_charts.js";

const _HEALTH = [
  "rewards.mean",
  "success",
  "train_metrics.loss",
  "train_metrics.kl_policy_ref",
  "train_metrics.step_kl",
  "train_metrics.kl_div",
  "train_metrics.entropy",
  "train_metrics.grad_norm",
  "skipped_groups.no_signal",
  "malformed",
  "timing.total_s",
  "timing.completion_tokens",
  "train_metrics.learning_rate",
];

/** @param {import("./run.js").PartProps} props */
export function RunMetrics({ run, query, baseline }) {
  return html`<h2 class="unseen">Metrics</h2>
    <${MetricCharts} entries=${[{ title: "", ids: [run.run_id] }]} baseline=${baseline} query=${query} usual=${_HEALTH}
      version=${run.progress.iterations_done} />`;
}
