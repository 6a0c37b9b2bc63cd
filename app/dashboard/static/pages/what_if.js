// A what-if: how continuations of a recorded rollout from one of its turns ended, next to the rollout itself.

import { useEffect } from "../vendor/hooks.js";
import { all, get, path } from "../api.js";
import { counted, ending, number, percent } from "../format.js";
import { EvaluationHead, isOpen, Share, useEvaluation } from "../parts/evaluation.js";
import { html } from "../parts/html.js";
import { BothTexts } from "../parts/refusal.js";
import { Columns, folded, Pages } from "../parts/side_by_side.js";
import { Loaded, Loading, useLoaded } from "../parts/states.js";
import { LongTable, Table } from "../parts/table.js";
import { label, Text, visible } from "../parts/text.js";
import { Said } from "../parts/verdict.js";
import { go, href, refine } from "../router.js";
import { taskOf } from "./trajectories.js";
import { Strip, useWhatIfs, whatIfTitle } from "./turn_values.js";
import { messageTitle } from "./what_if_form.js";

/** @typedef {import("../api_types").TrajectoryOut} Trajectory */
/** @typedef {import("../api_types").TrajectoryBrief} Brief */
/** @typedef {import("../api_types").WhatIfReport} Report */
/** @typedef {import("../api_types").Continued} Continued */
/** @typedef {import("../api_types").NextAction} NextAction */
/** @typedef {import("../parts/evaluation.js").Evaluation} Evaluation */
/** @typedef {{turns: number[], search: string | null, edit: {content: string, message: number | null} | null}} Asked */

/** Number of columns next to the rollout itself. */
const _AT_ONCE = 6;
/** Maximum number of continuations to read. */
const _MOST = 64;

/** The address of a rollout's page. @param {Trajectory} trajectory */
const addressOf = ({ id, run_id: run }) => href(run ? ["runs", run, "trajectories", id] : ["trajectories", id]);

/** @param {{of: string, id: string, query: URLSearchParams}} props `of`: id of the rollout's trajectory */
export function WhatIfPage({ of, id, query }) {
  const original = useLoaded((aborted) => get(path`trajectories/${of}`, {}, aborted), [of]);
  const state = useEvaluation(id);
  const both = {
    data: original.data && state.data,
    error: original.error ?? state.error,
    reload: () => (original.reload(), state.reload()),
  };
  return html`<p class="crumbs"><a href=${original.data ? addressOf(original.data) : href(["trajectories", of])}>
        Trajectory</a> / what-if <code>${label(id)}</code></p>
    <${Loaded} state=${both}
      rows=${6}>${() =>
        html`<${Whole} original=${original.data} evaluation=${/** @type {Evaluation} */ (state.data)}
          reload=${state.reload} query=${query} />`}<//>`;
}

/** @param {{original: Trajectory, evaluation: Evaluation, reload: () => void, query: URLSearchParams}} props */
function Whole({ original, evaluation, reload, query }) {
  const asked = /** @type {Asked} */ (evaluation.request.what_if);
  const report = evaluation.report?.what_if;
  const title = whatIfTitle({ ...asked, edited: asked.edit !== null });
  return html`<${EvaluationHead} evaluation=${evaluation}
      title=${`What if: ${title[0].toLowerCase()}${title.slice(1)}`} reload=${reload} unit="continuations"
      question="Delete this what-if with its continuations?" gone=${() => go(["trajectories", original.id])} />
    <p class="task"><${Text} value=${taskOf(original)} limit=${300} /></p>
    ${report && !asked.search && html`<${Said} text=${outcome(report)} />`}
    ${asked.search && html`<${Found} id=${original.id} done=${evaluation.done} />`}
    ${asked.edit && html`<${Changed} original=${original} edit=${asked.edit} />`}
    ${report && html`<${Figures} report=${report} /><${Actions} report=${report} />`}
    ${
      evaluation.done > 0 &&
      html`<${Continuations} original=${original} evaluation=${evaluation} asked=${asked} query=${query} />`
    }`;
}

/** One sentence that says how continuations and the rollout ended. @param {Report} report */
function outcome({ continuations, original }) {
  const several = continuations.length > 1;
  const parts = continuations.map(({ label: model, count, next, success }) => {
    if (!success) return `${several ? `${label(model, 60)}: ` : ""}no continuation was judged`;
    const succeeded = next.reduce((sum, each) => sum + each.successes, 0);
    const interval = `[${percent(success.low)}, ${percent(success.high)}]`;
    const verb = count === 1 ? "succeeds" : "succeed";
    const who = several ? `${label(model, 60)}: ` : "";
    return `${who}${succeeded} of ${counted(count, "continuation")} ${verb} ${interval}`;
  });
  const own =
    original.success === null
      ? "whether the rollout itself succeeded is not known"
      : `the rollout itself ${original.success ? "succeeded" : "failed"}`;
  return `${[...parts, own].join("; ")}.`;
}

/** What a search has found so far. @param {{id: string, done: number}} props */
function Found({ id, done }) {
  const state = useWhatIfs(id);
  if (!state.data) return null;
  const { values } = state.data;
  return html`<${Said} text=${values.text} />
    ${
      done > 0 &&
      html`<section class="card"><h2>Chance of success before each turn <span class="muted">
          by all unedited continuations of this rollout</span></h2><${Strip} values=${values} /></section>`
    }`;
}

/** @param {{original: Trajectory, edit: NonNullable<Asked["edit"]>}} props */
function Changed({ original, edit: { message, content } }) {
  if (message === null)
    return html`<section class="card"><h2>Added: a message of the user</h2>
      <${Text} as="p" value=${content} limit=${1500} /></section>`;
  const isTool = original.messages[message]?.role === "tool";
  return html`<section class="card"><h2>Changed: ${messageTitle(original, message)}</h2>
    <${BothTexts} titles=${["Recorded", "Shown to the model"]}
      texts=${[original.messages[message]?.content ?? null, content]} />
    ${isTool && html`<p class="muted">This changes what the model reads, and not the world.</p>`}</section>`;
}

/** @param {{report: Report}} props */
function Figures({ report }) {
  const [turns, models] = [
    new Set(report.continuations.map((each) => each.turn)).size,
    new Set(report.continuations.map((each) => each.label)).size,
  ];
  /** @type {(false | import("../parts/table.js").Column<Continued>)[]} */
  const offered = [
    turns > 1 && { title: "From turn", by: "turn", isNumber: true, cell: (each) => each.turn },
    (models > 1 || turns === 1) && {
      title: "Model",
      by: "label",
      cell: (each) => html`<strong>${label(each.label)}</strong>`,
    },
    { title: "Success", by: "success.mean", cell: (each) => html`<${Share} interval=${each.success} />` },
    { title: "Reward", by: "reward", isNumber: true, cell: (each) => number(each.reward) },
    { title: "Turns", by: "turns", isNumber: true, cell: (each) => number(each.turns, 1) },
    { title: "Judged", by: "count", isNumber: true, cell: (each) => each.count },
  ];
  const columns = offered.filter((each) => each !== false);
  const { original, prefix } = report;
  return html`<section class="card"><h2>Figures <span class="muted">means, with 95% intervals of success</span></h2>
    <${Table} caption="Figures by turn and model" rows=${report.continuations}
      keyOf=${(/** @type {Continued} */ each) => `${each.turn} ${each.label}`} columns=${columns} />
    <p class="muted">The rollout itself: ${
      original.success === null ? "success not known" : original.success ? "success" : "no success"
    }, reward ${number(original.reward)}, ${counted(original.turns, "turn")}.
      ${
        prefix === "exact"
          ? " Models continue the exact tokens that were recorded."
          : " Models continue tokens made from the recorded text, because the recorded tokens are not kept."
      }</p>
  </section>`;
}

/** Continuations by what they did first. @param {{report: Report}} props */
function Actions({ report: { continuations, original } }) {
  const isOriginalSeen = continuations.some(({ next }) => next.some((each) => each.is_original));
  const [turns, models] = [
    continuations.map((each) => `Turn ${each.turn}`),
    continuations.map((each) => label(each.label, 80)),
  ].map((each) => (new Set(each).size > 1 ? each : []));
  return html`<section class="card"><h2>What was done next</h2>
    ${continuations.map(
      ({ turn, label: model, next, count }, index) => html`<div key=${`${turn} ${model}`} class="next">
      ${continuations.length > 1 && html`<h3>${[turns[index], models[index]].filter(Boolean).join(", ")}</h3>`}
      <ul aria-label=${`Next actions of turn ${turn} by ${label(model, 80)}`}>
        ${next.map((each) => html`<${Next} next=${each} of=${count} />`)}</ul></div>`,
    )}
    ${
      !isOriginalSeen &&
      original.next &&
      html`<p class="muted">The rollout itself did something else:${" "}
        <code><${Text} value=${original.next} limit=${300} /></code></p>`
    }
  </section>`;
}

/** @param {{next: NextAction, of: number}} props */
function Next({ next: { action, count, successes, is_original: isOriginal }, of }) {
  const wide = (/** @type {number} */ part) => ({ width: `${(100 * part) / of}%` });
  return html`<li><p class="call"><${Text} value=${action} limit=${300} /></p>
    <span class="next-bar" aria-hidden="true"><span class="did" style=${wide(successes)}></span>
      <span class="failed" style=${wide(count - successes)}></span></span>
    <span><strong>${count === 1 ? "Once" : counted(count, "time")}</strong>,${" "}
      ${ended(successes, count)}${isOriginal && "; as the rollout did"}</span></li>`;
}

/** How many of several continuations succeed, in words. @param {number} successes @param {number} of */
function ended(successes, of) {
  if (of === 1) return successes === 1 ? "it succeeds" : "it fails";
  if (successes === 0 || successes === of) return successes === 0 ? "none succeeds" : "all succeed";
  return `${successes} ${successes === 1 ? "succeeds" : "succeed"}`;
}

/** @param {{original: Trajectory, evaluation: Evaluation, asked: Asked, query: URLSearchParams}} props */
function Continuations({ original, evaluation, asked, query }) {
  const { evaluation_id: id, done } = evaluation;
  const listed = useLoaded((aborted) => all(path`evaluations/${id}/trajectories`, {}, { aborted, most: 5000 }), [id]);
  useEffect(() => {
    if (listed.data) listed.reload(); // unlike a dependency, this keeps the old list on the page meanwhile
  }, [done]);
  if (listed.error || !listed.data) return html`<${Loaded} state=${listed} rows=${3}>${() => null}<//>`;
  const rows = /** @type {Brief[]} */ (listed.data);
  const to = (/** @type {{id: string}} */ each) => href(["trajectories", original.id, "what-if", id, each.id]);
  return html`
    ${
      !asked.search &&
      !isOpen(evaluation) &&
      html`<${Beside} original=${original} evaluation=${evaluation} rows=${rows}
        turn=${asked.turns[0]} to=${to} query=${query} />`
    }
    <details class="card" open=${isOpen(evaluation) || asked.search !== null}>
      <summary><h2>All continuations <span class="muted">${rows.length}</span></h2></summary>
      <${LongTable} caption="Continuations" rows=${rows} keyOf="id" height=${420}
        columns=${columns(evaluation, to)} /></details>`;
}

/**
 * The name of a continuation's model in the what-if.
 * @param {Evaluation} evaluation @param {{model: string, step: number | null}} made
 */
const modelOf = ({ report, models }, { model, step }) =>
  report?.models.find((each) => each.model === model && each.step === step)?.label ??
  (models.length === 1 ? models[0] : `${model}${step === null ? "" : `@${step}`}`);

/**
 * @param {Evaluation} evaluation @param {(each: Brief) => string} to @returns {import("../parts/table.js").Column[]}
 */
const columns = (evaluation, to) => [
  {
    title: "Ended",
    by: "outcome.finish",
    cell: (each) => html`<a href=${to(each)}>${visible(ending(each)) || "open"}</a>`,
    width: 130,
  },
  {
    title: "Success",
    by: "success",
    cell: (each) => (each.success === null ? "" : each.success ? html`<span class="good">✓ yes</span>` : "✗ no"),
    width: 104,
  },
  { title: "Reward", by: "reward", isNumber: true, cell: (each) => number(each.reward), width: 100 },
  { title: "Turns", by: "turns", isNumber: true, cell: (each) => each.turns, width: 90 },
  {
    title: "Model",
    by: (each) => modelOf(evaluation, each),
    cell: (each) => label(modelOf(evaluation, each), 60),
    width: 200,
  },
];

/**
 * @param {{original: Trajectory, evaluation: Evaluation, rows: Brief[], turn: number,
 *   to: (each: {id: string}) => string, query: URLSearchParams}} props
 */
function Beside({ original, evaluation, rows, turn, to, query }) {
  const state = useLoaded(
    (aborted) =>
      Promise.all(
        rows
          .slice(0, _MOST)
          .map((each) => /** @type {Promise<Trajectory>} */ (get(path`trajectories/${each.id}`, {}, aborted))),
      ),
    [rows.map((each) => each.id).join()],
  );
  if (!state.data)
    return state.error ? html`<${Loaded} state=${state}>${() => null}<//>` : html`<${Loading} rows=${4} />`;
  const acts = folded(state.data, (each) => modelOf(evaluation, each));
  const from = Number(query.get("from") ?? 0);
  const shown = acts.slice(from, from + _AT_ONCE);
  const sides = shown.map(({ first, count }, index) => ({
    id: first.id,
    title: `${first.success ? "Success" : "Failure"} ${from + index + 1}`,
    href: to(first),
    note:
      [evaluation.models.length > 1 && label(modelOf(evaluation, first), 40), count > 1 && `${count} × the same`]
        .filter(Boolean)
        .join(", ") || undefined,
  }));
  return html`<section class="card"><h2>The rollout and its continuations</h2>
    <p class="muted">${counted(state.data.length, "continuation")}, ${
      acts.length === 1 ? "all the same." : `${acts.length} different.`
    }${rows.length > _MOST && ` The first ${_MOST} are compared.`}
      <${Pages} from=${from} most=${_AT_ONCE} count=${acts.length}
        move=${(/** @type {number} */ next) => refine({ from: String(next) })} /></p>
    <${Columns} sides=${[{ id: original.id, title: "The rollout", href: addressOf(original) }, ...sides]}
      found=${[original, ...shown.map((act) => act.first)]} replayed=${turn - 1} /></section>`;
}
