// Webhook endpoints, their deliveries, and sending deliveries again.

import { useState } from "../vendor/hooks.js";
import { ApiError, all, get, patch, path, post, remove } from "../api.js";
import { duration, moment } from "../format.js";
import { Action, Copy } from "../parts/action.js";
import { Field } from "../parts/field.js";
import { html } from "../parts/html.js";
import { Empty, Failed, Loaded, useLoaded } from "../parts/states.js";
import { Status } from "../parts/status.js";
import { Table } from "../parts/table.js";
import { JsonText, label, Text } from "../parts/text.js";
import { go, href, refine } from "../router.js";

/** @typedef {import("../api_types").EndpointOut} Endpoint */
/** @typedef {import("../api_types").DeliveryBrief} Delivery */
/** @typedef {import("../api_types").DeliveryOut} WholeDelivery */

export function Webhooks() {
  const state = useLoaded((aborted) => all("webhooks", {}, { aborted, most: 400 }), []);
  /** @type {import("../parts/table.js").Column<Endpoint>[]} */
  const columns = [
    {
      title: "Address",
      by: "url",
      cell: (each) => html`<a href=${href(["webhooks", each.id])}>${label(each.url, 100)}</a>`,
    },
    {
      title: "Of",
      cell: (each) =>
        each.run_id ? html`<a href=${href(["runs", each.run_id])}>a run</a>` : `project ${label(each.project)}`,
    },
    { title: "Events", cell: (each) => (each.events.length === 0 ? "all" : label(each.events.join(", "), 80)) },
    { title: "State", by: "state", cell: enabled },
    { title: "Made", by: "created_at", cell: (each) => moment(each.created_at) },
  ];
  return html`<h1>Webhooks</h1><p class="muted">Addresses that receive events, as signed POST requests.</p>
    <${New} reload=${state.reload} />
    <${Loaded} state=${state}>${(/** @type {Endpoint[]} */ found) =>
      found.length === 0
        ? html`<${Empty} title="No webhook yet" />`
        : html`<section class="card"><h2>Endpoints</h2><${Table} caption="Webhook endpoints" rows=${found}
            keyOf="id" columns=${columns} /></section>`}<//>`;
}

/** @param {Endpoint} endpoint */
function enabled({ enabled: isOn, disabled_reason: reason }) {
  return isOn
    ? html`<span class="status good">on</span>`
    : html`<span class="status warn">off</span> <span class="muted">${label(reason ?? "", 100)}</span>`;
}

/** @param {{reload: () => void}} props */
function New({ reload }) {
  const [address, setAddress] = useState("");
  const [state, setState] = useState(/** @type {{error?: Error, secret?: string}} */ ({}));
  /** @param {SubmitEvent} event */
  async function create(event) {
    event.preventDefault();
    try {
      setState({ secret: (await post("webhooks", { url: address })).secret });
      reload();
    } catch (error) {
      setState({ error: /** @type {Error} */ (error) });
    }
  }
  const faults = state.error instanceof ApiError ? state.error.errors : [];
  return html`<details class="card" open=${Boolean(state.secret || state.error)}>
    <summary><h2>New endpoint</h2></summary>
    <form onSubmit=${create}>
      <${Field} field=${{
        name: "url",
        label: "Address",
        type: "string",
        help: "An http or https address that gets all events of this project.",
      }} value=${address} set=${setAddress} faults=${faults} />
      ${state.error && faults.length === 0 && html`<${Failed} error=${state.error} />`}
      <button class="primary">Create</button>
    </form>
    ${state.secret && html`<${Secret} secret=${state.secret} what="It signs the messages" />`}
  </details>`;
}

/** A secret that is only shown once. @param {{secret: string, what: string}} props */
export function Secret({ secret, what }) {
  return html`<section class="notice" role="status"><p>${what}. It is shown only now:</p>
    <p><code>${secret}</code> <${Copy} text=${secret} /></p></section>`;
}

/** @param {{id: string, query: URLSearchParams}} props */
export function WebhookPage({ id, query }) {
  const chosen = query.get("state") ?? "";
  const endpoint = useLoaded((aborted) => get(path`webhooks/${id}`, {}, aborted), [id]);
  const deliveries = useLoaded(
    (aborted) => get(path`webhooks/${id}/deliveries`, { limit: 100, state: chosen }, aborted),
    [id, chosen],
  );
  const [open, setOpen] = useState(/** @type {string | undefined} */ (undefined));
  /** @param {Delivery} delivery */
  const again = async (delivery) => (
    await post(path`webhooks/deliveries/${delivery.id}/redeliver`), deliveries.reload()
  );
  /** @type {import("../parts/table.js").Column<Delivery>[]} */
  const columns = [
    {
      title: "Event",
      by: "event_type",
      cell: (each) =>
        html`<button class="quiet" onClick=${() => setOpen(each.id)}>${label(each.event_type ?? "test", 60)}</button>`,
    },
    {
      title: "Run",
      by: "run_id",
      cell: (each) =>
        each.run_id &&
        html`<a href=${href(["runs", each.run_id])}>${label(each.run_id, 12)}</a>
        ${each.iteration !== null && html` <span class="muted">iteration ${each.iteration}</span>`}`,
    },
    { title: "State", by: "state", cell: (each) => html`<${Status} status=${each.state} />` },
    { title: "Attempts", by: "attempts", isNumber: true, cell: (each) => each.attempts },
    { title: "Last error", cell: (each) => label(each.last_error ?? "", 120) },
    { title: "Made", by: "created_at", cell: (each) => moment(each.created_at) },
    { title: "", cell: (each) => html`<${Action} label="Redeliver" act=${() => again(each)} />` },
  ];
  return html`<p class="crumbs"><a href=${href(["webhooks"])}>Webhooks</a></p>
    <${Loaded} state=${endpoint}>${(/** @type {Endpoint} */ found) =>
      html`<${Head} endpoint=${found} reload=${endpoint.reload} />`}<//>
    <div class="filters"><label class="field"><span>State of the deliveries</span>
        <select value=${chosen} onChange=${(/** @type {any} */ event) => refine({ state: event.target.value })}>
      <option value="">all</option>${["pending", "delivered", "failed"].map(
        (each) => html`<option value=${each}>${each}</option>`,
      )}</select></label>
      <button onClick=${deliveries.reload}>Refresh</button></div>
    ${open && html`<${OneDelivery} id=${open} />`}
    <${Loaded} state=${deliveries}>${(/** @type {{items: Delivery[]}} */ { items }) =>
      items.length === 0
        ? html`<${Empty} title="No delivery yet" />`
        : html`<section class="card"><h2>Deliveries</h2><${Table} caption="Deliveries, newest first" rows=${items}
            keyOf="id" columns=${columns} /></section>`}<//>`;
}

/** @param {{endpoint: Endpoint, reload: () => void}} props */
function Head({ endpoint, reload }) {
  const [said, setSaid] = useState("");
  const [secret, setSecret] = useState("");
  async function test() {
    const { delivered, status, error, seconds } = await post(path`webhooks/${endpoint.id}/test`);
    setSaid(
      delivered
        ? `Delivered in ${duration(seconds)} (status ${status}).`
        : `Not delivered: ${error ?? `status ${status}`}`,
    );
  }
  const turn = async () => (await patch(path`webhooks/${endpoint.id}`, { enabled: !endpoint.enabled }), reload());
  return html`<div class="title-row"><h1><${Text} value=${endpoint.url} limit=${300} /></h1><div class="actions">
      <${Action} label="Send a test" act=${test} />
      <${Action} label=${endpoint.enabled ? "Turn off" : "Turn on"} act=${turn} />
      <${Action} label="New secret" confirm="Make a new secret? The old one stays valid for 24 hours."
        act=${async () => setSecret((await post(path`webhooks/${endpoint.id}/rotate-secret`)).secret)} />
      <${Action} label="Delete" kind="danger" confirm="Delete this endpoint?"
        act=${async () => (await remove(path`webhooks/${endpoint.id}`), go(["webhooks"]))} /></div></div>
    <p>${enabled(endpoint)} <span class="muted">${
      endpoint.events.length === 0 ? "all events" : label(endpoint.events.join(", "), 200)
    }</span></p>
    <p role="status"><${Text} value=${said} limit=${400} /></p>
    ${secret && html`<${Secret} secret=${secret} what="It signs the messages from now on" />`}`;
}

/** @param {{id: string}} props */
function OneDelivery({ id }) {
  const state = useLoaded((aborted) => get(path`webhooks/deliveries/${id}`, {}, aborted), [id]);
  return html`<section class="card"><h2>Delivery <code>${id}</code></h2>
    <${Loaded} state=${state}>${(/** @type {WholeDelivery} */ found) => html`
      <ul>${found.tries.map(
        (each) =>
          html`<li>${moment(each.started_at)}: ${
            each.error
              ? html`<span class="wrong"><${Text} value=${each.error} limit=${300} /></span>`
              : `status ${each.status}`
          } <span class="muted">${duration(each.seconds)}</span></li>`,
      )}</ul>
      <${JsonText} value=${parsed(found.body)} />`}<//></section>`;
}

/** @param {string} body */
function parsed(body) {
  try {
    return JSON.parse(body);
  } catch {
    return body;
  }
}
