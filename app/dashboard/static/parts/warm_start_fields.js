// Fields of a warm start: the demonstrations to learn from before reinforcement learning, and how.

import { WARM_START, fields } from "../start_fields.js";
import { Field } from "./field.js";
import { html } from "./html.js";
import { DEMONSTRATIONS, Upload } from "./upload.js";

const _FROM = "warm_start.demonstrations";
const _COUNT = `${_FROM}.oracle`;
const _ORACLE = "the environment's own oracle";

/**
 * The source of the demonstrations in the request's form; null without a warm start.
 * @param {Record<string, string>} values
 */
export function demonstrationsOf(values) {
  const from = values[_FROM];
  if (!from) return null;
  return from === _ORACLE ? { oracle: Number(values[_COUNT] ?? "") } : { dataset: from };
}

/**
 * @param {{values: Record<string, string>, set: (name: string, value: string) => void,
 *   faults: {loc: (string | number)[], msg: string}[], names: string[], stored: (name: string) => void}} props
 *   `names` lists stored demonstrations
 */
export function WarmStartFields({ values, set, faults, names, stored }) {
  const shared = (/** @type {string} */ name) => ({
    value: values[name] ?? "",
    set: (/** @type {string} */ value) => set(name, value),
    faults,
  });
  const isOracle = values[_FROM] === _ORACLE;
  const isWrong = faults.some((fault) => fault.loc[1] === "warm_start");
  return html`<details class="card" open=${isWrong || Boolean(values[_FROM])}>
    <summary><h2>${WARM_START.title}</h2></summary>
    <div class="fields">
      <${Field} field=${{
        name: _FROM,
        label: "Demonstrations",
        type: "string",
        standard: "no warm start",
        choices: [...names, _ORACLE],
        help:
          "Conversations that the model learns from before reinforcement learning, " +
          "if it cannot do the task at all.",
      }}
        ...${shared(_FROM)} faults=${isOracle ? [] : faults} />
      ${
        isOracle &&
        html`<${Field} field=${{
          name: _COUNT,
          label: "Scenarios that it solves",
          type: "integer",
          placeholder: "such as 200",
          help: "Training scenarios.",
        }} ...${shared(_COUNT)} />`
      }
      ${
        values[_FROM] &&
        Object.keys(WARM_START.fields).map(
          (name) => html`<${Field} key=${name} field=${fields[name]} ...${shared(name)} />`,
        )
      }
    </div>
    <${Upload} kind=${DEMONSTRATIONS} done=${stored} />
  </details>`;
}
