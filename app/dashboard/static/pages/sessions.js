// Sessions of agents that own their loop: every model call, and the outcome.

import { useState } from "../vendor/hooks.js";
import { ApiError, all, get, path, post } from "../api.js";
import { ago, counted, moment, NONE, number, whole } from "../format.js";
import { Action, Copy } from "../parts/action.js";
import { Conversation } from "../parts/conversation.js";
import { Field } from "../parts/field.js";
import { html } from "../parts/html.js";
import { Opine, Opinions } from "../parts/opinions.js";
import { Empty, Failed, Loaded, useLoaded } from "../parts/states.js";
import { Status } from "../parts/status.js";
import { Table } from "../parts/table.js";
import { JsonText, label, Text } from "../parts/text.js";
import { href, refine } from "../router.js";

/** @typedef {import("../api_types").AgentSessionOut} Session */
/** @typedef {import("../api_types").AgentSessionAccess} Access */
/** @typedef {import("../api_types").AgentSessionCallOut} Call */
/** @typedef {import("../api_types").SessionFeedbackOut} Opinion */
/** @typedef {import("../parts/conversation.js").Message} Message */

const _STATES = ["open", "ended", "expired"];
const _MOST = 400;

/** @param {{query: URLSearchParams}} props */
export function Sessions({ query }) {
  const chosen = query.get("status") ?? "";
  const state = useLoaded((aborted) => all("sessions", { status: chosen }, { aborted, most: _MOST }), [chosen]);
  return html`<h1>Sessions</h1>
    <p class="muted">Your own agent at work with a model of this service: give it the base URL and the key of a${" "}
      session in place of OpenAI's or Anthropic's.</p>
    <${New} reload=${state.reload} />
    <div class="filters"><label class="field"><span>Status</span>
        <select value=${chosen} onChange=${(/** @type {any} */ event) => refine({ status: event.target.value })}>
      <option value="">all</option>${_STATES.map(
        (each) => html`<option value=${each}>${each}</option>`,
      )}</select></label>
      <button onClick=${state.reload}>Refresh</button></div>
    <${Loaded} state=${state}>${(/** @type {Session[]} */ found) =>
      found.length === 0
        ? html`<${Empty} title="No session"><p>Open one above, or by <code>POST /sessions</code>.</p><//>`
        : html`<section class="card"><h2>${found.length < _MOST ? "All sessions" : `The newest ${_MOST}`}</h2>
            <${Table} caption="Sessions, newest first" rows=${found} keyOf="id"
              columns=${columns} /></section>`}<//>`;
}

/** @type {import("../parts/table.js").Column<Session>[]} */
const columns = [
  {
    title: "Session",
    by: "id",
    cell: (each) => html`<a href=${href(["sessions", each.id])}><code>${each.id}</code></a>`,
  },
  { title: "Status", by: "status", cell: (each) => html`<${Status} status=${each.status} />` },
  { title: "Model", by: "model", cell: (each) => label(each.model, 120) },
  {
    title: "Of",
    cell: (each) =>
      each.run_id ? html`<a href=${href(["runs", each.run_id])}>a run</a>` : `project ${label(each.project)}`,
  },
  { title: "Calls", by: "calls", isNumber: true, cell: (each) => whole(each.calls) },
  { title: "Reward", by: "reward", isNumber: true, cell: (each) => number(each.reward) },
  { title: "Feedback", cell: (each) => opinions(each.feedback) },
  { title: "Opened", by: "opened_at", cell: (each) => ago(each.opened_at) },
];

/** @param {Session["feedback"]} found */
const opinions = (found) =>
  found ? `${number(found.wins)} for, ${number(found.losses)} against${found.simulated ? " (simulated)" : ""}` : NONE;

/** @param {{reload: () => void}} props */
function New({ reload }) {
  const [model, setModel] = useState("");
  const [state, setState] = useState(/** @type {{error?: Error, access?: Access}} */ ({}));
  const faults = state.error instanceof ApiError ? state.error.errors : [];
  /** @param {SubmitEvent} event */
  async function open(event) {
    event.preventDefault();
    try {
      setState({ access: await post("sessions", { model }) });
      reload();
    } catch (error) {
      setState({ error: /** @type {Error} */ (error) });
    }
  }
  const field = {
    name: "model",
    label: "Model",
    type: "string",
    placeholder: "learnloop/tiny",
    help: "A base model, `PROJECT/NAME`, `PROJECT/NAME@STEP`, a promoted name, or the id of a run.",
  };
  return html`<details class="card" open=${Boolean(state.access || state.error)}>
    <summary><h2>Open a session</h2></summary>
    <form onSubmit=${open}>
      <${Field} field=${field} value=${model} set=${setModel} faults=${faults} />
      ${state.error && faults.length === 0 && html`<${Failed} error=${state.error} />`}
      <button class="primary" disabled=${!model.trim()}>Open</button>
    </form>
    ${state.access && html`<${Opened} access=${state.access} model=${model} />`}
  </details>`;
}

/** @param {{access: Access, model: string}} props */
function Opened({ access, model }) {
  const variables = [
    ["OPENAI_BASE_URL", access.base_url],
    ["OPENAI_API_KEY", access.api_key],
    ["OPENAI_MODEL", model],
  ];
  const text = variables.map(([name, value]) => `export ${name}='${value.replaceAll("'", `'\\''`)}'`).join("\n");
  return html`<section class="notice" role="status">
    <p>The key is shown only now. Start your agent with:</p>
    <${Text} as="pre" class="code" value=${text} limit=${2000} />
    <p><${Copy} text=${text} /> <a href=${href(["sessions", access.id])}>Watch it</a></p></section>`;
}

/** @param {{id: string}} props */
export function SessionPage({ id }) {
  const state = useLoaded((aborted) => load(id, aborted), [id]);
  return html`<p class="crumbs"><a href=${href(["sessions"])}>Sessions</a></p>
    <${Loaded} state=${state} rows=${6}>${(/** @type {Awaited<ReturnType<typeof load>>} */ found) =>
      html`<${Whole} ...${found} reload=${state.reload} />`}<//>`;
}

/** @param {string} id @param {AbortSignal} aborted */
async function load(id, aborted) {
  const [session, calls, feedback] = await Promise.all([
    get(path`sessions/${id}`, {}, aborted),
    all(path`sessions/${id}/calls`, {}, { aborted, most: _MOST }),
    all(path`sessions/${id}/feedback`, {}, { aborted, most: _MOST }),
  ]);
  return {
    session: /** @type {Session} */ (session),
    calls: /** @type {Call[]} */ (calls),
    feedback: /** @type {Opinion[]} */ (feedback),
  };
}

/** @param {{session: Session, calls: Call[], feedback: Opinion[], reload: () => void}} props */
function Whole({ session, calls, feedback, reload }) {
  return html`<div class="title-row"><h1>Session <code>${session.id}</code> <${Status} status=${session.status} /></h1>
      <button onClick=${reload}>Refresh</button></div>
    <div class="trajectory">
      <section class="card" aria-label="Calls"><h2>${counted(calls.length, "call")} of the model</h2>
        ${
          calls.length === 0
            ? html`<p class="muted">The agent has not asked its model yet.</p>`
            : withNews(calls).map((each) => html`<${OneCall} key=${each.call.number} ...${each} />`)
        }
      </section>
      <div class="trajectory-side"><${End} session=${session} reload=${reload} />
        <${Feedback} session=${session} feedback=${feedback} reload=${reload} /><${Details} session=${session} /></div>
    </div>`;
}

/** Each call with the messages that no earlier call had. @param {Call[]} calls */
function withNews(calls) {
  const seen = new Set();
  return calls.map((call) => {
    const messages = /** @type {Message[]} */ (call.messages).filter((each) => !seen.has(identity(each)));
    const reply = /** @type {Message | undefined} */ (/** @type {any} */ (call.completion)?.choices?.[0]?.message);
    for (const each of reply ? [...call.messages, reply] : call.messages)
      seen.add(identity(/** @type {Message} */ (each)));
    return { call, messages: reply ? [...messages, reply] : messages };
  });
}

/** The parts of a message that the model sees. @param {Message} message */
function identity({ role, content, tool_calls: calls }) {
  return JSON.stringify([
    role,
    content || "",
    (calls ?? []).map((each) => [each.function?.name, each.function?.arguments]),
  ]);
}

/** @param {{call: Call, messages: Message[]}} props */
function OneCall({ call, messages }) {
  const usage = /** @type {any} */ (call.completion)?.usage;
  return html`<section aria-label=${`Call ${call.number}`}>
    <p class="muted">${call.number} · ${moment(call.begun_at)} · ${call.protocol}${
      usage && ` · ${whole(usage.prompt_tokens)} prompt and ${whole(usage.completion_tokens)} sampled tokens`
    }
      ${!call.completion && html` <span class="status live">no answer yet</span>`}${
        !call.used && html` <span class="status idle">of an earlier attempt: not trained</span>`
      }</p>
    <${Conversation} messages=${messages} /></section>`;
}

/** @param {{session: Session, reload: () => void}} props */
function End({ session, reload }) {
  const [reward, setReward] = useState("");
  const [reason, setReason] = useState("");
  const { outcome } = session;
  if (session.status === "open") {
    const say = async () => {
      const said = reward.trim() ? { reward: Number(reward) } : { reason };
      await post(path`sessions/${session.id}/outcome`, { ...said, attempt: session.attempt });
      reload();
    };
    const isBad = reward.trim() !== "" && !Number.isFinite(Number(reward));
    return html`<section class="card"><h2>End it</h2>
      <${Field} field=${{
        name: "reward",
        label: "Reward",
        type: "number",
        help: isBad ? "A number is needed." : "How good it was.",
      }} value=${reward} set=${setReward} faults=${[]} />
      <${Field} field=${{
        name: "reason",
        label: "Or why there is none",
        type: "string",
        help: "A session without a reward counts for nothing, which is not zero.",
      }} value=${reason} set=${setReason} faults=${[]} />
      <${Action} label="End the session" kind="primary"
        disabled=${isBad || !(reward.trim() || reason.trim())} act=${say} /></section>`;
  }
  return html`<section class="card"><h2>Outcome</h2>
    ${
      outcome
        ? html`<dl class="pairs"><div><dt>Reward</dt><dd><strong>${number(outcome.reward)}</strong></dd></div>${
            outcome.reason && html`<div><dt>Reason</dt><dd><${Text} value=${outcome.reason} limit=${2000} /></dd></div>`
          }</dl>
          ${outcome.parts && html`<${JsonText} value=${outcome.parts} />`}
          ${
            outcome.output !== null &&
            html`<h3>Output</h3>${
              typeof outcome.output === "string"
                ? html`<${Text} as="p" value=${outcome.output} limit=${6000} />`
                : html`<${JsonText} value=${outcome.output} />`
            }`
          }`
        : html`<p class="muted">It did not end in time: it counts for nothing.</p>`
    }</section>`;
}

/**
 * Users' feedback, for production sessions only.
 * @param {{session: Session, feedback: Opinion[], reload: () => void}} props
 */
function Feedback({ session, feedback, reload }) {
  return html`<section class="card"><h2>Feedback</h2>
    <p class=${session.feedback ? "" : "muted"}>${session.feedback ? opinions(session.feedback) : "None yet."}</p>
    <${Opinions} found=${feedback} />
    ${
      session.run_id
        ? html`<p class="muted">A rollout of a run: give feedback on its trajectory.</p>`
        : html`<${Opine} about=${{ session_id: session.id }} rated=${reload} />`
    }
  </section>`;
}

/** @param {{session: Session}} props */
function Details({ session }) {
  return html`<section class="card"><h2>Details</h2>
    <dl class="pairs">
      <div><dt>Model</dt><dd><${Text} value=${session.model} limit=${200} /></dd></div>
      <div><dt>Checkpoint</dt><dd><${Text} value=${session.checkpoint} limit=${200} /></dd></div>
      <div><dt>Attempt</dt><dd>${session.attempt}</dd></div>
      <div><dt>Tokens</dt>
        <dd>${whole(session.prompt_tokens)} of prompts, ${whole(session.completion_tokens)} sampled</dd></div>
      <div><dt>Run</dt><dd>${
        session.run_id ? html`<a href=${href(["runs", session.run_id])}>iteration ${session.iteration}</a>` : NONE
      }</dd></div>
      ${
        session.learned &&
        html`<div><dt>Learned from</dt><dd><a href=${href(["runs", session.learned.run_id])}>${
          session.learned.why_not ? `no: ${session.learned.why_not}` : `step ${session.learned.step}`
        }</a>${
          session.learned.outcome !== null &&
          `; outcome ${number(session.learned.outcome)}, expected ${number(session.learned.expected)}`
        }</dd></div>`
      }
      ${
        session.warnings.length > 0 &&
        html`<div><dt>Warnings</dt><dd>${session.warnings.map(
          (each) => html`<${Text} key=${each} as="p" value=${each} limit=${300} />`,
        )}</dd></div>`
      }
      <div><dt>Opened</dt><dd>${moment(session.opened_at)}</dd></div>
      <div><dt>${session.ended_at ? "Ended" : "Expires"}</dt>
        <dd>${moment(session.ended_at ?? session.expires_at)}</dd></div>
    </dl>
    <details><summary>Metadata</summary><${JsonText} value=${session.metadata} /></details>
  </section>`;
}
