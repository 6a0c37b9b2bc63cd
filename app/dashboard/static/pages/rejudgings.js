// The judges' part of a run's page: a form that has stored rollouts judged again, and the run's rejudgings.

import { useId, useMemo, useState } from "../vendor/hooks.js";
import { all, ApiError, get, path, post, request, url } from "../api.js";
import { ago, counted, dollars, whole } from "../format.js";
import { Action } from "../parts/action.js";
import { isOpen } from "../parts/evaluation.js";
import { Field } from "../parts/field.js";
import { html } from "../parts/html.js";
import { Refusal } from "../parts/refusal.js";
import { Empty, Loaded, useLoaded, useReload } from "../parts/states.js";
import { Progress, Status } from "../parts/status.js";
import { Table } from "../parts/table.js";
import { label, Text, visible } from "../parts/text.js";
import { go, href } from "../router.js";
import { may } from "../session.js";

/** @typedef {import("../api_types").RunOut} Run */
/** @typedef {import("../api_types").RejudgingAccepted} Plan */
/** @typedef {import("../api_types").RejudgingBrief} Brief */
/**
 * @typedef {{judge: string, settings: string, kinds: string, repeats: string, first: string, last: string,
 *   dollars: string}} Values
 */

/** The rollouts that can be chosen, by their name in the form. @type {Record<string, string[]>} */
const _KINDS = { training: ["train"], "held-out": ["evaluation"], both: ["train", "evaluation"] };
/** The plan is asked for when nothing was typed for so long. */
const _PAUSE_MS = 350;

/** @param {import("./run.js").PartProps} props */
export function RunJudges({ data, run, query }) {
  const state = useLoaded(
    (aborted) => all(path`runs/${run.run_id}/rejudgings`, {}, { aborted, most: 400 }),
    [run.run_id],
  );
  useReload(state, Boolean(state.data?.some(isOpen)));
  if (data.iterations.value.length === 0)
    return html`<${Empty} title="Nothing to judge again yet">
      <p>The baseline comes first: it measures the agent before any training.</p><//>`;
  return html`${may("write") && html`<${JudgeAgain} run=${run} query=${query} />`}
    <${Loaded} state=${state} rows=${2}>${(/** @type {Brief[]} */ found) =>
      found.length > 0 &&
      html`<section class="card"><h2>Rejudgings of this run</h2>
      <${Table} caption="Rejudgings, newest first" rows=${found}
        keyOf="evaluation_id" columns=${columns(run.run_id)} /></section>`}<//>`;
}

/** @param {string} runId @returns {import("../parts/table.js").Column[]} */
const columns = (runId) => [
  {
    title: "Judge",
    by: "judge",
    cell: (each) =>
      html`<a href=${href(["runs", runId, "rejudgings", each.evaluation_id])}>${label(each.judge, 60)}</a>`,
  },
  { title: "Status", by: "status", cell: (each) => html`<${Status} status=${each.status} />` },
  { title: "Repeats", by: "repeats", isNumber: true, cell: (each) => each.repeats },
  {
    title: "Scores",
    by: "done",
    isNumber: true,
    cell: (each) =>
      html`${whole(each.done)} of ${whole(each.total)}${
        isOpen(each) && html`<${Progress} done=${each.done} total=${each.total} label="Progress" />`
      }`,
  },
  { title: "Asked for", by: "created_at", cell: (each) => ago(each.created_at) },
];

/** @param {{run: Run, query: URLSearchParams}} props the address can name the rollouts: `kinds`, `first` and `last` */
function JudgeAgain({ run, query }) {
  const judges = useLoaded((aborted) => get("judges", { run_id: run.run_id }, aborted), [run.run_id]);
  const [values, setValues] = useState(
    /** @type {Values} */ ({
      judge: "",
      settings: "",
      kinds: kindsIn(query),
      repeats: "1",
      first: query.get("first") ?? "",
      last: query.get("last") ?? "",
      dollars: "",
    }),
  );
  const [error, setError] = useState(/** @type {Error | undefined} */ (undefined));
  const [accepted, setAccepted] = useState(/** @type {Plan | undefined} */ (undefined));
  const body = useMemo(() => bodyOf(values), [values]);
  const plan = usePlan(run.run_id, body);
  const refusal = error ?? plan.error;
  const faults = refusal instanceof ApiError ? refusal.errors : [];
  const known = /** @type {import("../api_types").JudgeOut[]} */ (judges.data?.items ?? []);
  const [names, unfit] = [
    known.filter((each) => !each.unfit).map((each) => each.name),
    known.filter((each) => each.unfit),
  ];
  /** @param {keyof Values} name */
  const field = (name) => ({
    value: values[name],
    faults,
    set: (/** @type {string} */ value) => {
      setError(undefined);
      setValues((before) => ({ ...before, [name]: value }));
    },
  });
  async function start() {
    setError(undefined);
    try {
      const started = /** @type {Plan} */ (await post(path`runs/${run.run_id}/rejudge`, body));
      if (started.warnings.length > 0) setAccepted(started);
      else go(pageOf(run, started));
    } catch (failed) {
      setError(/** @type {Error} */ (failed));
      throw failed;
    }
  }
  const id = useId();
  return html`<section class="card judge-again" aria-labelledby=${id}>
    <h2 id=${id}>Judge again</h2>
    <p class="muted">Another judge, or the same one, scores stored rollouts of this run. The report says which${" "}
      advantages would have changed, from which iteration that matters, and how noisy the judge is. The${" "}
      run and its scores stay as they are.</p>
    <div class="fields">
      <${Field} field=${{
        name: "judge.name",
        label: "Judge",
        type: "string",
        help: "A judge other than the run's has its default settings, unless you give some below.",
        choices: names,
        standard: `the run's: ${run.judge}`,
      }} ...${field("judge")} />
      <${Field} field=${{
        name: "kinds",
        label: "Rollouts",
        type: "string",
        help: "Those that the run trained on, those on held-out scenarios, or both.",
        choices: Object.keys(_KINDS),
        standard: "training",
      }} ...${field("kinds")} />
      <${Field} field=${{
        name: "repeats",
        label: "Repeats",
        type: "integer",
        help: "How often each rollout is judged, 1 to 8. From 2 on, the report has the judge's own noise.",
        standard: 1,
      }} ...${field("repeats")} />
      <${Field} field=${{
        name: "iterations.first",
        label: "From iteration",
        type: "integer",
        help: "0 is the baseline, before training.",
        placeholder: "the first",
      }} ...${field("first")} />
      <${Field} field=${{
        name: "iterations.last",
        label: "To iteration",
        type: "integer",
        help: "Included.",
        placeholder: "the last one saved",
      }} ...${field("last")} />
      <${Field} field=${{
        name: "budget.max_usd",
        label: "Budget in dollars",
        type: "number",
        help: "It pauses before a call of the judge's model that could exceed this.",
        placeholder: "no limit",
      }} ...${field("dollars")} />
    </div>
    ${
      unfit.length > 0 &&
      html`<p class="muted small">Not offered: ${unfit
        .map((each) => `${label(each.name, 60)} (${visible(each.unfit ?? "")})`)
        .join("; ")}.</p>`
    }
    <${Settings} ...${field("settings")} wrong=${body instanceof Error ? body.message : undefined} />
    <${Planned} plan=${plan} repeats=${values.repeats} />
    <div class="actions"><${Action} label="Judge again" kind="primary" disabled=${!plan.data} act=${start} /></div>
    ${
      accepted &&
      html`<section class="notice warn" role="status"><h3>It has been started, but its judge may fail</h3>
      <ul>${accepted.warnings.map((each) => html`<li><${Text} value=${each} limit=${600} /></li>`)}</ul>
      <p><a href=${href(pageOf(run, accepted))}>See the rejudging</a></p></section>`
    }
  </section>`;
}

/** @param {Run} run @param {Plan} accepted */
const pageOf = (run, { evaluation_id: id }) => ["runs", run.run_id, "rejudgings", id ?? ""];

/** The choice of rollouts that the address names. @param {URLSearchParams} query */
const kindsIn = (query) => Object.keys(_KINDS).find((each) => each === query.get("kinds")) ?? "training";

/**
 * The settings of the judge as JSON, such as a rubric.
 * @param {{value: string, set: (text: string) => void, wrong: string | undefined}} props
 */
function Settings({ value, set, wrong }) {
  const id = useId();
  return html`<details><summary>Settings of the judge</summary>
    <div class="field"><label for=${id}>Settings as JSON</label>
      <textarea id=${id} dir="auto" spellcheck=${false} placeholder=${'{"rubric": "Short answers are better."}'}
        value=${value} aria-invalid=${wrong !== undefined} aria-describedby=${`${id}-help`}
        onInput=${(/** @type {any} */ event) => set(event.currentTarget.value)}></textarea>
      <span class="help" id=${`${id}-help`}>Such as the rubric and the model of${" "}
        <code>ruler</code>. Empty: the run's judge keeps the settings of the run, and any other judge has its defaults.
        ${wrong && html`<span class="wrong">${wrong}</span>`}</span></div></details>`;
}

/**
 * The request of the form. What is no number is sent as it is, so that the service says what is wrong.
 * @param {Values} values @returns {Record<string, any> | Error} an error if the judge's settings are no JSON object
 */
function bodyOf({ judge, settings, kinds, repeats, first, last, dollars: limit }) {
  const config = settings.trim() ? objectIn(settings) : undefined;
  if (config instanceof Error) return config;
  const counted = (/** @type {string} */ text) =>
    text.trim() === "" || Number.isNaN(Number(text)) ? text : Number(text);
  const iterations = { ...(first.trim() && { first: counted(first) }), ...(last.trim() && { last: counted(last) }) };
  return {
    ...((judge || config) && { judge: { ...(judge && { name: judge }), ...(config && { config }) } }),
    kinds: _KINDS[kinds],
    repeats: repeats.trim() === "" ? 1 : counted(repeats),
    ...(Object.keys(iterations).length > 0 && { iterations }),
    ...(limit.trim() && { budget: { max_usd: counted(limit) } }),
  };
}

/** @param {string} text @returns {Record<string, any> | Error} */
function objectIn(text) {
  try {
    const value = JSON.parse(text);
    if (value !== null && typeof value === "object" && !Array.isArray(value)) return value;
  } catch {
    // what is no JSON is answered like what is no object
  }
  return new Error("This is not a JSON object.");
}

/** What the service would do. @param {string} runId @param {Record<string, any> | Error} body */
function usePlan(runId, body) {
  return useLoaded(
    async (aborted) => {
      if (body instanceof Error) throw body;
      await new Promise((resume) => setTimeout(resume, _PAUSE_MS));
      return /** @type {Plan} */ (
        await request("POST", url(path`runs/${runId}/rejudge`), { body: { ...body, dry_run: true }, signal: aborted })
      );
    },
    [runId, body],
  );
}

/** @param {{plan: {data: Plan | undefined, error: Error | undefined}, repeats: string}} props */
function Planned({ plan: { data, error }, repeats }) {
  if (error) return html`<div class="plan" role="group" aria-label="Plan"><${Refusal} error=${error} /></div>`;
  if (!data) return html`<div class="plan loading" role="status"><span class="muted">Planning …</span></div>`;
  const { groups, rollouts, verdicts, cost } = data;
  return html`<div class="plan" role="group" aria-label="Plan"><dl>
    <div><dt>Groups</dt><dd>${whole(groups)}</dd><dd class="muted">with ${counted(rollouts, "rollout")}</dd></div>
    <div><dt>Verdicts</dt><dd>${whole(verdicts)}</dd>
      <dd class="muted">${
        verdicts === groups ? "one of each group" : `${whole(Number(repeats))} of each group`
      }</dd></div>
    <div><dt>Expected cost</dt><dd>${cost.usd === null ? "not known" : dollars(cost.usd)}${
      cost.low !== null &&
      cost.high !== null &&
      html` <span class="muted">${dollars(cost.low)} to ${dollars(cost.high)}</span>`
    }</dd>
      <dd class="muted">${visible(cost.reason)}</dd></div>
  </dl></div>`;
}
