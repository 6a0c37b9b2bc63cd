// Training health: the figures that an expert checks first, each as a small chart.

import { duration, number, percent, whole } from "../format.js";
import { useSignal } from "../vendor/signals.js";
import { lineOf } from "../parts/baseline.js";
import { Chart } from "../parts/chart.js";
import { html } from "../parts/html.js";

/** @typedef {import("../run_data.js").Iteration} Iteration */

/** @type {{title: string, note: string, value: (each: Iteration) => number | null | undefined, format?: (value: any) => string, range?: [number, number], fromZero?: boolean, color?: string}[]} */
const _FIGURES = [
  { title: "Loss", note: "of the policy gradient", value: (each) => each.train_metrics?.loss },
  { title: "KL divergence", note: "how far a step moved the policy", value: kl },
  {
    title: "Entropy",
    note: "how undecided the agent is; near 0 it no longer explores",
    value: (each) => each.train_metrics?.entropy,
  },
  { title: "Gradient norm", note: "spikes mean unstable steps", value: (each) => each.train_metrics?.grad_norm },
  {
    title: "Groups without signal",
    note: "all rewards alike, so nothing to learn from",
    value: (each) => each.skipped_groups && Object.values(each.skipped_groups).reduce((sum, count) => sum + count, 0),
    format: whole,
    fromZero: true,
    color: "warn",
  },
  {
    title: "Malformed calls",
    note: "share of rollouts that ended in a reply that is no valid tool call",
    value: (each) => each.malformed,
    format: percent,
    range: [0, 1],
    color: "bad",
  },
];
const _PHASES = [
  { name: "rollout_s", title: "Roll out", color: "accent" },
  { name: "judge_s", title: "Judge", color: "warn" },
  { name: "train_s", title: "Train", color: "good" },
  { name: "evaluate_s", title: "Evaluate", color: "muted" },
];

/** How far a step moved the policy, by the backend's measure. @param {Iteration} each */
export function kl(each) {
  return each.train_metrics?.kl_policy_ref ?? each.train_metrics?.step_kl ?? each.train_metrics?.kl_div;
}

/** @param {{iterations: Iteration[], baseline: import("../parts/baseline.js").Baseline | undefined}} props */
export function Health({ iterations, baseline }) {
  const x = iterations.map((each) => each.iteration);
  const has = (/** @type {(each: Iteration) => unknown} */ value) => iterations.some((each) => value(each) != null);
  const cursor = useSignal(/** @type {number | null} */ (null));
  return html`<section aria-labelledby="health">
    <h2 id="health">Health of the training</h2>
    <div class="charts three">
      ${_FIGURES
        .filter(({ value }) => has(value))
        .map(
          ({ title, note, value, format, range, fromZero, color }) => html`<${Chart}
          key=${title} title=${title} note=${note} x=${x} height=${150} cursor=${cursor}
          lines=${[{ label: title, values: iterations.map((each) => value(each) ?? null), color }]} thin=${lineOf(baseline, value)}
          format=${format ?? ((/** @type {number} */ figure) => number(figure, 3))} range=${range} fromZero=${fromZero}
        />`,
        )}
      ${
        has((each) => each.timing) &&
        html`<${Chart} title="Seconds per phase" note="of each iteration" x=${x} height=${150} cursor=${cursor} format=${duration} fromZero thin=${baseline && { ...lineOf(baseline, (each) => each.timing?.total_s), label: `${baseline.name}, all phases` }}
        lines=${_PHASES.map(({ name, title, color }) => ({ label: title, color, values: iterations.map((each) => each.timing?.[name] ?? null) }))} />`
      }
      ${
        has((each) => each.timing?.completion_tokens) &&
        html`<${Chart} title="Tokens" note="that the agent generated" x=${x} height=${150} cursor=${cursor} format=${whole} fromZero
        lines=${[{ label: "Tokens", values: iterations.map((each) => each.timing?.completion_tokens ?? null) }]} thin=${lineOf(baseline, (each) => each.timing?.completion_tokens)} />`
      }
      ${
        has((each) => each.train_metrics?.learning_rate) &&
        html`<${Chart} title="Learning rate" note="of each step" x=${x} height=${150} cursor=${cursor}
        format=${(/** @type {number | null} */ value) => (value === null || value === undefined ? "–" : value.toPrecision(2))}
        lines=${[{ label: "Learning rate", values: iterations.map((each) => each.train_metrics?.learning_rate ?? null) }]} thin=${lineOf(baseline, (each) => each.train_metrics?.learning_rate)} />`
      }
    </div>
  </section>`;
}
