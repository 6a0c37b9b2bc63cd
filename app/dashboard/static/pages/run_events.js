// The event log of a run, newest first.

import { counted, inWords, number } from "../format.js";
import { EventRow } from "../parts/event_row.js";
import { html } from "../parts/html.js";
import { Empty } from "../parts/states.js";
import { label } from "../parts/text.js";

/** @param {import("./run.js").PartProps} props */
export function RunEvents({ data }) {
  const events = data.events.value;
  if (events.length === 0) return html`<${Empty} title="Nothing has happened yet" />`;
  const row = (/** @type {(typeof events)[number]} */ event) =>
    html`<${EventRow} key=${event.seq} event=${event} gist=${label(gist(event.type, event.data), 160)}
      tone=${tone(event.type)} />`;
  const newest = events.length === 1 ? "The newest one." : `The newest ${events.length}.`;
  return html`<h2 class="unseen">Events</h2>
    <ol class="events" reversed>${events.map(row)}</ol>
    <p class="muted">${newest} <code>learnloop runs events</code> and the API have all of them.</p>`;
}

/** A one-line summary of an event. @param {string} type @param {Record<string, any>} data */
function gist(type, data) {
  if (type === "iteration.completed" && data.supervised)
    return `learned ${counted(data.supervised.demonstrations, "demonstration")}`;
  if (type === "iteration.completed")
    return data.rewards?.mean == null ? "baseline measured" : `mean reward ${number(data.rewards.mean)}`;
  const name = data.phase ?? data.limit;
  return data.message ?? data.error ?? data.reason ?? (name && inWords(name)) ?? data.url ?? "";
}

/** @param {string} type */
function tone(type) {
  if (type.endsWith("failed") || type === "journal.damaged") return "bad";
  return type === "iteration.no_signal" || type === "budget.reached" ? "warn" : "";
}
