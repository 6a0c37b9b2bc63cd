// API keys: who can use this service, and for what.

import { useState } from "../vendor/hooks.js";
import { ApiError, all, path, post, remove } from "../api.js";
import { ago, moment } from "../format.js";
import { Action } from "../parts/action.js";
import { Field } from "../parts/field.js";
import { html } from "../parts/html.js";
import { Empty, Failed, Loaded, useLoaded } from "../parts/states.js";
import { Table } from "../parts/table.js";
import { label } from "../parts/text.js";
import { may } from "../session.js";
import { Secret } from "./webhooks.js";

/** @typedef {import("../api_types").KeyOut} Key */

const _SCOPES = /** @type {Record<string, string>} */ ({
  read: "look at everything",
  write: "start runs, ask agents, change things",
  operator: "create and revoke keys, change settings of the service",
});

export function Keys() {
  const isAllowed = may("operator");
  const state = useLoaded(
    (aborted) => (isAllowed ? all("keys", {}, { aborted, most: 1000 }) : Promise.resolve([])),
    [isAllowed],
  );
  /** @type {import("../parts/table.js").Column<Key>[]} */
  const columns = [
    {
      title: "Name",
      by: "name",
      cell: (each) => html`<strong>${label(each.name)}</strong> <code>${label(each.prefix)}…</code>`,
    },
    { title: "Project", by: "project", cell: (each) => (each.project === "*" ? "all" : label(each.project)) },
    {
      title: "May",
      cell: (each) => (each.improvement_id ? `propose prompts for ${each.improvement_id}` : each.scopes.join(", ")),
    },
    { title: "Last used", by: "last_used_at", cell: (each) => (each.last_used_at ? ago(each.last_used_at) : "never") },
    { title: "State", cell: stateOf },
    {
      title: "",
      cell: (each) =>
        !each.revoked_at &&
        html`<${Action} label="Revoke" kind="danger" confirm="Revoke this key for good?"
          act=${() => remove(path`keys/${each.id}`).then(state.reload)} />`,
    },
  ];
  if (!isAllowed)
    return html`<h1>Keys</h1>
      <${Empty} title="Your key may not see this">
        <p>Listing and creating keys needs one with the scope <code>operator</code>.</p>
      <//>`;
  return html`<h1>Keys</h1><${New} reload=${state.reload} />
    <${Loaded} state=${state}>${(/** @type {Key[]} */ found) =>
      found.length === 0
        ? html`<${Empty} title="No key yet">
            <p>On loopback, none is needed. Everywhere else every request needs one.</p>
          <//>`
        : html`<section class="card"><h2>All keys</h2>
            <${Table} caption="API keys, newest first" rows=${found} columns=${columns}
              keyOf="id" />
          </section>`}<//>`;
}

/** @param {Key} key */
function stateOf({ revoked_at: revoked, expires_at: expires }) {
  if (revoked) return html`<span class="status bad">revoked</span>`;
  if (expires && Date.parse(expires) < Date.now()) return html`<span class="status warn">expired</span>`;
  return html`<span class="status good">valid</span>${
    expires && html` <span class="muted">until ${moment(expires)}</span>`
  }`;
}

/** @param {{reload: () => void}} props */
function New({ reload }) {
  const [values, setValues] = useState({ name: "", project: "*", expires_days: "" });
  const [scopes, setScopes] = useState(new Set(["read", "write"]));
  const [state, setState] = useState(/** @type {{error?: Error, key?: string}} */ ({}));
  const faults = state.error instanceof ApiError ? state.error.errors : [];
  const field = (/** @type {keyof typeof values} */ name, /** @type {string} */ title, /** @type {string} */ help) =>
    html`<${Field} field=${{ name, label: title, type: "string", help }} value=${values[name]} faults=${faults}
      set=${(/** @type {string} */ value) => setValues({ ...values, [name]: value })} />`;
  /** @param {SubmitEvent} event */
  async function create(event) {
    event.preventDefault();
    const { name, project, expires_days: days } = values;
    try {
      const body = {
        name,
        scopes: [...scopes],
        ...(project ? { project } : {}),
        ...(days ? { expires_days: Number(days) } : {}),
      };
      setState({ key: (await post("keys", body)).key });
      reload();
    } catch (error) {
      setState({ error: /** @type {Error} */ (error) });
    }
  }
  /** @param {string} scope */
  function turn(scope) {
    const next = new Set(scopes);
    if (!next.delete(scope)) next.add(scope);
    setScopes(next);
  }
  return html`<details class="card" open=${Boolean(state.key || state.error)}><summary><h2>New key</h2></summary>
    <form onSubmit=${create}>
      <div class="fields">
        ${field("name", "Name", "What it is for.")}
        ${field("project", "Project", "The only project that it sees; * for all.")}
        ${field("expires_days", "Valid for … days", "Empty: until it is revoked.")}
      </div>
      <fieldset class="scopes"><legend>What it may do</legend>
        ${Object.entries(_SCOPES).map(
          ([scope, text]) => html`<label>
            <input type="checkbox" checked=${scopes.has(scope)} onChange=${() => turn(scope)} />${" "}
            <strong>${scope}</strong> <span class="muted">${text}</span>
          </label>`,
        )}
      </fieldset>
      ${state.error && faults.length === 0 && html`<${Failed} error=${state.error} />`}
      <button class="primary">Create</button>
    </form>
    ${state.key && html`<${Secret} secret=${state.key} what="The new key" />`}
  </details>`;
}
