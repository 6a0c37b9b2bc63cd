// The settings of a run as fields of a form: where each stands in the request, and what the API says about it.

import { FIELDS } from "./api_fields.js";

/**
 * @typedef {object} Field
 * @property {string} name its place in the request: `evaluation.every`
 * @property {string} label
 * @property {string} help what the API's documentation says
 * @property {"integer" | "number" | "string"} type
 * @property {unknown} [standard] the default
 * @property {string[]} [choices]
 * @property {string} [placeholder] what an empty field means, where there is no default
 */

/** @type {{title: string, fields: Record<string, string>, isOpen?: boolean}[]} */
export const GROUPS = [
  {
    title: "Learning",
    isOpen: true,
    fields: {
      iterations: "Iterations",
      groups_per_iteration: "Scenarios per iteration",
      rollouts_per_group: "Rollouts per scenario",
      learning_rate: "Learning rate",
      temperature: "Temperature",
      seed: "Seed",
    },
  },
  {
    title: "Model",
    isOpen: true,
    fields: { "model.name": "Name of the model", "model.base_model": "Base model", backend: "Backend" },
  },
  {
    title: "Held-out evaluation",
    fields: {
      "evaluation.every": "Evaluate every … iterations",
      "evaluation.scenarios": "Validation scenarios",
      "evaluation.test_scenarios": "Test scenarios",
      "evaluation.samples": "Rollouts per scenario",
    },
  },
  {
    title: "Budget and checkpoints",
    fields: {
      "budget.max_minutes": "Minutes at most",
      "budget.max_tokens": "Tokens at most",
      "budget.max_usd": "Dollars at most",
      "checkpoints.keep_best": "Keep the best",
      "checkpoints.keep_last": "Keep the newest",
      "checkpoints.keep_every": "Keep every … steps",
      "on_no_signal.action": "If iterations teach nothing",
      "on_no_signal.after": "… after this many in a row",
    },
  },
  {
    title: "Limits of a rollout, and training details",
    fields: {
      max_turns: "Turns at most",
      max_completion_tokens: "Tokens per turn at most",
      rollout_timeout_s: "Seconds per rollout at most",
      concurrency: "Rollouts at the same time",
      warmup_iterations: "Warm-up iterations",
      "pipeline.max_staleness": "Iterations that rollouts run ahead",
      "train_options.kl_penalty_coef": "KL penalty",
      "train_options.epsilon": "Clipping (epsilon)",
    },
  },
];

/** What is set of a warm start, once it has demonstrations. @type {{title: string, fields: Record<string, string>}} */
export const WARM_START = {
  title: "Warm start",
  fields: {
    "warm_start.epochs": "Epochs",
    "warm_start.batch_size": "Demonstrations per step",
    "warm_start.learning_rate": "Highest learning rate",
    "warm_start.held_out": "Share held out",
    "warm_start.demonstrations_per_iteration": "Demonstrations per iteration",
  },
};

/** All fields of the form by name. @type {Record<string, Field>} */
export const fields = Object.fromEntries(
  [...GROUPS, WARM_START].flatMap((group) => Object.entries(group.fields)).map(([name, label]) => [name, { name, label, placeholder: "default", ...FIELDS[name] }]),
);

/**
 * The request that the form makes: what was filled in, and nothing that is the default anyway.
 * @param {Record<string, string>} values by the fields' names
 * @param {{withDefaults?: boolean}} [options] a fork's fields have its parent's values in place of the defaults
 */
export function requestOf(values, { withDefaults = false } = {}) {
  /** @type {Record<string, any>} */
  const request = {};
  for (const [name, text] of Object.entries(values)) {
    const field = fields[name];
    if (!field || text.trim() === "") continue;
    const value = field.type === "string" ? text.trim() : Number(text);
    if (withDefaults || value !== field.standard) put(request, name.split("."), value);
  }
  return request;
}

/**
 * What a fork changes: the fields that are not as its parent's, each with the others of its object.
 * @param {Record<string, string>} values
 * @param {Record<string, string>} before
 */
export function changedIn(values, before) {
  const objectOf = (/** @type {string} */ name) => name.split(".")[0];
  const changed = new Set(Object.keys(values).filter((name) => values[name] !== (before[name] ?? "")).map(objectOf));
  return Object.fromEntries(Object.entries(values).filter(([name]) => changed.has(objectOf(name))));
}

/** @param {Record<string, any>} object @param {string[]} names @param {unknown} value */
function put(object, [name, ...rest], value) {
  if (rest.length === 0) object[name] = value;
  else put((object[name] ??= {}), rest, value);
}

/** What was filled in, of a request. @param {Record<string, any>} request @returns {Record<string, string>} */
export function valuesOf(request) {
  /** @type {Record<string, string>} */
  const values = {};
  for (const name of GROUPS.flatMap((group) => Object.keys(group.fields))) {
    const value = name.split(".").reduce((/** @type {any} */ object, part) => object?.[part], request);
    if (value !== null && value !== undefined) values[name] = String(value);
  }
  return values;
}
