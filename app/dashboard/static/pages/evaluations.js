// Evaluations: models compared on the same scenarios, with confidence intervals.

import { useEffect, useState } from "../vendor/hooks.js";
import { all, path, post, url } from "../api.js";
import { ago, compact, counted, duration, inWords, number, percent, signed } from "../format.js";
import { Action } from "../parts/action.js";
import { EvaluationHead, ranged, Share, useEvaluation } from "../parts/evaluation.js";
import { html } from "../parts/html.js";
import { Improve } from "../parts/improve.js";
import { PromptLink } from "../parts/prompt.js";
import { nameOf } from "../parts/run_name.js";
import { Empty, Loaded, useLoaded } from "../parts/states.js";
import { Status } from "../parts/status.js";
import { Table } from "../parts/table.js";
import { JsonText, label, starter, Text } from "../parts/text.js";
import { go, href, replace } from "../router.js";
import { may } from "../session.js";
import { Failures } from "./failures.js";

/** @typedef {import("../api_types").EvaluationBrief} Brief */
/** @typedef {import("../api_types").EvaluationOut} Evaluation */
/** @typedef {import("../api_types").EvaluatedModel} Model */
/** @typedef {import("../api_types").IntervalOut} Interval */

const _PURPOSE = "An evaluation lets models attempt the same scenarios, and says how sure the difference is.";

export function Evaluations() {
  const state = useLoaded((aborted) => all("evaluations", {}, { aborted, most: 400 }), []);
  /** @type {import("../parts/table.js").Column<Brief>[]} */
  const columns = [
    {
      title: "Models",
      cell: (each) =>
        html`<a href=${href(["evaluations", each.evaluation_id])}>${label(each.models.join(" against "), 160)}</a>`,
    },
    { title: "Status", by: "status", cell: (each) => html`<${Status} status=${each.status} />` },
    { title: "Rollouts", by: "total", isNumber: true, cell: (each) => `${each.done} of ${each.total}` },
    { title: "Started by", cell: (each) => starter(each.started_by) },
    { title: "Asked for", by: "created_at", cell: (each) => ago(each.created_at) },
  ];
  return html`<h1>Evaluations</h1><${New} />
    <${Loaded} state=${state}>${(/** @type {Brief[]} */ found) =>
      found.length === 0
        ? html`<${Empty} title="No evaluation yet"><p>${_PURPOSE}</p><//>`
        : html`<section class="card"><h2>All evaluations</h2>
          <${Table} caption="Evaluations, newest first" rows=${found}
            keyOf="evaluation_id" columns=${columns} /></section>`}<//>`;
}

function New() {
  const runs = useLoaded((aborted) => all("runs", { limit: 100 }, { aborted, most: 100 }), []);
  const [run, setRun] = useState("");
  const [scenarios, setScenarios] = useState("32");
  const trained = /** @type {import("../api_types").RunListed[]} */ (runs.data ?? []).filter(
    (each) => each.best_checkpoint,
  );
  const chosen = run || trained[0]?.run_id;
  const start = async () =>
    go(["evaluations", (await post("evaluations", { run_id: chosen, scenarios: Number(scenarios) })).evaluation_id]);
  if (trained.length === 0) return null;
  return html`<details class="card"><summary><h2>Evaluate a run</h2></summary>
    <p class="muted">Its base model against its best checkpoint, on test scenarios that neither has seen.</p>
    <div class="filters">
      <label class="field"><span>Run</span><select value=${chosen}
        onChange=${(/** @type {any} */ event) => setRun(event.target.value)}>
        ${trained.map((each) => html`<option value=${each.run_id}>${nameOf(each)}</option>`)}</select></label>
      <label class="field"><span>Scenarios</span><input inputmode="numeric" value=${scenarios}
        onInput=${(/** @type {any} */ event) => setScenarios(event.target.value)} /></label>
      <${Action} label="Evaluate" kind="primary" act=${start} />
    </div></details>`;
}

/** @param {{id: string}} props */
export function EvaluationPage({ id }) {
  const state = useEvaluation(id);
  const own = state.data && pageOf(state.data);
  useEffect(() => own && replace(own), [own?.join()]);
  return html`<p class="crumbs"><a href=${href(["evaluations"])}>Evaluations</a> / <code>${label(id)}</code></p>
    <${Loaded} state=${state}>${(/** @type {Evaluation} */ found) =>
      !own && html`<${Whole} evaluation=${found} reload=${state.reload} />`}<//>`;
}

/**
 * The address of the page that shows what-ifs or rejudgings; undefined for any other evaluation.
 * @param {Evaluation} evaluation
 */
function pageOf({ evaluation_id: id, request: { what_if: whatIf, rejudge } }) {
  if (whatIf) return ["trajectories", whatIf.trajectory_id, "what-if", id];
  return rejudge ? ["runs", rejudge.run_id, "rejudgings", id] : undefined;
}

/** @param {{evaluation: Evaluation, reload: () => void}} props */
function Whole({ evaluation, reload }) {
  const { evaluation_id: id, report, request } = evaluation;
  const agent = agentOf(request);
  return html`<${EvaluationHead} evaluation=${evaluation} title=${label(evaluation.models.join(" against "), 200)}
      reload=${reload} unit="rollouts" question="Delete this evaluation with its trajectories?"
      gone=${() => go(["evaluations"])}>
      ${report && html`<a class="button" href=${url(path`evaluations/${id}/report`)} download>Report</a>`}
      ${agent && may("write") && html`<${Improve} agent=${agent} />`}<//>
    ${report && html`<${Report} report=${report} />`}
    ${report && !evaluation.pruned.trajectories && html`<${WhereItFails} evaluation=${evaluation} />`}
    <details class="card"><summary><h2>Settings</h2></summary><${JsonText} value=${evaluation.request} /></details>`;
}

/**
 * The last agent of this service in an evaluation, for `POST /improvements`.
 * @param {Record<string, any>} request
 */
function agentOf({ models, environment, agent, judge, max_turns, max_completion_tokens }) {
  const last = models.findLast((/** @type {{kind: string}} */ { kind }) => kind === "trained");
  const base = last && last.step === null && { model: { base_model: last.model } };
  const prompt = last?.prompt?.sha256;
  return (
    last && { environment, agent, judge, max_turns, max_completion_tokens, prompt, ...(base || { from: last.model }) }
  );
}

/** The failures of one of the models, against the first one's. @param {{evaluation: Evaluation}} props */
function WhereItFails({ evaluation: { evaluation_id: evaluation, models } }) {
  const [model, setModel] = useState(models.at(-1));
  const choose = (/** @type {any} */ event) => setModel(event.target.value);
  return html`${
    models.length > 2 &&
    html`<label class="field"><span>Failures of</span><select value=${model} onChange=${choose}>
      ${models.map((each) => html`<option value=${each}>${label(each, 80)}</option>`)}</select></label>`
  }<${Failures} asked=${{ evaluation, model }} />`;
}

/**
 * What a gate decided about two models.
 * @param {{label: string}[]} models @param {{decision: string, error: number}} gate
 */
function decision([first, second], gate) {
  const [before, after] = [label(first.label, 100), label(second.label, 100)];
  return gate.decision === "better"
    ? `${after} is better than ${before}, with an error of at most ${percent(gate.error)}.`
    : `${after} was not shown to be better than ${before}.`;
}

/** @param {{report: NonNullable<Evaluation["report"]>}} props */
function Report({ report }) {
  /** @type {import("../parts/table.js").Column<Model>[]} */
  const columns = [
    {
      title: "Model",
      by: "label",
      cell: (each) =>
        html`<strong>${label(each.label)}</strong><br /><span class="muted">${label(each.model)}</span>${
          each.prompt && html`<br />prompt <${PromptLink} prompt=${each.prompt} />`
        }${
          each.error &&
          html`<br /><span class="bad-ink">No figures: <${Text} value=${each.error} limit=${400} /></span>`
        }`,
    },
    { title: "Success", by: "success.mean", cell: (each) => html`<${Share} interval=${each.success} />` },
    { title: "Against the first", by: "difference.success.mean", cell: (each) => difference(each.difference.success) },
    { title: "Reward", by: "reward.mean", cell: (each) => ranged(each.reward, number) },
    { title: "Turns", by: "turns.mean", cell: (each) => ranged(each.turns, (value) => number(value, 1)) },
    { title: "Tokens", by: "completion_tokens", isNumber: true, cell: (each) => compact(each.completion_tokens) },
    { title: "Seconds", by: "seconds_p50", isNumber: true, cell: (each) => duration(each.seconds_p50) },
    {
      title: "Why not",
      cell: (each) =>
        Object.entries(each.errors)
          .map(([kind, count]) => `${label(inWords(kind), 30)} ${count}`)
          .join(", "),
    },
  ];
  const { scenarios, split, method, trial, gate, models } = report;
  const tasks = counted(scenarios, split === "train" ? "training scenario" : "scenario");
  const means = `means with ${percent(method.level)} intervals (${label(method.name, 60)})`;
  return html`<section class="card">
    <h2>Figures <span class="muted">${tasks}, ${means}</span></h2>
    ${trial && html`<p><strong>The trial: ${trial.decision}</strong> after ${counted(trial.pairs, "scenario")}.</p>`}
    ${
      gate &&
      html`<p><strong>${decision(models, gate)}</strong> ${gate.won} won and ${gate.lost} lost of${" "}
      ${counted(gate.tasks, "scenario")}.</p>`
    }
    <${Table} caption="Figures of each model" rows=${report.models}
      keyOf="label" columns=${columns} /></section>`;
}

/** @param {Interval | null} interval */
function difference(interval) {
  if (!interval) return html`<span class="muted">–</span>`;
  const sure = interval.low > 0 ? "good" : interval.high < 0 ? "bad-ink" : "muted";
  const sign = (/** @type {number} */ share) => signed(100 * share, 0);
  const { mean, low, high } = interval;
  return html`<span class=${sure}>${sign(mean)} points <span class="muted">${sign(low)} to ${sign(high)}</span></span>`;
}
