// The form at a turn of a trajectory that continues the rollout from there: how often, by which models, and what is
// changed before.

import { useEffect, useId, useRef, useState } from "../vendor/hooks.js";
import { all, ApiError, get, path, post } from "../api.js";
import { counted } from "../format.js";
import { Action } from "../parts/action.js";
import { Field } from "../parts/field.js";
import { html } from "../parts/html.js";
import { Loaded, useLoaded } from "../parts/states.js";
import { label } from "../parts/text.js";
import { go } from "../router.js";

/** @typedef {import("../api_types").TrajectoryOut} Trajectory */
/** @typedef {import("../parts/conversation.js").Message} Message */
/** @typedef {{name: string, title: string, label: string}} Model `label`: its name in the report */

const _APPEND = "append";
const _SAMPLES = 8;

/**
 * The number of a reply of the agent among its turns, from 1. Replies that the environment gave as examples are before
 * the first.
 * @param {Trajectory} trajectory @param {number} place
 */
export function turnAt({ messages, turns }, place) {
  const replies = messages.flatMap((/** @type {Message} */ { role }, /** @type {number} */ index) =>
    role === "assistant" ? [index] : [],
  );
  return replies.indexOf(place) + 1 - Math.max(0, replies.length - turns);
}

/** What a message of a trajectory is, in words. @param {Trajectory} trajectory @param {number} place */
export function messageTitle(trajectory, place) {
  const { messages } = trajectory;
  const { role, tool_call_id: call } = messages[place];
  if (role === "system") return "Instructions";
  if (role === "user")
    return messages.findIndex((/** @type {Message} */ each) => each.role === "user") === place
      ? "Task"
      : "Message of the user";
  const turn = Math.max(
    0,
    turnAt(
      trajectory,
      messages.findLastIndex(
        (/** @type {Message} */ each, /** @type {number} */ index) => index <= place && each.role === "assistant",
      ),
    ),
  );
  if (role !== "tool") return `Reply of turn ${turn}`;
  const calls = messages.slice(0, place).flatMap((/** @type {Message} */ each) => each.tool_calls ?? []);
  return `Result of ${label(calls.findLast((each) => each.id === call)?.function?.name ?? "a tool", 60)}, turn ${turn}`;
}

/**
 * The checkpoint that made a rollout, and its run's base, best and newest ones.
 * @param {Trajectory} trajectory @param {AbortSignal} aborted @returns {Promise<Model[]>}
 */
async function modelsFor({ run_id: run, model, step }, aborted) {
  const own = step === null ? model : `${model}@${step}`;
  const made = {
    name: own,
    title:
      step === null
        ? "the model that made it"
        : `the checkpoint that made it (step ${step}${step === 0 ? ", before training" : ""})`,
    label: step === null ? label(model, 90) : `step ${step}`,
  };
  if (!run) return [made];
  const [{ model: trained }, checkpoints] = await Promise.all([
    get(path`runs/${run}`, {}, aborted),
    all(path`runs/${run}/checkpoints`, {}, { aborted, most: 1000 }),
  ]);
  const kept = /** @type {import("../api_types").CheckpointOut[]} */ (checkpoints).filter(
    (each) => each.model !== null && each.step > 0,
  );
  const [best, newest] = [kept.find((each) => each.is_best), kept.at(-1)];
  const others = [
    ...(step === 0
      ? []
      : [{ name: trained.base_model, title: `the base model (${label(trained.base_model, 60)})`, label: "base" }]),
    ...(best
      ? [
          {
            name: String(best.model),
            title: `the run's best checkpoint (step ${best.step})`,
            label: `best, step ${best.step}`,
          },
        ]
      : []),
    ...(newest && newest !== best
      ? [
          {
            name: String(newest.model),
            title: `the run's newest checkpoint (step ${newest.step})`,
            label: `newest, step ${newest.step}`,
          },
        ]
      : []),
  ];
  return [made, ...others.filter((each) => each.name !== own)];
}

/**
 * @param {{trajectory: Trajectory, place: number, close: () => void}} props `place`: that of the reply which is sampled
 *   anew
 */
export function WhatIfForm({ trajectory, place, close }) {
  const turn = turnAt(trajectory, place);
  const models = useLoaded((aborted) => modelsFor(trajectory, aborted), [trajectory.id]);
  const [samples, setSamples] = useState(String(_SAMPLES));
  const [others, setOthers] = useState(/** @type {string[]} */ ([]));
  const [isOwn, setOwn] = useState(true);
  const [changed, setChanged] = useState("");
  const [text, setText] = useState("");
  const [error, setError] = useState(/** @type {Error | undefined} */ (undefined));
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const id = useId();
  useEffect(() => box.current?.focus(), []);
  const found = models.data ?? [];
  const chosen = found.filter((each, index) => (index === 0 ? isOwn : others.includes(each.name)));
  const edit = editOf(trajectory, changed, text);
  const isEmpty = changed === _APPEND && !text.trim();
  const isMissing = found.length > 0 && chosen.length === 0;
  const isSame = changed !== "" && edit === undefined;
  const several = chosen.length > 1 ? `${counted(chosen.length, "model")} continue.` : "";
  const hint = isMissing
    ? "Choose a model."
    : isEmpty
      ? "Write the message first."
      : isSame
        ? `The text is not changed yet. ${several}`
        : several;
  /** @param {string} which */
  function choose(which) {
    setChanged(which);
    setText(which === "" || which === _APPEND ? "" : trajectory.messages[Number(which)].content);
  }
  async function start() {
    setError(undefined);
    // Without models the service takes the checkpoint that made the rollout, and counts the continuations for the
    // turn's value.
    const isDefault = isOwn && others.length === 0;
    const more = isDefault ? {} : { models: chosen.map(({ name, label: known }) => ({ model: name, label: known })) };
    const count = Number(samples || Number.NaN); // what is no number is refused by the service
    const body = { turn, samples: Number.isNaN(count) ? samples : count, ...more, ...(edit && { edit }) };
    try {
      const started = await post(path`trajectories/${trajectory.id}/what-if`, body);
      go(["trajectories", trajectory.id, "what-if", started.evaluation_id]);
    } catch (failed) {
      setError(/** @type {Error} */ (failed));
      throw failed;
    }
  }
  return html`<section ref=${box} class="what-if-form" tabindex="-1" aria-labelledby=${id}>
    <h3 id=${id}>Continue from here, turn ${turn}</h3>
    <p class="muted">${
      turn === 1
        ? "The rollout begins again."
        : "The rollout is replayed up to here: its tool calls are made again, " +
          "and their results must be the recorded ones."
    } Turn ${turn} and what follows are sampled anew.</p>
    <${Field} field=${{
      name: "samples",
      label: "Continuations",
      type: "integer",
      standard: _SAMPLES,
      help: "By each model, 1 to 64.",
    }} value=${samples} set=${setSamples} faults=${error instanceof ApiError ? error.errors : []} />
    <${Loaded} state=${models} rows=${1}>${(/** @type {Model[]} */ each) =>
      html`<${Models} models=${each} isOwn=${isOwn} setOwn=${setOwn} others=${others} setOthers=${setOthers} />`}<//>
    <${Edit} trajectory=${trajectory} place=${place} changed=${changed} text=${text}
      set=${choose} setText=${setText} />
    <div class="actions"><${Action} label="Continue from here" kind="primary"
        disabled=${isEmpty || isMissing} act=${start} />
      <button onClick=${close}>Close</button>
      <span class="muted">${hint}</span></div>
  </section>`;
}

/** @param {Trajectory} trajectory @param {string} changed @param {string} text */
function editOf(trajectory, changed, text) {
  if (changed === "") return undefined;
  if (changed === _APPEND) return { append: text };
  const message = Number(changed);
  return trajectory.messages[message].content === text ? undefined : { message, content: text };
}

/**
 * @param {{models: Model[], isOwn: boolean, setOwn: (is: boolean) => void, others: string[],
 *   setOthers: (names: string[]) => void}} props
 *   the first of `models` made the rollout
 */
function Models({ models: [own, ...more], isOwn, setOwn, others, setOthers }) {
  if (more.length === 0) return html`<p class="muted">Continued by ${own.title}.</p>`;
  const flip = (/** @type {string} */ name) =>
    setOthers(others.includes(name) ? others.filter((each) => each !== name) : [...others, name]);
  return html`<fieldset class="scopes"><legend>Continued by</legend>
    <label><input type="checkbox" checked=${isOwn} onChange=${() => setOwn(!isOwn)} /> ${own.title}</label>
    ${more.map(
      ({ name, title }) =>
        html`<label key=${name}><input type="checkbox" checked=${others.includes(name)}
            onChange=${() => flip(name)} /> ${title}</label>`,
    )}
  </fieldset>`;
}

/**
 * @param {{trajectory: Trajectory, place: number, changed: string, text: string, set: (changed: string) => void,
 *   setText: (text: string) => void}} props
 */
function Edit({ trajectory, place, changed, text, set, setText }) {
  const id = useId();
  const places = trajectory.messages
    .slice(0, place)
    .flatMap((/** @type {Message} */ { content, tool_calls: calls }, /** @type {number} */ index) =>
      typeof content === "string" && !calls?.length ? [index] : [],
    );
  const isTool = changed !== "" && changed !== _APPEND && trajectory.messages[Number(changed)].role === "tool";
  return html`<div class="field">
    <label for=${id}>Change before this turn</label>
    <select id=${id} value=${changed} onChange=${(/** @type {any} */ event) => set(event.currentTarget.value)}>
      <option value="">nothing</option>
      ${places.map(
        (/** @type {number} */ each) => html`<option value=${each}>${messageTitle(trajectory, each)}</option>`,
      )}
      <option value=${_APPEND}>add a message of the user</option>
    </select>
    ${
      changed !== "" &&
      html`<textarea aria-label=${changed === _APPEND ? "Message of the user" : "New text"} dir="auto"
        maxlength="100000" value=${text}
        onInput=${(/** @type {any} */ event) => setText(event.currentTarget.value)}></textarea>`
    }
    ${
      isTool &&
      html`<span class="help">The model reads this text instead of the result. The world stays as it is: later${" "}
        tool calls act on what really happened.</span>`
    }
  </div>`;
}
