// The form that creates a schedule: when it runs, what its runs learn from and how, and what follows them.

import { useState } from "../vendor/hooks.js";
import { ApiError, get, post } from "../api.js";
import { moment } from "../format.js";
import { agentRequest, FROM_SESSIONS, RunnerFields } from "../parts/agent_fields.js";
import { Field } from "../parts/field.js";
import { html } from "../parts/html.js";
import { THEN } from "../parts/schedule.js";
import { Failed, useLoaded } from "../parts/states.js";
import { label } from "../parts/text.js";
import { href } from "../router.js";
import { fields, requestOf } from "../start_fields.js";

/** @typedef {import("../start_fields.js").Field} FormField */
/** @typedef {import("../parts/agent_fields.js").Fault} Fault */
/** @typedef {Record<string, string>} Values by field name */
/** @typedef {import("../parts/schedule.js").Schedule} Schedule */

/** @type {FormField[]} */
const _WHEN = [
  {
    name: "name",
    label: "Name",
    type: "string",
    placeholder: "nightly",
    help: "The models that its runs train are named after it.",
  },
  {
    name: "cron",
    label: "When",
    type: "string",
    help: "Minute, hour, day of the month, month and day of the week, in UTC. `0 2 * * *` is every night at two.",
  },
  {
    name: "promoted_name",
    label: "Promoted name",
    type: "string",
    placeholder: "live",
    help: "Runs learn from what users asked of it, and start from its checkpoint.",
  },
  {
    name: "least_new_tasks",
    label: "New tasks at least",
    type: "integer",
    standard: 100,
    help: "With fewer that users consented to, no run is started.",
  },
  {
    name: "window_days",
    label: "Of the last … days",
    type: "number",
    placeholder: "since the last run",
    help: "How old a task can be.",
  },
  {
    name: "then",
    label: "After a run",
    type: "string",
    choices: Object.values(THEN),
    help: "What becomes of its best checkpoint.",
  },
];
/** Settings of its runs that matter most; the others have their defaults. */
const _LEARNING = ["iterations", "groups_per_iteration", "rollouts_per_group", "learning_rate", "model.base_model"];
const _SESSIONS = "environment.config.scenarios.sessions";
/** Which tasks are drawn; `source.sessions.model` is the promoted name. @type {FormField[]} */
const _DRAWN = [
  {
    name: `${_SESSIONS}.limit`,
    label: "Tasks to draw",
    type: "integer",
    placeholder: "1000",
    help: "One half uniformly over users, the other half by the feedback.",
  },
  {
    name: `${_SESSIONS}.feedback`,
    label: "Feedback on one half",
    type: "string",
    standard: "does not matter",
    choices: ["any", "none", "positive", "negative"],
    help: "What users thought of the answers.",
  },
];

/** @param {{reload: () => void}} props */
export function NewSchedule({ reload }) {
  const [when, setWhen] = useState(/** @type {Values} */ ({ cron: "0 2 * * *", then: THEN.trial }));
  const [values, setValues] = useState(/** @type {Values} */ ({}));
  const [state, setState] = useState(/** @type {{error?: Error, schedule?: Schedule}} */ ({}));
  const judges = useLoaded((aborted) => get("judges", {}, aborted), []);
  const faults = state.error instanceof ApiError ? state.error.errors : [];
  const ofRun = faults.filter(isOfRun).map(atField);
  const set = (/** @type {string} */ name, /** @type {string} */ value) => setValues({ ...values, [name]: value });
  /** @param {FormField} field */
  const runField = (field) => html`<${Field} key=${field.name} field=${field} value=${values[field.name] ?? ""}
    set=${(/** @type {string} */ value) => set(field.name, value)} faults=${ofRun} />`;
  const judge = {
    name: "judge",
    label: "Judge",
    type: "string",
    choices: (judges.data?.items ?? []).map((/** @type {{name: string}} */ { name }) => name),
    standard: "the environment's own",
    help: "`ruler` compares what the agents did, with a judge model; `reported` takes the rewards that they report.",
  };
  /** @param {SubmitEvent} event */
  async function create(event) {
    event.preventDefault();
    try {
      setState({ schedule: await post("schedules", bodyOf(when, values)) });
      reload();
    } catch (error) {
      setState({ error: /** @type {Error} */ (error) });
    }
  }
  const isOpen = Boolean(state.error || state.schedule);
  return html`<details class="card" open=${isOpen}><summary><h2>New schedule</h2></summary>
    <form class="sections" onSubmit=${create}>
      <div class="fields">${_WHEN.map(
        (field) => html`<${Field} key=${field.name} field=${field} value=${when[field.name] ?? ""}
          set=${(/** @type {string} */ value) => setWhen({ ...when, [field.name]: value })}
          faults=${faults.filter((fault) => !isOfRun(fault))} />`,
      )}</div>
      <h3>Tasks and your agent</h3>
      <div class="fields">
        <${RunnerFields} values=${values} set=${set} faults=${ofRun} />
        ${_DRAWN.map(runField)}${runField(/** @type {FormField} */ (judge))}
      </div>
      <h3>Learning</h3>
      <div class="fields">${_LEARNING.map((name) => runField(fields[name]))}</div>
      ${state.error && html`<${Refused} error=${state.error} />`}
      <button class="primary">Create</button>
    </form>
    ${state.schedule && html`<${Created} schedule=${state.schedule} />`}
  </details>`;
}

/** The request for what was filled in. @param {Values} when @param {Values} values */
function bodyOf(
  { name = "", cron, promoted_name: promoted = "", then, least_new_tasks: least, window_days: days },
  values,
) {
  const [own, project] = promoted.trim().split("/").reverse();
  const asked = { [`${_SESSIONS}.model`]: promoted.trim() };
  const follows = Object.entries(THEN).find(([, text]) => text === then)?.[0];
  return {
    name: name.trim(),
    cron,
    ...(follows && { then: follows }),
    ...(own && { promoted_name: own }),
    ...(project && { project }),
    ...(least && { least_new_tasks: Number(least) }),
    ...(days && { window_days: Number(days) }),
    run: {
      ...agentRequest({ ...values, ...asked, source: FROM_SESSIONS }),
      ...(values.judge && { judge: { name: values.judge } }),
      ...requestOf(values),
    },
  };
}

/** @param {Fault} fault */
const isOfRun = ({ loc }) => loc[1] === "run";

/** A fault of a schedule's run, at the field of the form. @param {Fault} fault */
function atField({ loc: [, , ...names], msg }) {
  const name = names.join(".").replace(/^source\.sessions/, _SESSIONS);
  return { loc: ["body", ...name.split(".")], msg };
}

/** Why it was refused; each fault is also at its field. @param {{error: Error}} props */
function Refused({ error }) {
  const faults = error instanceof ApiError ? error.errors : [];
  if (faults.length === 0) return html`<${Failed} error=${error} />`;
  return html`<div class="wrong" role="alert"><ul>${faults.map(
    ({ loc, msg }) => html`<li><code>${label(loc.slice(1).join("."), 120)}</code> ${label(msg, 400)}</li>`,
  )}</ul></div>`;
}

/** @param {{schedule: Schedule}} props */
const Created = ({ schedule: { id, name, next_times: times } }) => html`<p class="notice" role="status">
  <a href=${href(["schedules", id])}>${label(name)}</a> runs next on ${times.slice(0, 3).map(moment).join(", ")}.</p>`;
