// The event log of a run, newest first.

import { useState } from "../vendor/hooks.js";
import { exactMoment, number } from "../format.js";
import { html } from "../parts/html.js";
import { Empty } from "../parts/states.js";
import { JsonText, label, Text } from "../parts/text.js";

/** @param {import("./run.js").PartProps} props */
export function RunEvents({ data }) {
  const events = data.events.value;
  if (events.length === 0) return html`<${Empty} title="Nothing has happened yet" />`;
  return html`<h2 class="unseen">Events</h2>
    <ol class="events" reversed>${events.map((event) => html`<${Row} key=${event.seq} event=${event} />`)}</ol>
    <p class="muted">The newest ${events.length}. <code>learnloop runs events</code> and the API have all of them.</p>`;
}

/** @param {{event: import("../api_types").EventOut}} props */
function Row({ event }) {
  const { type, iteration, data } = event;
  const [isOpen, setOpen] = useState(false);
  return html`<li class=${tone(type)}>
    <details onToggle=${(/** @type {any} */ toggled) => setOpen(toggled.currentTarget.open)}>
      <summary><span class="num muted">${event.seq}</span> <strong>${type}</strong>
        ${iteration !== null && html` <span class="muted">iteration ${iteration}</span>`}
        ${" "}<span>${label(gist(type, data), 160)}</span>
        <time class="muted" datetime=${event.occurred_at}>${exactMoment(event.occurred_at)}</time></summary>
      ${isOpen && html`<p class="muted">by <${Text} value=${event.actor} limit=${200} /></p><${JsonText} value=${data} />`}
    </details>
  </li>`;
}

/** A one-line summary of an event. @param {string} type @param {Record<string, any>} data */
function gist(type, data) {
  if (type === "iteration.completed" && data.supervised) return `learned ${data.supervised.demonstrations} demonstrations`;
  if (type === "iteration.completed") return data.rewards?.mean == null ? "baseline measured" : `mean reward ${number(data.rewards.mean)}`;
  return data.message ?? data.error ?? data.reason ?? data.phase ?? data.limit ?? data.url ?? "";
}

/** @param {string} type */
function tone(type) {
  if (type.endsWith("failed") || type === "journal.damaged") return "bad";
  return type === "iteration.no_signal" || type === "budget.reached" ? "warn" : "";
}
