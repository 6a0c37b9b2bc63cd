// The settings of a run as form fields: their places in the request, and the API's descriptions.

import { FIELDS } from "./api_fields.js";

/**
 * @typedef {object} Field
 * @property {string} name path in the request, such as `evaluation.every`
 * @property {string} label
 * @property {string} help description from the API's documentation
 * @property {"integer" | "number" | "string" | "boolean"} type
 * @property {unknown} [standard] the default
 * @property {string[]} [choices]
 * @property {string} [placeholder] what an empty field means if there is no default
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
      replace_groups: "Replace groups that teach nothing",
      scenario_sampling: "Draw scenarios",
      end_when_learned: "End when little is left to learn",
    },
  },
  {
    title: "Model",
    isOpen: true,
    fields: {
      name: "Name of the run",
      "model.name": "Name of the model",
      "model.base_model": "Base model",
      "model.enable_thinking": "Think before answering",
      backend: "Backend",
    },
  },
  {
    title: "Held-out evaluation",
    fields: {
      "evaluation.every": "Evaluate every … iterations",
      "evaluation.scenarios": "Validation scenarios",
      "evaluation.test_scenarios": "Test scenarios",
      "evaluation.baseline_width": "Before training: interval that suffices",
      "evaluation.best": "The best checkpoint",
      "evaluation.samples": "Rollouts per scenario",
      "evaluation.seed": "Seed of held-out scenarios",
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
      "checkpoints.keep_evaluated": "Keep others that were evaluated",
      "on_no_signal.action": "If iterations teach nothing",
      "on_no_signal.after": "… after this many in a row",
      on_collapse: "If a step breaks the policy",
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

/** Settings of a warm start that has demonstrations. @type {{title: string, fields: Record<string, string>}} */
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
  [...GROUPS, WARM_START]
    .flatMap((group) => Object.entries(group.fields))
    .map(([name, label]) => [name, { name, label, placeholder: "default", ...FIELDS[name] }]),
);

/**
 * The request for a form: the fields that were filled in and differ from their defaults.
 * @param {Record<string, string>} values by field name
 * @param {{withDefaults?: boolean}} [options] include values that equal the defaults, as for a fork, whose fields start
 *   with its parent's values
 */
export function requestOf(values, { withDefaults = false } = {}) {
  /** @type {Record<string, any>} */
  const request = {};
  for (const [name, text] of Object.entries(values)) {
    const field = fields[name];
    if (!field || text.trim() === "") continue;
    const value = field.type === "string" ? text.trim() : field.type === "boolean" ? text === "true" : Number(text);
    if (withDefaults || value !== field.standard) put(request, name.split("."), value);
  }
  return request;
}

/**
 * The changes of a fork: fields that differ from its parent's, together with the other fields of their objects.
 * @param {Record<string, string>} values
 * @param {Record<string, string>} before
 */
export function changedIn(values, before) {
  const objectOf = (/** @type {string} */ name) => name.split(".")[0];
  const changed = new Set(
    Object.keys(values)
      .filter((name) => values[name] !== (before[name] ?? ""))
      .map(objectOf),
  );
  return Object.fromEntries(Object.entries(values).filter(([name]) => changed.has(objectOf(name))));
}

/** @param {Record<string, any>} object @param {string[]} names @param {unknown} value */
function put(object, [name, ...rest], value) {
  if (rest.length === 0) object[name] = value;
  else put((object[name] ??= {}), rest, value);
}

/**
 * The values of the form's fields in a request.
 * @param {Record<string, any>} request @returns {Record<string, string>}
 */
export function valuesOf(request) {
  /** @type {Record<string, string>} */
  const values = {};
  for (const name of GROUPS.flatMap((group) => Object.keys(group.fields))) {
    const value = name.split(".").reduce((/** @type {any} */ object, part) => object?.[part], request);
    if (value !== null && value !== undefined) values[name] = String(value);
  }
  return values;
}
