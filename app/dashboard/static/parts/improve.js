// A button that starts an improvement of an agent.

import { useState } from "../vendor/hooks.js";
import { ApiError, post } from "../api.js";
import { go } from "../router.js";
import { Action } from "./action.js";
import { Dialog } from "./dialog.js";
import { Field } from "./field.js";
import { html } from "./html.js";

/** @type {import("../start_fields.js").Field[]} */
const _FIELDS = [
  { name: "target", label: "Success to reach, in percent", type: "number", placeholder: "as much as it can", help: "" },
  {
    name: "prompts",
    label: "Prompts to try",
    type: "string",
    placeholder: "none",
    help: "Names, with commas between.",
  },
  { name: "budget.max_minutes", label: "Most minutes", type: "number", placeholder: "no limit", help: "" },
];
const _SHOWN = { target: true, prompts: true, budget: true };

/**
 * @param {{agent: Record<string, any>}} props fields of `POST /improvements` that say which agent
 */
export function Improve({ agent }) {
  const [isOpen, setOpen] = useState(false);
  return html`<button onClick=${() => setOpen(true)}>Improve</button>
    ${
      isOpen &&
      html`<${Dialog} title="Improve this agent" close=${() => setOpen(false)}>
      ${(/** @type {() => void} */ close) => html`<${Form} agent=${agent} close=${close} />`}<//>`
    }`;
}

/** @param {{agent: Record<string, any>, close: () => void}} props */
function Form({ agent, close }) {
  const [values, setValues] = useState(/** @type {Record<string, string>} */ ({ target: "90" }));
  const [faults, setFaults] = useState(/** @type {ApiError["errors"]} */ ([]));
  async function start() {
    const { target, prompts = "", "budget.max_minutes": minutes } = values;
    setFaults([]);
    try {
      const { id } = await post("improvements", {
        ...agent,
        target: target ? Number(target) / 100 : null,
        prompts: prompts.split(/[\s,]+/).filter(Boolean),
        budget: minutes ? { max_minutes: Number(minutes) } : null,
      });
      go(["improvements", id]);
    } catch (error) {
      const atFields = error instanceof ApiError ? error.errors.filter(({ loc: [, name] }) => name in _SHOWN) : [];
      if (atFields.length === 0) throw error;
      setFaults(atFields);
    }
  }
  return html`<p class="muted">What is cheap is tried before what is dear: prompts, then imitation, then GRPO.</p>
    ${_FIELDS.map(
      (field) => html`<${Field} key=${field.name} field=${field} value=${values[field.name] ?? ""} faults=${faults}
        set=${(/** @type {string} */ value) => setValues({ ...values, [field.name]: value })} />`,
    )}
    <div class="actions"><${Action} label="Start" kind="primary" act=${start} />
      <button onClick=${close}>Close</button></div>`;
}
