// Fields for a run with a team's own agent: where its tasks come from, and how they reach it.

import { Field } from "./field.js";
import { html } from "./html.js";
import { label } from "./text.js";

/** @typedef {{loc: (string | number)[], msg: string}} Fault */
/** @typedef {import("../start_fields.js").Field} FormField */
/** @typedef {Record<string, string>} Values by field name; missing ones have their defaults */

const _CONFIG = "environment.config";
const _RUNNER = `${_CONFIG}.runner`;
const _TASKS = `${_CONFIG}.scenarios`;
const _SESSIONS = `${_TASKS}.sessions`;

/** @type {Record<string, string>} */
const _RUNNERS = {
  pull: "it claims its tasks",
  push: "tasks are posted to its URL",
  python: "a Python function of the worker",
};
/** @type {Record<string, string>} */
const _SOURCES = { stored: "a stored set", sessions: "sessions in production", url: "a URL" };
/** The value of `source` for tasks that users asked. */
export const FROM_SESSIONS = _SOURCES.sessions;

/** @type {FormField[]} */
const _FILTER = [
  {
    name: `${_SESSIONS}.model`,
    label: "Opened with the model",
    type: "string",
    placeholder: "any",
    help: "The name that they were opened with, such as a promoted one.",
  },
  {
    name: `${_SESSIONS}.feedback`,
    label: "Feedback",
    type: "string",
    standard: "does not matter",
    choices: ["any", "none", "positive", "negative"],
    help: "What users thought of them later.",
  },
  {
    name: `${_SESSIONS}.rewarded`,
    label: "With a reward",
    type: "string",
    standard: "does not matter",
    choices: ["true", "false"],
    help: "Whether they ended with a reward.",
  },
  {
    name: `${_SESSIONS}.reward_below`,
    label: "Reward below",
    type: "number",
    placeholder: "any",
    help: "They ended with a lower reward.",
  },
  {
    name: `${_SESSIONS}.since`,
    label: "Opened since",
    type: "string",
    placeholder: "2026-03-14T00:00:00Z",
    help: "A time with its zone.",
  },
  { name: `${_SESSIONS}.limit`, label: "At most", type: "integer", placeholder: "1000", help: "The newest ones." },
];

/**
 * The key of the choice with the shown text, or else the first key.
 * @param {Record<string, string>} choices @param {string | undefined} shown
 */
const keyOf = (choices, shown) => Object.keys(choices).find((key) => choices[key] === shown) ?? Object.keys(choices)[0];

/** The parts of the request that come from these fields. @param {Values} values */
export function agentRequest(values) {
  const given = (/** @type {string} */ name) => (values[name] ?? "").trim();
  const kind = keyOf(_RUNNERS, values.runner);
  const url = given(`${_RUNNER}.push.url`);
  const secret = given(`${_RUNNER}.push.secret`);
  const push = { ...(url && { url }), ...(secret && { secret }) };
  const runner = kind === "push" ? { push } : kind === "python" ? { python: given(`${_RUNNER}.python`) } : { pull: {} };
  const source = keyOf(_SOURCES, values.source);
  if (source === "sessions")
    return { environment: { name: "agent", config: { runner } }, source: { sessions: filterOf(given) } };
  const scenarios = source === "url" ? { url: given(`${_TASKS}.url`) } : given(_TASKS);
  return { environment: { name: "agent", config: { runner, ...(scenarios && { scenarios }) } } };
}

/** @param {(name: string) => string} given */
function filterOf(given) {
  const filled = _FILTER.filter(({ name }) => given(name));
  return Object.fromEntries(
    filled.map(({ name, type }) => [name.slice(_SESSIONS.length + 1), valueOf(given(name), type)]),
  );
}

/** @param {string} text @param {string} type */
const valueOf = (text, type) =>
  text === "true"
    ? true
    : text === "false"
      ? false
      : type === "string" || !Number.isFinite(Number(text))
        ? text
        : Number(text);

/**
 * How tasks reach the agent.
 * @param {{values: Values, set: (name: string, value: string) => void, faults: Fault[]}} props
 */
export function RunnerFields({ values, set, faults }) {
  const kind = keyOf(_RUNNERS, values.runner);
  const field = (/** @type {FormField} */ described, /** @type {Fault[]} */ wrong) =>
    html`<${Field} field=${described} value=${values[described.name] ?? ""} faults=${wrong}
      set=${(/** @type {string} */ value) => set(described.name, value)} />`;
  return html`<${Field} field=${{ ..._KIND, help: _HELP[kind] }} value=${_RUNNERS[kind]}
      set=${(/** @type {string} */ value) => set("runner", value)}
      faults=${kind === "pull" ? moved(faults, _RUNNER, "runner") : []} />
    ${kind === "push" && field(_PUSH_URL, moved(faults, _RUNNER, _PUSH_URL.name))}
    ${kind === "push" && field(_PUSH_SECRET, faults)}
    ${kind === "python" && field(_FUNCTION, moved(faults, _RUNNER, _FUNCTION.name))}`;
}

/**
 * @param {{values: Values, set: (name: string, value: string) => void, faults: Fault[],
 *   sets: import("../api_types").ScenarioSetOut[]}} props
 */
export function AgentFields({ values, set, faults, sets }) {
  const source = keyOf(_SOURCES, values.source);
  const names = [...new Set(sets.map((each) => each.name))];
  const shared = (/** @type {string} */ name) => ({
    value: values[name] ?? "",
    set: (/** @type {string} */ value) => set(name, value),
  });
  const sourceField = source === "url" ? `${_TASKS}.url` : source === "stored" ? _TASKS : _SESSIONS;
  const ofTasks = faults.map((each) =>
    at(each) === _CONFIG ? { ...each, loc: ["body", ...sourceField.split(".")] } : each,
  );
  const stored = { ..._STORED, choices: names, standard: names.length > 0 ? "choose one" : "there is none" };
  return html`<div class="fields">
      <${RunnerFields} values=${values} set=${set} faults=${faults} />
      <${Field} field=${_SOURCE} value=${_SOURCES[source]} faults=${[]}
        set=${(/** @type {string} */ value) => set("source", value)} />
      ${source === "stored" && html`<${Field} field=${stored} ...${shared(_TASKS)} faults=${ofTasks} />`}
      ${source === "url" && html`<${Field} field=${_TASKS_URL} ...${shared(_TASKS_URL.name)} faults=${ofTasks} />`}
    </div>
    ${
      source === "sessions" &&
      html`<fieldset><legend>Sessions outside of runs that have ended</legend>
      <div class="fields">${_FILTER.map(
        (field) => html`<${Field} key=${field.name} field=${field} ...${shared(field.name)} faults=${faults} />`,
      )}</div>
      ${ofTasks
        .filter((each) => at(each) === _SESSIONS)
        .map((each) => html`<p class="wrong">${label(each.msg, 300)}</p>`)}
      <p class="help">Each gives its first request and the answers of its tools. What users said later is not said
        again, and feedback is no reward.</p></fieldset>`
    }`;
}

/** @type {FormField} */
const _KIND = {
  name: "runner",
  label: "How tasks reach your agent",
  type: "string",
  choices: Object.values(_RUNNERS),
  help: "",
};
/** @type {FormField} */
const _PUSH_URL = {
  name: `${_RUNNER}.push.url`,
  label: "URL of your agent",
  type: "string",
  placeholder: "https://agent.example/tasks",
  help: "Each task is posted there; the service has to reach it.",
};
/** @type {FormField} */
const _PUSH_SECRET = {
  name: `${_RUNNER}.push.secret`,
  label: "Signing secret",
  type: "string",
  placeholder: "not signed",
  help: "`whsec_` and 24 to 64 random bytes in base64.",
};
/** @type {FormField} */
const _FUNCTION = {
  name: `${_RUNNER}.python`,
  label: "Function",
  type: "string",
  placeholder: "package.module:function",
  help: "In a module that the operator allows in `LEARNLOOP_AGENT_MODULES`.",
};
/** @type {FormField} */
const _SOURCE = {
  name: "source",
  label: "Tasks from",
  type: "string",
  choices: Object.values(_SOURCES),
  help: "What the agent is trained on.",
};
/** @type {FormField} */
const _STORED = {
  name: _TASKS,
  label: "Set of tasks",
  type: "string",
  help: 'Stored by `POST /scenarios` with `"environment": "agent"`.',
};
/** @type {FormField} */
const _TASKS_URL = {
  name: `${_TASKS}.url`,
  label: "URL of the tasks",
  type: "string",
  placeholder: "https://data.example/tasks.jsonl",
  help: "A list of tasks as JSON or JSON Lines, read when the run is started.",
};

/** @type {Record<string, string>} */
const _HELP = {
  pull: "Start it anywhere with `learnloop-agent run -- CMD`: behind a firewall, in CI, in a batch system.",
  push: "An HTTP server that is posted each task.",
  python: "An async function of the task and the model.",
};

/** @param {Fault} fault */
const at = (fault) => fault.loc.slice(1).join(".");

/**
 * Faults at or below a path, moved to another one, except those of the secret, which has a separate field.
 * @param {Fault[]} faults @param {string} from @param {string} to
 */
function moved(faults, from, to) {
  const mine = faults.filter((each) => `${at(each)}.`.startsWith(`${from}.`) && at(each) !== `${_RUNNER}.push.secret`);
  return mine.map((each) => ({ ...each, loc: ["body", ...to.split(".")] }));
}
