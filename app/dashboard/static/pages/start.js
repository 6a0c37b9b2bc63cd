// Starts a run from a form: the task, the judge, and the training settings. A fork starts from its parent's settings.

import { useState } from "../vendor/hooks.js";
import { ApiError, all, get, path, post } from "../api.js";
import { AgentFields, agentRequest } from "../parts/agent_fields.js";
import { AsCode } from "../parts/as_code.js";
import { Field } from "../parts/field.js";
import { html } from "../parts/html.js";
import { QuestionsNeeded } from "../parts/questions.js";
import { Loaded, useLoaded } from "../parts/states.js";
import { label, Text, visible } from "../parts/text.js";
import { Upload, uploadTo } from "../parts/upload.js";
import { demonstrationsOf, WarmStartFields } from "../parts/warm_start_fields.js";
import { go } from "../router.js";
import { changedIn, fields, GROUPS, requestOf, valuesOf } from "../start_fields.js";

/** @typedef {Awaited<ReturnType<typeof load>>} Choices */
/** @typedef {{loc: (string | number)[], msg: string}} Fault */

const _CHECKPOINT = {
  name: "checkpoint",
  label: "Step of the checkpoint",
  type: "integer",
  help: "The best checkpoint, unless you choose another one.",
};
const _INBOX = {
  name: "environment.config.inbox",
  label: "Inbox",
  type: "string",
  help: "The mailbox that the agent searches.",
  standard: "synthetic mailboxes",
};
const _SCENARIOS = {
  name: "environment.config.scenarios",
  label: "Scenarios",
  type: "string",
  help: "A named set of tasks.",
  standard: "made by the environment",
};
const _NOT_FORKED = new Set(["backend", "model.base_model"]);

/** @param {{query: URLSearchParams}} props */
export function Start({ query }) {
  const parent = query.get("fork");
  const state = useLoaded((aborted) => load(parent, aborted), [parent]);
  return html`<h1>${parent ? "Fork a run" : "Start a run"}</h1>
    <p class="muted">${
      parent
        ? html`A new run that continues from a checkpoint of <code>${label(parent)}</code>,${" "}
            with its settings except for what you change.`
        : "Every setting has a default that works here. The run starts in the background; its page shows it learn."
    }</p>
    <${Loaded} state=${state} rows=${8}>
      ${(/** @type {Choices} */ choices) => html`<${Form} choices=${choices} query=${query} />`}
    <//>`;
}

/** All choices that the form offers. @param {string | null} fork @param {AbortSignal} aborted */
async function load(fork, aborted) {
  const [environments, judges, inboxes, inboxUpload, sets, demonstrations, parent] = await Promise.all([
    get("environments", {}, aborted),
    get("judges", {}, aborted),
    all("inboxes", {}, { aborted, most: 200 }),
    uploadTo("inboxes", aborted),
    all("scenarios", {}, { aborted, most: 200 }),
    all("demonstrations", {}, { aborted, most: 200 }),
    fork ? get(path`runs/${fork}`, {}, aborted) : null,
  ]);
  return {
    environments: /** @type {import("../api_types").EnvironmentOut[]} */ (environments.items),
    judges: /** @type {import("../api_types").JudgeOut[]} */ (judges.items),
    inboxes: /** @type {import("../api_types").InboxOut[]} */ (inboxes),
    inboxUpload,
    sets: /** @type {import("../api_types").ScenarioSetOut[]} */ (sets),
    demonstrations: /** @type {import("../api_types").DemonstrationsOut[]} */ (demonstrations),
    parent: /** @type {import("../api_types").RunOut | null} */ (parent),
  };
}

/**
 * @typedef {{environment: string, inbox: string, scenarios: string, documents: Record<string, string>, judge: string,
 *   checkpoint: string}} Task
 */
/** @typedef {import("../api_types").DocumentOut} DocumentOut */

/** @param {{choices: Choices, query: URLSearchParams}} props `query` can name what the form is filled in with */
function Form({ choices, query }) {
  const { parent } = choices;
  const scenarios = query.get("scenarios") ?? "";
  const before = parent ? forkable(parent) : { [_SCENARIOS.name]: scenarios };
  const [values, setValues] = useState(before);
  const [task, setTask] = useState(
    /** @type {Task} */ ({
      environment: parent?.environment ?? query.get("environment") ?? "email_search",
      inbox: "",
      scenarios,
      documents: {},
      judge: query.get("judge") ?? "",
      checkpoint: String(parent?.best_checkpoint?.step ?? ""),
    }),
  );
  const [state, setState] = useState(/** @type {{isBusy?: boolean, error?: Error}} */ ({}));
  const setValue = (/** @type {string} */ name, /** @type {string} */ value) =>
    setValues((before) => ({ ...before, [name]: value }));
  const faults = state.error instanceof ApiError ? state.error.errors : [];
  const body = bodyOf(task, values, choices);
  const target = parent ? path`runs/${parent.run_id}/fork` : "learn-loop";

  /** @param {SubmitEvent} event */
  async function submit(event) {
    event.preventDefault();
    setState({ isBusy: true });
    try {
      if (body instanceof Error) throw body;
      const started = await post(target, body);
      go(["runs", started.run_id]);
    } catch (error) {
      setState({ error: /** @type {Error} */ (error) });
      requestAnimationFrame(() =>
        /** @type {HTMLElement | null} */ (document.querySelector("[aria-invalid=true]"))?.focus(),
      );
    }
  }
  return html`<form class="start" onSubmit=${submit} novalidate>
    <div class="start-fields">
      ${
        !parent &&
        html`<${TaskFields} task=${task} set=${setTask} choices=${choices} faults=${faults} values=${values}
          setValue=${setValue} />`
      }
      ${
        parent &&
        html`<section class="card"><h2>Where it starts</h2>
        <div class="fields"><${Field} field=${_CHECKPOINT} value=${task.checkpoint} faults=${faults}
          set=${(/** @type {string} */ checkpoint) => setTask({ ...task, checkpoint })} /></div></section>`
      }
      ${GROUPS.map(
        (group) => html`<${Group} key=${group.title} group=${group} values=${values} faults=${faults}
        hidden=${parent ? _NOT_FORKED : new Set()} set=${setValue} />`,
      )}
      ${
        !parent &&
        html`<${WarmStartFields} values=${values} set=${setValue} faults=${faults}
        names=${namesOf(choices.demonstrations)}
        stored=${stored("warm_start.demonstrations", choices.demonstrations, setValue)} />`
      }
    </div>
    <aside class="card start-side">
      <h2>The request</h2>
      ${
        body instanceof Error
          ? html`<p class="wrong">${body.message}</p>`
          : html`<${AsCode} body=${body} target=${target} />`
      }
      ${state.error && html`<${Faults} error=${state.error} />`}
      <button class="primary" disabled=${state.isBusy} aria-busy=${state.isBusy}>
        ${parent ? "Fork the run" : "Start the run"}
      </button>
    </aside>
  </form>`;
}

/** @param {Fault} each */
const fault = (each) =>
  html`<li><code>${label(each.loc.slice(1).join("."), 120)}</code> <${Text} value=${each.msg} limit=${400} /></li>`;

/** All faults as a list; each is also shown at its field. @param {{error: Error}} props */
function Faults({ error }) {
  const errors = error instanceof ApiError ? error.errors : [];
  return html`<div class="notice bad" role="alert">
    <${Text} as="p" value=${errors.length > 0 ? "The service did not accept this:" : error.message} limit=${600} />
    ${errors.length > 0 && html`<ul>${errors.map(fault)}</ul>`}
  </div>`;
}

/** The settings of a run that a fork can take over. @param {import("../api_types").RunOut} parent */
function forkable(parent) {
  const kept = Object.entries(valuesOf(parent.request)).filter(
    ([name]) => !_NOT_FORKED.has(name) && name !== "model.name",
  );
  return Object.fromEntries(kept);
}

/**
 * The body of the request, or an Error if it cannot be made.
 * @param {Task} task @param {Record<string, string>} values @param {Choices} choices
 */
function bodyOf(task, values, { parent, environments }) {
  if (parent) {
    const changes = requestOf(changedIn(values, forkable(parent)), { withDefaults: true });
    return task.checkpoint ? { checkpoint: Number(task.checkpoint), ...changes } : changes;
  }
  const { warm_start: how, ...settings } = requestOf(values);
  const demonstrations = demonstrationsOf(values);
  const warmStart = demonstrations ? { warm_start: { demonstrations, ...how } } : {};
  const judged = { ...(task.judge ? { judge: { name: task.judge } } : {}), ...warmStart, ...settings };
  if (task.environment === "agent") return { ...agentRequest(values), ...judged };
  /** @type {Record<string, any>} */
  const config = {};
  if (task.environment === "email_search" && task.inbox) config.inbox = task.inbox;
  if (task.scenarios) config.scenarios = task.scenarios;
  for (const { setting, title } of documentsOf(environments, task.environment)) {
    try {
      if (task.documents[setting]?.trim()) config[setting] = JSON.parse(task.documents[setting]);
    } catch {
      return new Error(`${title}: this is not valid JSON.`);
    }
  }
  return {
    environment: Object.keys(config).length > 0 ? { name: task.environment, config } : { name: task.environment },
    ...judged,
  };
}

/**
 * The documents that runs of an environment can be given.
 * @param {Choices["environments"]} environments @param {string} name
 */
const documentsOf = (environments, name) => environments.find((each) => each.name === name)?.documents ?? [];

/**
 * @param {{task: Task, set: (task: Task) => void, choices: Choices, faults: Fault[], values: Record<string, string>,
 *   setValue: (name: string, value: string) => void}} props
 */
function TaskFields({ task, set, choices, faults, values, setValue }) {
  const change = (/** @type {Exclude<keyof Task, "documents">} */ name) => (/** @type {string} */ value) =>
    set({ ...task, [name]: value });
  const isMail = task.environment === "email_search";
  const isOwn = task.environment === "agent";
  const sets = choices.sets.filter((each) => each.environment === task.environment);
  const setDocument = (/** @type {string} */ name) => (/** @type {string} */ text) =>
    set({ ...task, documents: { ...task.documents, [name]: text } });
  return html`<section class="card"><h2>Task and judge</h2>
    <div class="fields">
      <${Field} field=${environmentField(choices, task.environment)} value=${task.environment}
        set=${change("environment")} faults=${faults} />
      <${Field} field=${judgeField(choices, isOwn)} value=${task.judge} set=${change("judge")} faults=${faults} />
      ${
        isMail &&
        html`<${Field} field=${{ ..._INBOX, choices: namesOf(choices.inboxes) }} value=${task.inbox}
          set=${change("inbox")} faults=${faults} />`
      }
      ${
        !isOwn &&
        sets.length > 0 &&
        html`<${Field} field=${{ ..._SCENARIOS, choices: namesOf(sets) }} value=${task.scenarios}
          set=${change("scenarios")} faults=${faults} />`
      }
    </div>
    <${UnusableJudges} judges=${choices.judges} />
    ${isOwn && html`<${AgentFields} values=${values} set=${setValue} faults=${faults} sets=${sets} />`}
    ${isMail && task.inbox && !task.scenarios && html`<${QuestionsNeeded} key=${task.inbox} inbox=${task.inbox} />`}
    ${
      isMail &&
      choices.inboxUpload &&
      html`<${Upload} kind=${choices.inboxUpload}
        done=${stored("inbox", choices.inboxes, (_, name) => change("inbox")(name))} />`
    }
    ${documentsOf(choices.environments, task.environment).map(
      (each) => html`<${DocumentField} key=${each.setting} document=${each}
      value=${task.documents[each.setting] ?? ""} faults=${faults}
      set=${setDocument(each.setting)} />`,
    )}
  </section>`;
}

/** @param {Choices} choices @param {string} name */
const environmentField = ({ environments }, name) => ({
  name: "environment.name",
  label: "Environment",
  type: "string",
  help: environments.find((each) => each.name === name)?.description || "An environment of this installation.",
  choices: environments.map((each) => each.name),
});

/** @param {Choices} choices @param {boolean} isOwn whether the agent is the user's own */
const judgeField = ({ judges }, isOwn) => ({
  name: "judge",
  label: "Judge",
  type: "string",
  help: isOwn
    ? "RULER compares what the agents did; `reported` takes the rewards that your agent reports."
    : "Scores the rollouts. The environment's own judge fits its task.",
  choices: judges.filter((each) => !each.needs).map((each) => each.name),
  standard: "the environment's own",
});

/** Judges that are not offered, with what they need. @param {{judges: import("../api_types").JudgeOut[]}} props */
function UnusableJudges({ judges }) {
  const unusable = judges.filter((each) => each.needs);
  if (unusable.length === 0) return null;
  return html`<details class="muted small">
    <summary>Judges that cannot be used here yet: ${unusable.map((each) => label(each.name, 60)).join(", ")}</summary>
    <ul>${unusable.map((each) => html`<li>${visible(each.needs ?? "")}</li>`)}</ul>
  </details>`;
}

/** @param {{name: string}[]} versions */
const namesOf = (versions) => [...new Set(versions.map((each) => each.name))];

/**
 * Select the data that was just uploaded.
 * @param {string} field @param {any[]} versions available versions
 * @param {(field: string, name: string) => void} choose
 */
const stored = (field, versions, choose) => (/** @type {string} */ name) => (
  versions.unshift({ name }), choose(field, name)
);

/**
 * A document of an environment, pasted or from a file.
 * @param {{document: DocumentOut, value: string, set: (value: string) => void, faults: Fault[]}} props
 */
function DocumentField({ document, value, set, faults }) {
  const wrong = faults.filter((each) => each.loc.includes(document.setting) || each.loc.includes("config"));
  /** @param {Event & {currentTarget: HTMLInputElement}} event */
  const chosen = async (event) => set((await event.currentTarget.files?.[0]?.text()) ?? "");
  return html`<div class="fields">
    <label class="field wide"><span>${document.title}</span>
      <textarea class="code" spellcheck=${false} value=${value} aria-invalid=${wrong.length > 0}
        placeholder=${document.example.length > 0 ? JSON.stringify(document.example) : undefined}
        onInput=${(/** @type {any} */ event) => set(event.currentTarget.value)}></textarea>
      <span class="help"><${Text} value=${document.description} limit=${600} /></span>
      ${wrong.map((each) => html`<span class="wrong">${label(each.msg, 300)}</span>`)}
    </label>
    <label class="field"><span>… or from a file</span><input type="file" accept=".json" onChange=${chosen} /></label>
  </div>`;
}

/**
 * @param {{group: typeof GROUPS[number], values: Record<string, string>, faults: Fault[],
 *   hidden: Set<string>, set: (name: string, value: string) => void}} props
 */
function Group({ group, values, faults, hidden, set }) {
  const names = Object.keys(group.fields).filter((name) => !hidden.has(name));
  const isWrong = faults.some((fault) => names.includes(fault.loc.slice(1).join(".")));
  return html`<details class="card" open=${group.isOpen || isWrong}>
    <summary><h2>${group.title}</h2></summary>
    <div class="fields">
      ${names.map(
        (name) => html`<${Field} key=${name} field=${fields[name]} value=${values[name] ?? ""} faults=${faults}
        set=${(/** @type {string} */ value) => set(name, value)} />`,
      )}
    </div>
  </details>`;
}
