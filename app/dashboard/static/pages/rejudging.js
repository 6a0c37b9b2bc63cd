// A rejudging: what the scores of another judge would have changed in a run, and how noisy that judge is.

import { get, path } from "../api.js";
import { counted, dollars, number, percent, whole } from "../format.js";
import { Chart } from "../parts/chart.js";
import { EvaluationHead, useEvaluation } from "../parts/evaluation.js";
import { html } from "../parts/html.js";
import { RolloutOpinions } from "../parts/opinions.js";
import { Signed } from "../parts/reward.js";
import { Empty, Loaded, useLoaded } from "../parts/states.js";
import { LongTable, Table } from "../parts/table.js";
import { JsonText, label, Text } from "../parts/text.js";
import { Unfold } from "../parts/unfold.js";
import { evaluationsOf, HeldOutSwitch, kindOf, Said } from "../parts/verdict.js";
import { go, href } from "../router.js";
import { taskOf } from "./trajectories.js";

/** @typedef {import("../parts/evaluation.js").Evaluation} Evaluation */
/** @typedef {import("../api_types").RejudgeReport} Report */
/** @typedef {import("../api_types").RewardChanges} Changes */
/** @typedef {import("../api_types").IterationChanges} OfIteration */
/** @typedef {import("../api_types").EvaluationChanges} OfEvaluation */
/** @typedef {import("../api_types").BeforeAndNow} Both */
/** @typedef {import("../api_types").JudgeNoise} JudgeNoise */
/** @typedef {import("../api_types").LargestChange} Change */
/** @typedef {{kinds: string[], first: number, last: number, repeats: number}} Asked */

const _BEFORE = "By the run's scores";
const _NOW = "By the new scores";
const _CHART_HEIGHT = 230;
/** Height of a row of a long table, and of its head and border, in pixels. */
const _ROW = 38;
const _MOST_HEIGHT = 560;

/** @param {{runId: string, id: string, query: URLSearchParams}} props */
export function RejudgingPage({ runId, id, query }) {
  const state = useEvaluation(id);
  return html`<p class="crumbs"><a href=${href([])}>Runs</a> /${" "}
      <a href=${href(["runs", runId])}><code>${label(runId)}</code></a> /${" "}
      <a href=${href(["runs", runId, "rejudgings"])}>Judges</a> / <code>${label(id)}</code></p>
    <${Loaded} state=${state} rows=${6}>${(/** @type {Evaluation} */ found) =>
      found.request.rejudge
        ? html`<${Whole} runId=${runId} evaluation=${found} query=${query} reload=${state.reload} />`
        : html`<${Empty} title="This is not a rejudging">
          <p>It is <a href=${href(["evaluations", id])}>another evaluation</a>.</p><//>`}<//>`;
}

/** @param {{runId: string, evaluation: Evaluation, query: URLSearchParams, reload: () => void}} props */
function Whole({ runId, evaluation, query, reload }) {
  const { request } = evaluation;
  const report = evaluation.report?.rejudge;
  const hasFinding = report && report.conclusive !== false;
  const asked = /** @type {Asked} */ (request.rejudge);
  return html`<${EvaluationHead} evaluation=${evaluation}
      title=${`Judged again by ${label(request.judge.name, 60)}`} reload=${reload} unit="scores"
      question="Delete this rejudging with its scores? The run stays as it is."
      gone=${() => go(["runs", runId, "rejudgings"])} />
    ${report && html`<${Said} text=${report.text} />`}
    <p class="muted">${described(asked)}${
      report?.scored != null &&
      ` ${whole(report.scored)} of ${counted(report.rollouts ?? 0, "rollout")} ` +
        `${report.scored === 1 ? "was" : "were"} scored.`
    }${spent(evaluation)} The run and its own scores stay as they are.</p>
    ${
      hasFinding &&
      html`<${Figures} report=${report} />
      <${Curves} report=${report} query=${query} />
      ${report.iterations.length > 0 && html`<${Iterations} runId=${runId} report=${report} />`}
      ${report.evaluations.length > 0 && html`<${HeldOut} rows=${report.evaluations} />`}
      <${Noise} noise=${report.noise} repeats=${report.repeats} />
      ${report.largest.length > 0 && html`<${Largest} runId=${runId} changes=${report.largest} />`}`
    }
    <details class="card"><summary><h2>Settings</h2></summary>
      <${JsonText} value=${{
        judge: request.judge,
        environment: request.environment,
        rejudge: asked,
        budget: request.budget,
      }} /></details>`;
}

/** What was judged, in words. @param {Asked} asked */
function described({ kinds, first, last, repeats }) {
  const which =
    kinds.length > 1
      ? "Training and held-out rollouts"
      : kinds[0] === "train"
        ? "Training rollouts"
        : "Held-out rollouts";
  const from = Math.max(first, kinds.includes("evaluation") ? 0 : 1); // the baseline has no training rollouts
  const iterations = from === last ? `iteration ${last}` : `iterations ${from} to ${last}`;
  return `${which} of ${iterations}, each judged ${repeats === 1 ? "once" : counted(repeats, "time")}.`;
}

/** What the judge's calls took, in words. @param {Evaluation} evaluation */
function spent({ judge_cost: { requests, usd } }) {
  if (!requests) return "";
  const price = usd === null || usd === undefined ? "an unknown price" : dollars(usd);
  return ` The judge's model was called ${requests === 1 ? "once" : counted(requests, "time")}, for ${price}.`;
}

/** Two figures with an arrow. @param {{of: Both, format?: (value: number | null) => string}} props */
const BothFigures = ({ of: { before, now }, format = number }) =>
  html`<span class="both">${format(before)} <span aria-label="to">→</span> ${format(now)}</span>`;

/** @param {{report: Report}} props */
function Figures({ report: { all: overall, best_step: best } }) {
  if (!overall && !best) return null;
  return html`<dl class="figures-row">
    ${
      overall &&
      html`<div><dt>Advantages</dt><dd>${percent(overall.flipped)}</dd>
        <dd class="muted">change their sign, of ${counted(overall.rollouts, "rollout")}</dd></div>
      <div><dt>Training signal</dt><${Signal} changes=${overall} /></div>
      <div><dt>Correlation</dt><dd>${number(overall.correlation)}</dd>
        <dd class="muted">${
          overall.correlation === null
            ? "of ranks: not defined, since one side does not vary"
            : "of the ranks of rewards"
        }</dd></div>
      <div><dt>Mean reward</dt><dd><${BothFigures} of=${overall.reward} /></dd>
        <dd class="muted">before and now</dd></div>
      <div><dt>Success in training</dt><dd><${BothFigures} of=${overall.success} format=${percent} /></dd>
        <dd class="muted">before and now</dd></div>`
    }
    ${
      best &&
      html`<div><dt>Best checkpoint</dt>
        <dd>${
          best.before === best.now ? `step ${best.now}` : html`step <${BothFigures} of=${best} format=${whole} />`
        }</dd>
      <dd class="muted">${best.before === best.now ? "the same under both" : "would be another one"}</dd></div>`
    }
  </dl>`;
}

/** @param {{changes: Changes}} props */
function Signal({ changes: { gained, lost } }) {
  if (gained && lost)
    return html`<dd>+${whole(gained)} / ${"\u2212"}${whole(lost)}</dd>
      <dd class="muted">groups that gained it and that lost it</dd>`;
  if (lost) return html`<dd>${whole(lost)} lost</dd><dd class="muted">groups that have none now</dd>`;
  return html`<dd>${gained ? `${whole(gained)} gained` : "as before"}</dd>
    <dd class="muted">${gained ? "groups that had none before" : "no group gained or lost it"}</dd>`;
}

/** Training and held-out curves under both scores. @param {{report: Report, query: URLSearchParams}} props */
function Curves({ report, query }) {
  const { iterations, evaluations, first_mattering: mattering } = report;
  const run = /** @type {any} */ ({ evaluations }); // as far as the choice of held-out figures reads one
  const isHeldOut = evaluations.length > 0;
  return html`${isHeldOut && html`<${HeldOutSwitch} run=${run} query=${query} />`}
    <div class=${isHeldOut && iterations.length > 0 ? "charts two" : "charts"}>
      ${
        iterations.length > 0 &&
        html`<${Chart} title="Mean reward in training"
          note="of the same rollouts, by the run's scores and by the new ones" height=${_CHART_HEIGHT}
        x=${iterations.map((each) => each.iteration)} lines=${linesOf(iterations.map((each) => each.reward))}
        mark=${mattering === null ? undefined : { x: mattering, label: "matters from here" }} />`
      }
      ${
        isHeldOut &&
        html`<${HeldOutChart} rows=${/** @type {any} */ (evaluationsOf(run, kindOf(run, query)))}
          kind=${kindOf(run, query)} />`
      }
    </div>`;
}

/**
 * The dashed line is drawn last, so that both are seen where they are equal.
 * @param {Both[]} figures @returns {import("../parts/chart.js").Line[]}
 */
const linesOf = (figures) => [
  { label: _NOW, values: figures.map((each) => each.now), color: "accent" },
  { label: _BEFORE, values: figures.map((each) => each.before), color: "muted", dashed: true },
];

/** @param {{rows: OfEvaluation[], kind: import("../parts/verdict.js").Kind}} props */
function HeldOutChart({ rows, kind }) {
  return html`<${Chart} title="Success on held-out scenarios"
      note=${`${kind.split}, ${kind.mode}: the same rollouts under both`} height=${_CHART_HEIGHT}
    x=${rows.map((each) => each.iteration)} lines=${linesOf(rows.map((each) => each.success))}
    format=${percent} range=${[0, 1]} />`;
}

/** @param {{runId: string, report: Report}} props */
function Iterations({ runId, report: { iterations, first_mattering: mattering } }) {
  const link = (/** @type {OfIteration} */ each) =>
    html`<a href=${href(["runs", runId, "trajectories"], { iteration: each.iteration })}>${each.iteration}</a>`;
  /** @type {import("../parts/table.js").Column<OfIteration>[]} */
  const columns = [
    { title: "Iteration", by: "iteration", cell: link, width: 104 },
    { title: "Signs changed", by: "flipped", isNumber: true, cell: (each) => percent(each.flipped), width: 136 },
    { title: "Gained signal", by: "gained", isNumber: true, cell: (each) => whole(each.gained), width: 132 },
    { title: "Lost signal", by: "lost", isNumber: true, cell: (each) => whole(each.lost), width: 112 },
    { title: "Correlation", by: "correlation", isNumber: true, cell: (each) => number(each.correlation), width: 118 },
    {
      title: "Reward",
      by: "reward.now",
      isNumber: true,
      cell: (each) => html`<${BothFigures} of=${each.reward} />`,
      width: 132,
    },
    {
      title: "Success",
      by: "success.now",
      isNumber: true,
      cell: (each) => html`<${BothFigures} of=${each.success} format=${percent} />`,
      width: 132,
    },
  ];
  return html`<section class="card"><h2>Iterations <span class="muted">reward and success before and now</span></h2>
    <${LongTable} caption="Changes by iteration" rows=${iterations}
      keyOf="iteration" columns=${columns}
      height=${Math.min(_MOST_HEIGHT, (iterations.length + 1) * _ROW + 4)}
      toneOf=${(/** @type {OfIteration} */ each) => (each.iteration === mattering ? "warn" : "")} />
    ${
      mattering !== null &&
      html`<p class="muted small">From iteration ${mattering} on, advantages differ by more than rounding or${" "}
        scaling, so training would have gone another way.</p>`
    }</section>`;
}

/** @param {{rows: OfEvaluation[]}} props */
function HeldOut({ rows }) {
  /** @type {import("../parts/table.js").Column<OfEvaluation>[]} */
  const columns = [
    {
      title: "After iteration",
      by: "iteration",
      cell: (each) => (each.iteration === 0 ? "0 (baseline)" : each.iteration),
    },
    { title: "Scenarios", by: "split", cell: (each) => label(`${each.split}, ${each.mode}`, 60) },
    { title: "Step", by: "step", isNumber: true, cell: (each) => each.step },
    {
      title: "Success",
      by: "success.now",
      isNumber: true,
      cell: (each) => html`<${BothFigures} of=${each.success} format=${percent} />`,
    },
    { title: "Reward", by: "reward.now", isNumber: true, cell: (each) => html`<${BothFigures} of=${each.reward} />` },
  ];
  return html`<details class="card">
    <summary><h2>Held-out evaluations <span class="muted">before and now, ${rows.length} in all</span></h2></summary>
    <${Table} caption="Held-out evaluations before and now" rows=${rows}
      keyOf=${(/** @type {OfEvaluation} */ each) => `${each.iteration} ${each.split} ${each.mode}`}
      columns=${columns} /></details>`;
}

/** @param {{noise: JudgeNoise | null, repeats: number}} props */
function Noise({ noise, repeats }) {
  return html`<section class="card" aria-labelledby="noise">
    <h2 id="noise">The judge's own noise${
      noise && html` <span class="muted">from ${counted(repeats, "verdict")} of each rollout</span>`
    }</h2>
    ${
      noise
        ? html`<dl class="noise">
          <div><dt>Deviation</dt><dd>${number(noise.deviation, 3)}</dd>
            <dd class="muted">How far the scores of one and the same rollout, from 0 to 1,${" "}
              differ: their standard deviation.</dd></div>
          <div><dt>Reliability</dt><dd>${number(noise.icc)}</dd>
            <dd class="muted">${
              noise.icc === null
                ? "Not defined, because all scores are equal."
                : "The intraclass correlation ICC(1): the share of the scores' variance that comes from the " +
                  "rollouts. The rest comes from the judge."
            }</dd></div>
          <div><dt>Noise floor</dt><dd>${percent(noise.floor)}</dd>
            <dd class="muted">${
              noise.floor === null
                ? "Not known, because no training group was judged twice."
                : "The share of advantages whose sign differs between two verdicts of this judge. " +
                  "Fewer changes than that are noise."
            }</dd></div>
        </dl>`
        : html`<p class="muted">Unknown, because each rollout was judged once. With two or more repeats, the${" "}
          report says how far the judge differs from itself.</p>`
    }
  </section>`;
}

/** @param {{runId: string, changes: Change[]}} props */
function Largest({ runId, changes }) {
  // A rollout's task helps to recognize it, but its page may be gone.
  const tasks = useLoaded(
    (aborted) =>
      Promise.all(
        changes.map((each) => get(path`trajectories/${each.trajectory_id}`, {}, aborted).then(taskOf, () => "")),
      ),
    [changes.map((each) => each.trajectory_id).join()],
  );
  return html`<section class="card"><h2>Largest changes${" "}
      <span class="muted">training rollouts whose reward changes most, because the judges disagree</span></h2>
    <ol class="changes">${changes.map(
      (each, index) => html`<li key=${each.trajectory_id}>
      <div><p><a href=${href(["runs", runId, "trajectories", each.trajectory_id])}>
          ${label(tasks.data?.[index] || `Rollout ${each.trajectory_id}`, 200)}</a></p>
      <dl class="change">
        <div><dt>Iteration</dt><dd>${each.iteration}</dd></div>
        <div><dt>Reward</dt><dd><${BothFigures} of=${each.reward} /></dd></div>
        <div><dt>Advantage before</dt><dd><${Signed} value=${each.advantage.before} /></dd></div>
        <div><dt>Advantage now</dt><dd><${Signed} value=${each.advantage.now} /></dd></div>
      </dl></div>
      <dl class="both-texts">${["The run's judge", "The new judge"].map(
        (title, side) => html`<div><dt>${title}</dt>
        <dd>${
          each.explanations[side]
            ? html`<${Text} value=${each.explanations[side]} limit=${600} />`
            : html`<span class="muted">gave no explanation</span>`
        }</dd></div>`,
      )}</dl>
      <div class="opine"><${Unfold} title="What do you think?">
          ${() => html`<${RolloutOpinions} runId=${runId} id=${each.trajectory_id} />`}<//></div>
    </li>`,
    )}</ol></section>`;
}
