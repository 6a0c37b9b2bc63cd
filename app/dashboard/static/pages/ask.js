// Gives one task to the base and the trained agent, and shows them working side by side.

import { useEffect, useRef, useState } from "../vendor/hooks.js";
import { all, get } from "../api.js";
import { ask } from "../ask_stream.js";
import { Conversation } from "../parts/conversation.js";
import { WhyNoSuccess } from "../parts/expected.js";
import { html } from "../parts/html.js";
import { nameOf } from "../parts/run_name.js";
import { Rate } from "../parts/rate.js";
import { Empty, Loaded, useLoaded } from "../parts/states.js";
import { label, Text } from "../parts/text.js";
import { href } from "../router.js";

/** @typedef {import("../parts/conversation.js").Message} Message */
/** @typedef {import("../api_types").RunListed} Run */
/** @typedef {{messages: Message[], answer?: import("../api_types").AskOut, error?: Error}} Attempt */
/** @typedef {import("../api_types").EnvironmentOut} Environment */
/** @typedef {{title?: string, description?: string, type?: string | string[], examples?: unknown[]}} Property */
/**
 * @typedef {{name: string, title: string, help?: string, example?: string, isText: boolean, isRequired: boolean}}
 *   TaskField
 */

/** The field for a whole task, where the environment does not say what one is made of. */
const _WHOLE = "task";

/** @param {{query: URLSearchParams}} props */
export function Ask({ query }) {
  const state = useLoaded(async (aborted) => {
    const [runs, environments] = await Promise.all([
      all("runs", { limit: 100 }, { aborted, most: 100 }),
      get("environments", {}, aborted),
    ]);
    return { runs: /** @type {Run[]} */ (runs), environments: /** @type {Environment[]} */ (environments.items) };
  }, []);
  return html`<h1>Ask</h1>
    <p class="muted">The same task for the model before training and for the trained agent.${" "}
      Every answer is kept as a trajectory.</p>
    <${Loaded} state=${state}>${(/** @type {{runs: Run[], environments: Environment[]}} */ { runs, environments }) => {
      const trained = runs.filter((run) => run.best_checkpoint);
      if (trained.length === 0)
        return html`<${Empty} title="No agent to ask yet">
          <p>A run can be asked after its baseline. <a href=${href(["start"])}>Start one</a>.</p><//>`;
      return html`<${Form} runs=${trained} environments=${environments}
          first=${query.get("run") ?? trained[0].run_id} />`;
    }}<//>`;
}

/** The fields of an environment's tasks. @param {Environment | undefined} environment @returns {TaskField[] | null} */
function fieldsOf(environment) {
  const schema = /** @type {{properties: Record<string, Property>, required?: string[]} | null | undefined} */ (
    environment?.task
  );
  if (!schema) return null;
  return Object.entries(schema.properties).map(([name, property]) => {
    const example = property.examples?.[0];
    return {
      name,
      title: String(property.title ?? name),
      help: property.description,
      example: example === undefined ? undefined : written(example),
      isText: (property.type ?? "string") === "string",
      isRequired: (schema.required ?? []).includes(name),
    };
  });
}

/** A value as it is typed into a field. @param {unknown} value */
function written(value) {
  return typeof value === "string" ? value : JSON.stringify(value);
}

/** What was typed into the fields, as a task. @param {TaskField[]} fields @param {Record<string, string>} values */
function taskOf(fields, values) {
  /** @type {Record<string, unknown>} */
  const task = {};
  for (const { name, title, isText } of fields) {
    const text = values[name]?.trim();
    if (text) task[name] = isText ? text : parsed(text, title);
  }
  return task;
}

/** @param {string} text @param {string} title */
function parsed(text, title) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`${title}: this is not JSON (${/** @type {Error} */ (error).message})`);
  }
}

/** @param {{runs: Run[], environments: Environment[], first: string}} props */
function Form({ runs, environments, first }) {
  const [chosen, setChosen] = useState(first);
  const run = runs.find((each) => each.run_id === chosen) ?? runs[0];
  const drawn = fieldsOf(environments.find((each) => each.name === run.environment));
  const fields = drawn ?? [{ name: _WHOLE, title: "Task as JSON", isText: false, isRequired: true }];
  const [error, setError] = useState(/** @type {Error | undefined} */ (undefined));
  const [values, setValues] = useState(/** @type {Record<string, string>} */ ({}));
  const examples = useLoaded((aborted) => exampleOf(run, aborted), [run.run_id]);
  const [before, after] = [useAttempt(), useAttempt()];
  useEffect(() => {
    const task = examples.data;
    if (task)
      setValues(
        Object.fromEntries(
          drawn
            ? Object.entries(task).map(([name, value]) => [name, written(value)])
            : [[_WHOLE, JSON.stringify(task)]],
        ),
      );
  }, [examples.data]);

  /** @param {SubmitEvent} event */
  function submit(event) {
    event.preventDefault();
    setError(undefined);
    try {
      const given = taskOf(fields, values);
      const input = drawn ? given : given[_WHOLE];
      before.start({ run_id: run.run_id, checkpoint: 0, input });
      after.start({ run_id: run.run_id, input });
    } catch (fault) {
      setError(/** @type {Error} */ (fault));
    }
  }
  return html`
    <form class="card" onSubmit=${submit}>
      <div class="fields">
        <label class="field"><span>Run</span><select value=${run.run_id}
            onChange=${(/** @type {any} */ event) => setChosen(event.target.value)}>
          ${runs.map(
            (each) =>
              html`<option value=${each.run_id} selected=${each === run}>
                ${nameOf(each)} (${label(each.environment)}, step ${each.best_checkpoint?.step})</option>`,
          )}
        </select></label>
        ${fields.map(
          (
            { name, title, help, example, isRequired },
            place,
          ) => html`<label class=${`field ${place === 0 ? "wide" : ""}`} key=${name} title=${help}><span>${title}</span>
          <input name=${name} required=${isRequired} placeholder=${example} value=${values[name] ?? ""}
            autocomplete="off" onInput=${(/** @type {any} */ event) =>
              setValues({ ...values, [name]: event.target.value })} /></label>`,
        )}
      </div>
      <button class="primary" disabled=${before.isBusy || after.isBusy}>Ask both</button>
      ${error && html`<p class="wrong" role="alert">${label(error.message, 400)}</p>`}
    </form>
    ${
      (before.attempt || after.attempt) &&
      html`<div class="columns">
      <${Answered} title="Before training" attempt=${before.attempt} isBusy=${before.isBusy} />
      <${Answered} title=${`Trained (step ${run.best_checkpoint?.step})`}
        attempt=${after.attempt} isBusy=${after.isBusy} />
    </div>`
    }`;
}

/**
 * A task that neither agent was trained on.
 * @param {Run} run @param {AbortSignal} aborted @returns {Promise<Record<string, unknown> | undefined>}
 */
async function exampleOf(run, aborted) {
  const page = await get(
    `runs/${encodeURIComponent(run.run_id)}/trajectories`,
    { kind: "evaluation", limit: 1 },
    aborted,
  );
  return page.items[0]?.scenario.task;
}

function useAttempt() {
  const [attempt, setAttempt] = useState(/** @type {Attempt | undefined} */ (undefined));
  const [isBusy, setBusy] = useState(false);
  const controller = useRef(new AbortController());
  useEffect(() => () => controller.current.abort(), []);
  /** @param {Record<string, unknown>} task */
  async function start(task) {
    controller.current.abort();
    controller.current = new AbortController();
    setAttempt({ messages: [] });
    setBusy(true);
    const said = (/** @type {Message} */ message) =>
      setAttempt((made) => ({ ...made, messages: [...(made?.messages ?? []), message] }));
    try {
      const answer = await ask(task, said, controller.current.signal);
      setAttempt((made) => ({ messages: made?.messages ?? [], answer }));
    } catch (error) {
      setAttempt((made) => ({ messages: made?.messages ?? [], error: /** @type {Error} */ (error) }));
    } finally {
      setBusy(false);
    }
  }
  return { attempt, isBusy, start };
}

/** Whether the answer is right, as far as that is known. @param {import("../api_types").AskOut} answer */
function marked({ correct, sources_correct: isSourced, success }) {
  if (correct === null) return success ? "answered" : "no answer";
  if (!correct) return html`<span class="bad-ink">✗ wrong</span>`;
  return isSourced === false
    ? html`<span class="bad-ink">✗ right answer, wrong source</span>`
    : html`<span class="good">✓ right</span>`;
}

/** @param {{title: string, attempt?: Attempt, isBusy: boolean}} props */
function Answered({ title, attempt, isBusy }) {
  const { messages = [], answer, error } = attempt ?? {};
  return html`<section class="card" aria-label=${title} aria-busy=${isBusy}>
    <h2>${title} <span class="muted" role="status">${isBusy ? "working …" : answer ? marked(answer) : ""}</span></h2>
    <${Conversation} messages=${messages} />
    ${
      answer &&
      html`<div class="answer">
      ${answer.answer !== null && html`<p><strong><${Text} value=${answer.answer} limit=${2000} /></strong></p>`}
      ${
        answer.email &&
        html`<p class="subject"><${Text} value=${answer.email.subject} limit=${300} /></p>
        <${Text} as="p" value=${answer.email.body} />`
      }
      ${
        answer.expected !== null &&
        html`<p>Expected: <strong><${Text} value=${answer.expected} limit=${2000} /></strong></p>`
      }
      <${WhyNoSuccess} of=${answer} />
      ${
        answer.source_ids.length > 0 &&
        html`<p class="muted">Sources: ${answer.source_ids.map((id) => html`<mark>${label(id)}</mark> `)}</p>`
      }
      ${answer.note && html`<p class="muted"><${Text} value=${answer.note} limit=${500} /></p>`}
      <p><a href=${href(["trajectories", answer.trajectory_id])}>Its trajectory</a></p>
      <${Rate} key=${answer.trajectory_id} about=${{ trajectory_id: answer.trajectory_id }} />
    </div>`
    }
    ${error && html`<p class="wrong" role="alert"><${Text} value=${error.message} limit=${500} /></p>`}
  </section>`;
}
