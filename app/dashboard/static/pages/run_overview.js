// The overview of a run: its learning curves, the most important figures, what it costs, and the health of its
// training.

import { useEffect, useRef } from "../vendor/hooks.js";
import { get, path } from "../api.js";
import { compact, counted, dollars, duration, number, percent, signed, whole, wilson } from "../format.js";
import { lineOf } from "../parts/baseline.js";
import { Chart } from "../parts/chart.js";
import { EngineStrip } from "../parts/engine_strip.js";
import { HeatStrip } from "../parts/heat_strip.js";
import { html } from "../parts/html.js";
import { Loop } from "../parts/loop.js";
import { useLoaded } from "../parts/states.js";
import { Progress } from "../parts/status.js";
import { label, visible } from "../parts/text.js";
import { described, evaluationsOf, HeldOutSwitch, kindOf, kindsOf, onSameScenarios } from "../parts/verdict.js";
import { go, href } from "../router.js";
import { ENDED } from "../run_data.js";

/** @typedef {import("../api_types").RunOut} Run */
/** @typedef {import("../run_data.js").Iteration} Iteration */
/** @typedef {import("../parts/verdict.js").Kind} Kind */
/** @typedef {import("../parts/baseline.js").Baseline} Baseline */

const _CHART_HEIGHT = 210;

/** @param {import("./run.js").PartProps} props */
export function RunOverview({ data, run, query, baseline }) {
  useEffect(data.readAll, [data]);
  const kind = kindOf(run, query);
  const iterations = data.iterations.value.filter((each) => each.iteration > 0);
  const isOpen = !ENDED.has(run.status); // what has ended gets no more data
  return html`
    <${Loop} run=${run} remaining=${remaining(run)} />
    <${HeldOutSwitch} run=${run} query=${query} />
    <div class="charts two">
      ${
        (isOpen || run.evaluations.length > 0) && html`<${HeldOutChart} run=${run} kind=${kind} baseline=${baseline} />`
      }
      ${
        (isOpen || iterations.some((each) => each.rewards.mean !== null)) &&
        html`<${RewardStrip} run=${run} iterations=${iterations} baseline=${baseline} />`
      }
    </div>
    ${run.status === "running" && run.on_engine && html`<${EngineStrip} />`}
    <${Outcome} run=${run} iterations=${iterations} kind=${kind} />
    ${
      isOpen &&
      run.forecast &&
      html`<section class="card">
        <h2>Forecast</h2>
        ${run.forecast.text.map((line) => html`<p>${line}</p>`)}
      </section>`
    }
    <${Rejudged} run=${run} />
    ${
      iterations.some((each) => each.supervised) &&
      html`<${ImitationChart} iterations=${iterations} baseline=${baseline} />`
    }
    ${
      iterations.length > 0 &&
      html`<p class="muted">Health of the training: loss, KL, entropy, gradient${" "}
        norm, times and any other figure as charts
        under <a href=${href(["runs", run.run_id, "metrics"])}>Metrics</a>.</p>`
    }
    <${Spent} run=${run} />`;
}

/** The most important figures. @param {{run: Run, iterations: Iteration[], kind: Kind}} props */
function Outcome({ run, iterations, kind }) {
  const rewards = iterations.map((each) => each.rewards.mean).filter((mean) => mean !== null);
  return html`<dl class="figures-row">
    <${HeldOutFigure} run=${run} kind=${kind} />
    <div><dt>Mean reward</dt>
      <dd>${
        rewards.length > 0
          ? html`${number(rewards[0])} <span aria-label="to">→</span> ${number(rewards[rewards.length - 1])}`
          : "–"
      }</dd>
      <dd class="muted">first and latest iteration</dd></div>
    <div><dt>Best checkpoint</dt>
      <dd>${run.best_checkpoint ? html`step ${run.best_checkpoint.step}` : "–"}</dd>
      <dd class="muted">${
        run.best_checkpoint
          ? html`validation, sampled: ${percent(run.best_checkpoint.success)} ·${" "}
            <a href=${href(["ask"], { run: run.run_id })}>Ask it</a>`
          : "after the baseline"
      }</dd></div>
    <div><dt>Rollouts</dt><dd>${whole(run.rollouts)}</dd>
      <dd class="muted"><a href=${href(["runs", run.run_id, "trajectories"])}>Read them</a></dd></div>
    <${Cost} run=${run} />
    <div><dt>Tokens</dt><dd>${compact(run.cost.prompt_tokens + run.cost.completion_tokens)}</dd>
      <dd class="muted">${compact(run.cost.completion_tokens)} generated</dd></div>
  </dl>`;
}

/**
 * What the run cost, what it gained for that, and the parts of the sum; how long it took if no price is known.
 * @param {{run: Run}} props
 */
function Cost({ run: { cost, verdict, progress } }) {
  if (cost.total_usd === null)
    return html`<div><dt>Working time</dt><dd>${duration(cost.seconds)}</dd>
      <dd class="muted">${counted(progress.iterations_done, "iteration")}</dd></div>`;
  return html`<div><dt>Cost</dt><dd>${dollars(cost.total_usd)}</dd>
    <dd class="muted">${verdict.points !== null && `${signed(verdict.points, 0)} points for it; `}${[
      cost.machine_usd !== null &&
        `${dollars(cost.machine_usd)} for ${duration(cost.seconds)} of the machine ` +
          `at ${dollars(cost.machine_price_per_hour)} an hour`,
      cost.usd !== null && `${dollars(cost.usd)} paid for calls`,
    ]
      .filter(Boolean)
      .join(", ")}</dd></div>`;
}

/** What the newest rejudging that has completed says. @param {{run: Run}} props */
function Rejudged({ run }) {
  const state = useLoaded((aborted) => get(path`runs/${run.run_id}/rejudgings`, {}, aborted), [run.run_id]);
  const newest = /** @type {import("../api_types").RejudgingBrief[] | undefined} */ (state.data?.items)?.find(
    (each) => each.text !== null,
  );
  if (!newest) return null;
  return html`<p class="muted"><a href=${href(["runs", run.run_id, "rejudgings", newest.evaluation_id])}>
      Judged again by ${label(newest.judge, 60)}</a>: ${visible(newest.text)}</p>`;
}

/** The first and the latest held-out success of a kind. @param {{run: Run, kind: Kind}} props */
function HeldOutFigure({ run, kind }) {
  const made = evaluationsOf(run, kind);
  const [first, last] = [made[0], made.at(-1)];
  const latest = first && last && onSameScenarios(first, last);
  if (!first || !latest)
    return html`<div><dt>Held-out success</dt><dd>–</dd><dd class="muted">after the baseline</dd></div>`;
  const [low, high] = wilson(latest.success, latest.scenarios);
  return html`<div><dt>Held-out success</dt>
    <dd>${percent(first.success)}${
      latest !== first && html` <span aria-label="to">→</span> ${percent(latest.success)}`
    }</dd>
    <dd class="muted">${percent(low)} to ${percent(high)} of ${described(kind, latest.scenarios)} ·${" "}
      <a href=${href(["runs", run.run_id, "held-out"], { held: kind.name })}>Watch them</a></dd></div>`;
}

/** How long the run will still take. @param {Run} run */
const remaining = ({ status, forecast }) =>
  status === "running" && forecast?.end?.minutes ? `about ${duration(60 * forecast.end.minutes[0])} left` : "";

/** @param {{run: Run, iterations: Iteration[], baseline: Baseline | undefined}} props */
function RewardStrip({ run, iterations, baseline }) {
  const state = useLoaded((aborted) => get(path`runs/${run.run_id}/rewards`, {}, aborted), [run.run_id]);
  const done = run.progress.iterations_done;
  const seen = useRef(done);
  useEffect(() => {
    if (seen.current !== done) state.reload();
    seen.current = done;
  }, [done]);
  return html`<${HeatStrip} rewards=${state.data} height=${_CHART_HEIGHT} total=${run.progress.iterations_total}
    means=${new Map(iterations.map((each) => [each.iteration, each.rewards.mean]))}
    thin=${lineOf(baseline, (each) => each.rewards.mean)} isLoading=${!state.data && !state.error}
    empty=${state.error?.message ?? waiting(run, "No training rollout has been judged yet.")}
    pick=${(/** @type {number} */ iteration) => go(["runs", run.run_id, "trajectories"], { iteration })} />`;
}

/** @param {{iterations: Iteration[], baseline: Baseline | undefined}} props */
function ImitationChart({ iterations, baseline }) {
  const learned = iterations.filter((each) => each.supervised);
  return html`<${Chart}
    title="Loss on the demonstrations"
    note="of the warm start, in nats per token: while it trained, and afterwards on those that are held out"
    x=${learned.map((each) => each.iteration)} thin=${lineOf(baseline, (each) => each.supervised?.held_out_loss)}
    lines=${[
      {
        label: "Trained on",
        values: learned.map((each) => each.supervised?.loss ?? null),
        dashed: true,
        color: "muted",
      },
      { label: "Held out", values: learned.map((each) => each.supervised?.held_out_loss ?? null) },
    ]}
  />`;
}

/**
 * The chosen kind with its intervals and the baseline's, and the other kinds.
 * @param {{run: Run, kind: Kind, baseline: Baseline | undefined}} props
 */
function HeldOutChart({ run, kind, baseline }) {
  const made = evaluationsOf(run, kind);
  const x = [...new Set(run.evaluations.map((each) => each.iteration))].sort((one, other) => one - other);
  const lines = kindsOf(run).map((each) => {
    const found = new Map(evaluationsOf(run, each).map((evaluation) => [evaluation.iteration, evaluation]));
    const values = x.map((iteration) => found.get(iteration)?.success ?? null);
    if (each !== kind) return { label: each.title, values, color: "muted", dashed: true, dots: each.split === "test" };
    const intervals = x.map((iteration) => {
      const evaluation = found.get(iteration);
      return evaluation ? wilson(evaluation.success, evaluation.scenarios) : [null, null];
    });
    return {
      label: each.title,
      values,
      color: run.verdict.state === "got_worse" ? "bad" : "good",
      dots: each.split === "test",
      band: { low: intervals.map(([low]) => low), high: intervals.map(([, high]) => high) },
    };
  });
  const base = made[0]?.iteration === 0 ? made[0] : undefined;
  const [low, high] = base ? wilson(base.success, base.scenarios) : [0, 0];
  return html`<${Chart}
    title="Success on held-out scenarios"
    note=${made.length > 0 ? `${described(kind, made[made.length - 1].scenarios)}; 95% intervals` : ""}
    x=${x} lines=${lines}
    thin=${
      baseline && {
        label: baseline.name,
        values: new Map(evaluationsOf(baseline.run, kind).map((each) => [each.iteration, each.success])),
      }
    }
    format=${percent} range=${[0, 1]}
    span=${[0, Math.max(1, run.progress.iterations_total, baseline?.run.progress.iterations_done ?? 0)]}
    height=${_CHART_HEIGHT}
    reference=${base && { label: `before training ${percent(base.success)}`, value: base.success, low, high }}
    empty=${waiting(run, "No held-out scenario has been evaluated yet.")}
  />`;
}

/** What an empty chart says. @param {Run} run @param {string} otherwise */
function waiting({ status, progress: { iteration, done, total } }, otherwise) {
  if (ENDED.has(status)) return otherwise;
  if (iteration === 0 && total)
    return `The untrained model is being evaluated: ${whole(done)} of ${counted(total, "rollout")}.`;
  return status === "queued" ? "The run has not begun yet." : otherwise;
}

/** Money, tokens and time spent, compared with the budget. @param {{run: Run}} props */
function Spent({ run }) {
  const { budget } = run.request;
  const limits = [
    {
      name: "Tokens",
      spent: run.cost.prompt_tokens + run.cost.completion_tokens,
      most: budget?.max_tokens,
      format: compact,
    },
    {
      name: "Minutes",
      spent: run.cost.seconds / 60,
      most: budget?.max_minutes,
      format: (/** @type {number} */ value) => number(value, 1),
    },
    ...(run.cost.machine_usd === null
      ? []
      : [{ name: "Machine time", spent: run.cost.machine_usd, most: null, format: dollars }]),
    { name: "Paid calls", spent: run.cost.usd ?? 0, most: budget?.max_usd, format: dollars },
  ];
  return html`<section class="card"><h2>Spent</h2>
    <dl class="spent">${limits.map(
      ({ name, spent, most, format }) => html`<div><dt>${name}</dt>
        <dd>${format(spent)}${most != null ? ` of ${format(most)}` : ""}
          ${
            most != null
              ? html`<${Progress} done=${spent} total=${most} label=${`${name} of the budget`} />`
              : html`<span class="muted"> no limit</span>`
          }</dd></div>`,
    )}
      ${
        run.cost.wasted_tokens > 0 &&
        html`<div><dt>Without result</dt>
        <dd>${compact(run.cost.wasted_tokens)} <span class="muted">
            tokens of groups that taught nothing, and of failed or repeated work</span></dd></div>`
      }
    </dl>
  </section>`;
}
