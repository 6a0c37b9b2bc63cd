// The overview of a run: results so far, how it learns, and learning curves.

import { compact, dollars, duration, number, percent, whole, wilson } from "../format.js";
import { Chart } from "../parts/chart.js";
import { html } from "../parts/html.js";
import { Loop } from "../parts/loop.js";
import { Progress } from "../parts/status.js";
import { described, evaluationsOf, HeldOutSwitch, kindOf } from "../parts/verdict.js";
import { go, href } from "../router.js";
import { Health } from "./run_health.js";

/** @typedef {import("../api_types").RunOut} Run */
/** @typedef {import("../run_data.js").Iteration} Iteration */

/** @param {import("./run.js").PartProps} props */
export function RunOverview({ data, run, query }) {
  const kind = kindOf(run, query);
  const iterations = data.iterations.value.filter((each) => each.iteration > 0);
  return html`
    <${HeldOutSwitch} run=${run} query=${query} />
    <${Outcome} run=${run} iterations=${iterations} kind=${kind} />
    <${Loop} run=${run} />
    <div class="charts two">
      <${RewardChart} run=${run} iterations=${iterations} />
      <${HeldOutChart} run=${run} kind=${kind} />
      ${iterations.some((each) => each.supervised) && html`<${ImitationChart} iterations=${iterations} />`}
    </div>
    <${Health} iterations=${iterations} />
    <${Spent} run=${run} />`;
}

/** The most important figures. @param {{run: Run, iterations: Iteration[], kind: import("../parts/verdict.js").Kind}} props */
function Outcome({ run, iterations, kind }) {
  const rewards = iterations.map((each) => each.rewards.mean).filter((mean) => mean !== null);
  return html`<dl class="figures-row">
    <${HeldOutFigure} run=${run} kind=${kind} />
    <div><dt>Mean reward</dt>
      <dd>${rewards.length > 0 ? html`${number(rewards[0])} <span aria-label="to">→</span> ${number(rewards[rewards.length - 1])}` : "–"}</dd>
      <dd class="muted">first and latest iteration</dd></div>
    <div><dt>Best checkpoint</dt>
      <dd>${run.best_checkpoint ? html`step ${run.best_checkpoint.step}` : "–"}</dd>
      <dd class="muted">${run.best_checkpoint ? html`validation, sampled: ${percent(run.best_checkpoint.success)} · <a href=${href(["ask"], { run: run.run_id })}>Ask it</a>` : "after the baseline"}</dd></div>
    <div><dt>Rollouts</dt><dd>${whole(run.rollouts)}</dd>
      <dd class="muted"><a href=${href(["runs", run.run_id, "trajectories"])}>Read them</a></dd></div>
    <div><dt>Time</dt><dd>${duration(run.cost.seconds)}</dd><dd class="muted">${remaining(run, iterations)}</dd></div>
    <div><dt>Tokens</dt><dd>${compact(run.tokens.prompt + run.tokens.completion)}</dd>
      <dd class="muted">${compact(run.tokens.completion)} by the agent${run.cost.judge_usd > 0 ? ` · judge ${dollars(run.cost.judge_usd)}` : ""}</dd></div>
  </dl>`;
}

/** The first and the latest held-out success of a kind. @param {{run: Run, kind: import("../parts/verdict.js").Kind}} props */
function HeldOutFigure({ run, kind }) {
  const made = evaluationsOf(run, kind);
  const [first, latest] = [made[0], made.at(-1)];
  if (!first || !latest) return html`<div><dt>Held-out success</dt><dd>–</dd><dd class="muted">after the baseline</dd></div>`;
  const [low, high] = wilson(latest.success, latest.scenarios);
  return html`<div><dt>Held-out success</dt>
    <dd>${percent(first.success)}${latest !== first && html` <span aria-label="to">→</span> ${percent(latest.success)}`}</dd>
    <dd class="muted">${percent(low)} to ${percent(high)} of ${described(kind, latest.scenarios)}</dd></div>`;
}

/** @param {Run} run @param {Iteration[]} iterations */
function remaining(run, iterations) {
  const took = iterations.slice(-5).map((each) => each.timing?.total_s).filter((seconds) => seconds !== undefined);
  const left = run.progress.iterations_total - run.progress.iterations_done;
  if (run.status !== "running" || took.length === 0) return "working time";
  return `about ${duration((took.reduce((sum, each) => sum + each, 0) / took.length) * left)} left`;
}

/** @param {{run: Run, iterations: Iteration[]}} props */
function RewardChart({ run, iterations }) {
  const line = (/** @type {"mean" | "median" | "min" | "max"} */ name) => iterations.map((each) => each.rewards[name]);
  return html`<${Chart}
    title="Reward of the training rollouts"
    note="mean, and the band from the worst to the best rollout. Click to read an iteration."
    x=${iterations.map((each) => each.iteration)}
    lines=${[
      { label: "Best", values: line("max"), faint: true },
      { label: "Worst", values: line("min"), faint: true },
      { label: "Median", values: line("median"), dashed: true, color: "muted" },
      { label: "Mean", values: line("mean") },
    ]}
    bands=${[[0, 1]]}
    sync=${run.run_id}
    pick=${(/** @type {number} */ iteration) => go(["runs", run.run_id, "trajectories"], { iteration })}
  />`;
}

/** @param {{iterations: Iteration[]}} props */
function ImitationChart({ iterations }) {
  const learned = iterations.filter((each) => each.supervised);
  return html`<${Chart}
    title="Loss on the demonstrations"
    note="of the warm start, in nats per token: while it trained, and afterwards on those that are held out"
    x=${learned.map((each) => each.iteration)}
    lines=${[
      { label: "Trained on", values: learned.map((each) => each.supervised?.loss ?? null), dashed: true, color: "muted" },
      { label: "Held out", values: learned.map((each) => each.supervised?.held_out_loss ?? null) },
    ]}
  />`;
}

/** @param {{run: Run, kind: import("../parts/verdict.js").Kind}} props */
function HeldOutChart({ run, kind }) {
  const made = evaluationsOf(run, kind);
  const intervals = made.map((each) => wilson(each.success, each.scenarios));
  return html`<${Chart}
    title="Success on held-out scenarios"
    note=${`${described(kind, made.at(-1)?.scenarios ?? 0)}, with the 95% interval for the number of scenarios (Wilson)`}
    x=${made.map((each) => each.iteration)}
    lines=${[
      { label: "High", values: intervals.map(([, high]) => high), faint: true, color: "good" },
      { label: "Low", values: intervals.map(([low]) => low), faint: true, color: "good" },
      { label: kind.title, values: made.map((each) => each.success), color: "good" },
    ]}
    bands=${[[0, 1]]}
    format=${percent}
    range=${[0, 1]}
  />`;
}

/** Money, tokens and time spent, compared with the budget. @param {{run: Run}} props */
function Spent({ run }) {
  const { budget } = run.request;
  const limits = [
    { name: "Tokens", spent: run.cost.prompt_tokens + run.cost.completion_tokens, most: budget?.max_tokens, format: compact },
    { name: "Minutes", spent: run.cost.seconds / 60, most: budget?.max_minutes, format: (/** @type {number} */ value) => number(value, 1) },
    { name: "Dollars", spent: run.cost.usd ?? 0, most: budget?.max_usd, format: dollars },
  ];
  return html`<section class="card"><h2>Spent</h2>
    <dl class="spent">${limits.map(
      ({ name, spent, most, format }) => html`<div><dt>${name}</dt>
        <dd>${format(spent)}${most != null ? ` of ${format(most)}` : ""}
          ${most != null ? html`<${Progress} done=${spent} total=${most} label=${`${name} of the budget`} />` : html`<span class="muted"> no limit</span>`}</dd></div>`,
    )}
      ${run.cost.wasted_tokens > 0 && html`<div><dt>Without result</dt>
        <dd>${compact(run.cost.wasted_tokens)} <span class="muted">tokens of groups that taught nothing, and of failed or repeated work</span></dd></div>`}
    </dl>
  </section>`;
}
