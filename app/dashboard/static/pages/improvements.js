// Improvements: the list, and one with what it tried, what is left, and what came of it.

import { useState } from "../vendor/hooks.js";
import { all, get, path, post, remove } from "../api.js";
import { ago, compact, counted, dollars, duration, finePercent, inWords, moment, NONE, percent } from "../format.js";
import { Action } from "../parts/action.js";
import { Dialog } from "../parts/dialog.js";
import { Share } from "../parts/evaluation.js";
import { html } from "../parts/html.js";
import { Promote } from "../parts/promote.js";
import { PromptLink } from "../parts/prompt.js";
import { Compared } from "../parts/prompt_parts.js";
import { Empty, Loaded, useLoaded, useReload } from "../parts/states.js";
import { Progress, Status } from "../parts/status.js";
import { Table } from "../parts/table.js";
import { JsonText, label, promptName, starter, Text } from "../parts/text.js";
import { go, href } from "../router.js";
import { may } from "../session.js";
import { Failures } from "./failures.js";

/** @typedef {import("../api_types").ImprovementBrief} Brief */
/** @typedef {import("../api_types").ImprovementOut} Improvement */
/** @typedef {import("../api_types").CandidateOut} Candidate */
/** @typedef {import("../api_types").EvidenceOut} EvidenceOut */
/** @typedef {import("../api_types").RungForecastOut} Forecast */

const _RUNGS = /** @type {Record<string, string>} */ ({ as_it_is: "as it is", grpo: "GRPO" });
const _LIVE = new Set(["running", "paused"]);
const _CHECKPOINT = /^([^/]+)\/([^/@]+)@(\d+)$/;

/** @param {string} rung */
const rungOf = (rung) => _RUNGS[rung] ?? rung;

export function Improvements() {
  const state = useLoaded((aborted) => all("improvements", {}, { aborted, most: 400 }), []);
  /** @type {import("../parts/table.js").Column<Brief>[]} */
  const columns = [
    {
      title: "Agent",
      by: "environment",
      isHead: true,
      cell: (each) =>
        html`<a href=${href(["improvements", each.id])}>${label(each.environment)}</a>
          ${" "}<span class="muted">${label(each.project)}</span>`,
    },
    { title: "Status", by: "status", cell: (each) => html`<${Status} status=${inWords(each.status)} />` },
    { title: "Target", by: "target", isNumber: true, cell: (each) => percent(each.target) },
    { title: "Candidates", by: "candidates", isNumber: true, cell: (each) => each.candidates },
    { title: "Asked for by", by: "actor", cell: (each) => starter(each.started_by) },
    { title: "Begun", by: "created_at", cell: (each) => ago(each.created_at) },
  ];
  return html`<h1>Improvements</h1>
    <${Loaded} state=${state}>${(/** @type {Brief[]} */ found) =>
      found.length === 0
        ? html`<${Empty} title="No improvement yet">
          <p>It tries what is cheap before what is dear, and stops when its target is reached. Start one with “Improve”
            ${" "}on a run or an evaluation, or: <code>learnloop improve start</code></p><//>`
        : html`<section class="card"><h2>All improvements</h2>
          <${Table} caption="Improvements, newest first" class="stacked" rows=${found} columns=${columns}
            keyOf="id" /></section>`}<//>`;
}

/** @param {{id: string}} props */
export function ImprovementPage({ id }) {
  const state = useLoaded(
    (aborted) => /** @type {Promise<Improvement>} */ (get(path`improvements/${id}`, {}, aborted)),
    [id],
  );
  useReload(state, state.data?.status === "running");
  return html`<p class="crumbs"><a href=${href(["improvements"])}>Improvements</a> / <code>${label(id)}</code></p>
    <${Loaded} state=${state} rows=${8}>${(/** @type {Improvement} */ found) =>
      html`<${Whole} improvement=${found} reload=${state.reload} />`}<//>`;
}

/** @typedef {{improvement: Improvement, reload: () => void}} Props */

/** @param {Props} props */
function Whole({ improvement, reload }) {
  const { tried, champion, forecast, can_show: shows, request } = improvement;
  return html`<${Head} improvement=${improvement} reload=${reload} />
    <section class="card"><h2>What was tried</h2>
      <${Table} caption="Candidates" class="stacked" rows=${tried} columns=${candidateColumns(champion)}
        keyOf="number" />
      ${shows.map((sentence) => html`<p class="muted small">${label(sentence, 300)}</p>`)}</section>
    ${
      forecast.length > 0 &&
      html`<section class="card"><h2>What is left</h2>
      <${Table} caption="Forecast" class="stacked" rows=${forecast} columns=${_FORECAST}
        keyOf="rung" /></section>`
    }
    <${Prompts} tried=${tried} champion=${champion} />
    ${tried[champion].success && html`<${Failures} asked=${failuresOf(tried, champion)} />`}
    <details class="card"><summary><h2>Settings</h2></summary><${JsonText} value=${request} /></details>`;
}

/**
 * The failures of the champion, and before them those of the agent as it is.
 * @param {Candidate[]} tried @param {number} champion
 */
function failuresOf(tried, champion) {
  const { run_id: run, gate_id: evaluation } = tried[champion];
  const before = champion > 0 ? tried[0].gate_id : undefined;
  return run ? { run, split: "validation", mode: "greedy", before } : { evaluation, before };
}

/** @param {Props} props */
function Head({ improvement, reload }) {
  const { environment, status, sentence, reason, target, price, job, waits_until: until, confirmed } = improvement;
  return html`<div class="title-row">
      <h1>Improvement of ${label(environment)} <${Status} status=${inWords(status)} /></h1>
      ${may("write") && html`<${Buttons} improvement=${improvement} reload=${reload} />`}</div>
    ${sentence && html`<p><strong>${label(sentence, 1000)}</strong></p>`}
    ${reason && html`<section class="notice"><${Text} as="p" value=${reason} limit=${400} /></section>`}
    ${until && _LIVE.has(status) && html`<p role="status">It waits for prompts until ${moment(until)}.</p>`}
    ${
      job &&
      html`<p role="status">In progress: <a href=${href(job.split("/").filter(Boolean))}>
        ${job.startsWith("/runs") ? "a run" : "an evaluation"}</a></p>`
    }
    <dl class="pairs">
      <div><dt>Target</dt><dd>${target === null ? "none" : percent(target)}${
        confirmed !== null && (confirmed ? ", confirmed on test tasks" : ", not confirmed on test tasks")
      }</dd></div>
      <div><dt>Price so far</dt><dd>${pricedAt(price)}, ${compact(price.tokens)} tokens</dd></div>
    </dl>`;
}

/** @param {Props} props */
function Buttons({ improvement, reload }) {
  const { id, status, waits_until: until } = improvement;
  const isLive = _LIVE.has(status);
  /** @param {string} verb @param {unknown} [body] */
  const act = (verb, body) => async () => (await post(`${path`improvements/${id}`}/${verb}`, body), reload());
  return html`<div class="actions">
    ${status === "running" && html`<${Action} label="Pause" act=${act("pause")} />`}
    ${status === "running" && until && html`<${Action} label="Wait no longer" act=${act("resume")} />`}
    ${status === "paused" && html`<${Action} label="Resume" kind="primary" act=${act("resume")} />`}
    <${PromoteChampion} improvement=${improvement} />
    ${!isLive && status !== "failed" && html`<${Continue} act=${act} />`}
    ${
      isLive
        ? html`<${Action} label="Cancel" kind="danger" act=${act("cancel")}
          confirm="End this improvement, and its evaluation or run? What it accepted is kept." />`
        : html`<${Action} label="Delete" kind="danger" confirm="Delete this improvement? Its evaluations and runs stay."
          act=${async () => (await remove(path`improvements/${id}`), go(["improvements"]))} />`
    }</div>`;
}

/** Goes on with another target. @param {{act: (verb: string, body: unknown) => () => Promise<unknown>}} props */
function Continue({ act }) {
  const [isOpen, setOpen] = useState(false);
  const [target, setTarget] = useState("");
  const body = target.trim() ? { target: Number(target) / 100 } : {};
  return html`<button onClick=${() => setOpen(true)}>Continue</button>
    ${
      isOpen &&
      html`<${Dialog} title="Continue the improvement" close=${() => setOpen(false)}>
      ${(/** @type {() => void} */ close) => html`<label class="field"><span>Success to reach, in percent</span>
        <input inputmode="decimal" value=${target} placeholder="as before"
          onInput=${(/** @type {any} */ event) => setTarget(event.target.value)} /></label>
        <div class="actions"><${Action} label="Continue it" kind="primary"
          act=${async () => (await act("continue", body)(), close())} />
          <button onClick=${close}>Close</button></div>`}<//>`
    }`;
}

/**
 * Promotes the best candidate with its prompt: its checkpoint, or else its base model as step 0 of a new model.
 * @param {{improvement: Improvement}} props
 */
function PromoteChampion({ improvement: { id, project: owner, tried, champion } }) {
  const [isOpen, setOpen] = useState(false);
  const { model, prompt, run_id: run, success, listed } = tried[champion];
  if (champion === 0 || listed) return null; // a listed model cannot be behind a name
  const [, project, name, step] = _CHECKPOINT.exec(model) ?? [, owner, `improved-${id.slice(-6)}`, 0];
  const checkpoints = [{ step: Number(step), success: success?.mean ?? null, is_best: true }];
  const reference = prompt?.name ? promptName(prompt) : (prompt?.sha256 ?? "-");
  return html`<button onClick=${() => setOpen(true)}>Promote</button>
    ${
      isOpen &&
      html`<${Dialog} title="Promote the best candidate" close=${() => setOpen(false)}>
      ${(/** @type {() => void} */ close) => html`
        <${Promote} project=${project} name=${name} checkpoints=${checkpoints} runId=${run} done=${close}
          prompt=${reference} base=${step === 0 ? model : undefined} />`}<//>`
    }`;
}

/** @param {number} champion @returns {import("../parts/table.js").Column<Candidate>[]} */
const candidateColumns = (champion) => [
  {
    title: "Candidate",
    isHead: true,
    cell: (each) =>
      html`${each.number} ${rungOf(each.rung)} ${each.prompt && html`<${PromptLink} prompt=${each.prompt} />`}${" "}
        ${each.number === champion && html`<span class="tag">best</span>`}
        <br /><span class="muted small">by ${label(each.author, 60)}${each.why && `: ${label(each.why, 200)}`}</span>`,
  },
  {
    title: "State",
    by: "state",
    cell: (each) =>
      html`${each.rung !== "as_it_is" && html`<${Status} status=${inWords(each.state)} />`}
        ${each.reason && html`<${Text} class="muted small" value=${each.reason} limit=${200} />`}
        ${each.only_by_person && html`<span class="muted small">quotes training tasks: read it first</span>`}
        ${jobsOf(each)}`,
  },
  {
    title: "Success",
    by: "success.mean",
    cell: (each) => html`<${Share} interval=${each.success} />
      ${each.test && html`<span class="muted small">on test tasks <${Share} interval=${each.test} /></span>`}`,
  },
  {
    title: "Won and lost",
    cell: (each) => html`<${Evidence} evidence=${each.evidence} />
      ${!each.evidence && each.screening && html`<${Evidence} evidence=${each.screening} where="training tasks" />`}
      ${
        each.evidence &&
        each.error_share !== null &&
        html`<span class="muted small">error at most ${finePercent(each.error_share)}</span>`
      }`,
  },
  {
    title: "Price",
    by: "price.minutes",
    cell: ({ price, answer }) => html`${pricedAt(price)}
      ${answer && html`<br /><span class="muted small">1,000 answers: ${thousand(answer)}</span>`}`,
  },
];

/** Links to what a candidate was made and measured by. @param {Candidate} candidate */
const jobsOf = ({ run_id: run, screening_id: screening, gate_id: gate }) =>
  [
    ["training tasks", "evaluations", screening],
    ["validation tasks", "evaluations", gate],
    ["run", "runs", run],
  ]
    .filter(([, , id]) => id)
    .map(([title, place, id]) => html`<div><a href=${href([String(place), String(id)])}>${title}</a></div>`);

/** A comparison with the champion as a bar. @param {{evidence: EvidenceOut | null, where?: string}} props */
function Evidence({ evidence, where = "" }) {
  if (!evidence) return null;
  const { won, lost, tasks } = evidence;
  const at = (/** @type {number} */ count) => `${(100 * count) / Math.max(1, tasks)}%`;
  return html`<span class="share"><span class="track" aria-hidden="true">
      <span class="fill good" style=${{ width: at(won) }}></span>
      <span class="fill bad" style=${{ width: at(lost), left: at(tasks - lost) }}></span></span>
    <span>${won} won, ${lost} lost <span class="muted">of ${tasks} ${where}</span></span></span>`;
}

/** @param {{minutes: number, usd: number | null}} price */
const pricedAt = ({ minutes, usd }) => `${duration(60 * minutes)}${usd === null ? "" : `, ${dollars(usd)}`}`;

/** What 1,000 answers take. @param {NonNullable<Candidate["answer"]>} answer */
const thousand = ({ tokens, usd }) =>
  `${tokens === null ? NONE : compact(1000 * tokens)} tokens${usd === null ? "" : `, ${dollars(1000 * usd)}`}`;

/** @param {[number, number] | number[]} range @param {(value: number) => string} format */
const ranged = ([low, high], format) =>
  format(low) === format(high) ? format(low) : `${format(low)} to ${format(high)}`;

/** @type {import("../parts/table.js").Column<Forecast>[]} */
const _FORECAST = [
  { title: "Kind of change", isHead: true, cell: (each) => rungOf(each.rung) },
  { title: "Time", by: "minutes.0", cell: (each) => ranged(each.minutes, (value) => duration(60 * value)) },
  { title: "Dollars", cell: (each) => (each.usd ? ranged(each.usd, dollars) : NONE) },
  { title: "Others reached", cell: (each) => label(each.gain ?? "unknown", 100) },
  { title: "Source", cell: (each) => label(each.source, 200) },
];

/**
 * What differs between a candidate's prompt and the agent's as it is.
 * @param {{tried: Candidate[], champion: number}} props
 */
function Prompts({ tried, champion }) {
  const [first] = tried;
  const other = tried.filter((each) => each.prompt && each.prompt.sha256 !== first.prompt?.sha256);
  const [number, setNumber] = useState(/** @type {number | undefined} */ (undefined));
  const chosen = other.find((each) => each.number === (number ?? champion)) ?? other.at(-1);
  if (!chosen?.prompt) return null;
  const choose = (/** @type {any} */ event) => setNumber(Number(event.target.value));
  return html`<h2>Prompt, against the agent as it is</h2>
    <label class="field"><span>Of candidate</span><select value=${chosen.number} onChange=${choose}>
      ${other.map((each) => html`<option value=${each.number}>${`${each.number} ${rungOf(each.rung)}`}</option>`)}
    </select></label>
    <${Compared} before=${first.prompt?.sha256 ?? "-"} after=${chosen.prompt.sha256} />`;
}
