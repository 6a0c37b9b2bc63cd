// A form field with its description, its default, and its faults.

import { html } from "./html.js";
import { label, visible } from "./text.js";

/**
 * @param {{field: import("../start_fields.js").Field, value: string,
 *   set: (value: string) => void, faults: {loc: (string | number)[], msg: string}[]}} props
 */
export function Field({ field, value, set, faults }) {
  const { name, help, type, standard, choices } = field;
  const wrong = faults.filter((fault) => {
    const place = fault.loc.slice(1).join(".");
    return place === name || place.startsWith(`${name}.`);
  });
  const id = `field-${name.replaceAll(".", "-")}`;
  const isOffered = choices?.includes(String(standard)) ?? false;
  const given = {
    id,
    value: value === "" && isOffered ? String(standard) : value,
    "aria-invalid": wrong.length > 0,
    "aria-describedby": `${id}-help`,
    onInput: (/** @type {any} */ event) => set(event.currentTarget.value),
  };
  const fallback = standard === undefined || standard === null ? "not set" : visible(standard);
  return html`<div class="field">
    <label for=${id}>${field.label}</label>
    ${
      choices
        ? html`<select ...${given}>
          ${
            !isOffered &&
            value !== undefined &&
            (standard !== undefined || value === "") &&
            html`<option value="">${label(fallback, 60)}</option>`
          }
          ${choices.map(
            (each) => html`<option value=${each} selected=${each === given.value}>${label(each, 60)}
            </option>`,
          )}
        </select>`
        : html`<input ...${given} type="text" inputmode=${type === "string" ? "text" : "decimal"} autocomplete="off"
          placeholder=${standard === undefined ? (field.placeholder ?? "") : fallback} />`
    }
    <span class="help" id=${`${id}-help`}>${marked(help)}
      ${wrong.map((fault) => html`<span class="wrong">${label(fault.msg, 300)}</span>`)}</span>
  </div>`;
}

/** A description from the API, with names in backticks shown as code. @param {string} text */
export const marked = (text) => text.split("`").map((part, index) => (index % 2 ? html`<code>${part}</code>` : part));
