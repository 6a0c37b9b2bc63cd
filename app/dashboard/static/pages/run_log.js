// The log of a run: what went wrong in it, and when, with the errors first.

import { useEffect, useRef, useState } from "../vendor/hooks.js";
import { get, path } from "../api.js";
import { counted, exactMoment, inWords, whole } from "../format.js";
import { Action } from "../parts/action.js";
import { html } from "../parts/html.js";
import { Empty, Loaded, useLoaded } from "../parts/states.js";
import { JsonText, label, Text } from "../parts/text.js";
import { href, refine } from "../router.js";

/** @typedef {import("../api_types").RunLog} Log */
/** @typedef {import("../api_types").LogLine} Line */
/** @typedef {import("../api_types").RunOut} Run */

const _PAGE = 100;
/** Worst first. */
const _LEVELS = /** @type {{level: Line["level"], title: string, tone: string}[]} */ ([
  { level: "error", title: "Errors", tone: "bad" },
  { level: "warning", title: "Warnings", tone: "warn" },
  { level: "info", title: "Other events", tone: "" },
]);

/** @param {import("./run.js").PartProps} props */
export function RunLogPage({ run, query }) {
  const level = _LEVELS.find((each) => each.level === query.get("level"))?.level;
  const order = query.get("order") === "time" ? "time" : "level";
  return html`<h2 class="unseen">Log</h2>
    <${Lines} key=${`${level} ${order}`} run=${run} query=${query} level=${level} order=${order} />`;
}

/** @param {{run: Run, query: URLSearchParams, level: Line["level"] | undefined, order: "level" | "time"}} props */
function Lines({ run, query, level, order }) {
  const where = path`runs/${run.run_id}/log`;
  const filters = { level, order, limit: _PAGE };
  const first = useLoaded((aborted) => get(where, filters, aborted), [where]);
  useNews(run.last_event, first.reload);
  const lines = useRef(/** @type {Map<string, Line>} */ (new Map()));
  const [cursor, setCursor] = useState(/** @type {string | null | undefined} */ (undefined));
  const change = (/** @type {Parameters<typeof refine>[0]} */ more) =>
    refine({ ...Object.fromEntries(query), ...more });
  return html`<${Loaded} state=${first} rows=${8}>${(/** @type {Log} */ log) => {
    add(lines.current, log.items);
    const next = cursor === undefined ? log.next_cursor : cursor;
    const total = _LEVELS.reduce((sum, each) => sum + (level && level !== each.level ? 0 : log.counts[each.level]), 0);
    const sorted = [...lines.current.values()].sort(order === "time" ? byTime : byLevel);
    async function more() {
      const page = /** @type {Log} */ (await get(where, { ...filters, cursor: next }));
      add(lines.current, page.items);
      setCursor(page.next_cursor);
    }
    return html`<${Filters} counts=${log.counts} level=${level} order=${order} change=${change} />
      ${
        sorted.length === 0 &&
        html`<${Empty} title=${level ? "Nothing of this kind has happened" : "Nothing has happened yet"} />`
      }
      ${
        sorted.length > 0 &&
        html`<ol class="events">${sorted.map(
          (line) => html`<${LogRow} key=${keyOf(line)} line=${line} runId=${run.run_id} />`,
        )}</ol>`
      }
      <p class="muted">${whole(sorted.length)} of ${counted(total, "line")}${" "}
        ${next && html`<${Action} label=${`Show ${_PAGE} more`} act=${more} />`}</p>
      ${run.pruned.events && html`<p class="muted">Earlier events were deleted, as this service is set up to do.</p>`}`;
  }}<//>`;
}

/** Load again when a run has a new event. @param {number} event @param {() => void} reload */
function useNews(event, reload) {
  const latest = useRef(event);
  useEffect(() => {
    if (latest.current !== event) reload();
    latest.current = event;
  }, [event]);
}

/** @param {Line} line */
const keyOf = ({ seq, trajectory_id: id, type, at, text }) => String(seq ?? id ?? `${type} ${at} ${text}`);

/**
 * Add lines to those that were read. New ones push others to the next page, so none of them is dropped.
 * @param {Map<string, Line>} lines @param {Line[]} more
 */
const add = (lines, more) => more.forEach((line) => lines.set(keyOf(line), line));

/** @param {Line} one @param {Line} other */
const byTime = (one, other) => other.at.localeCompare(one.at) || (other.seq ?? 0) - (one.seq ?? 0);

/** @param {Line} one @param {Line} other */
const byLevel = (one, other) => rankOf(one) - rankOf(other) || byTime(one, other);

/** @param {Line} line */
const rankOf = ({ level }) => _LEVELS.findIndex((each) => each.level === level);

/**
 * @typedef {object} FiltersProps
 * @property {Log["counts"]} counts
 * @property {string | undefined} level
 * @property {string} order
 * @property {(more: {level?: string | null, order?: string | null}) => void} change
 */

/** @param {FiltersProps} props */
const Filters = ({ counts, level, order, change }) => html`<div class="filters" role="group" aria-label="Lines to show">
  <div class="levels">
    <button aria-pressed=${!level} onClick=${() => change({ level: null })}>All</button>
    ${_LEVELS.map(
      (each) => html`<button aria-pressed=${level === each.level} onClick=${() => change({ level: each.level })}>
        ${each.title} <span class="muted">${whole(counts[each.level])}</span></button>`,
    )}
  </div>
  <label class="field"><span>Order</span>
    <select disabled=${Boolean(level)}
      onChange=${(/** @type {any} */ event) => change({ order: event.target.value || null })}>
      <option value="" selected=${order === "level"}>errors first, newest first</option>
      <option value="time" selected=${order === "time"}>newest first</option>
    </select></label>
</div>`;

/** @param {{line: Line, runId: string}} props */
function LogRow({ line, runId }) {
  const [isOpen, setOpen] = useState(false);
  const { level, type, iteration, text, at, count, trajectory_id: id } = line;
  const named = _LEVELS.find((each) => each.level === level);
  return html`<li class=${named?.tone}>
    <details onToggle=${(/** @type {any} */ toggled) => setOpen(toggled.currentTarget.open)}>
      <summary>${level !== "info" && html`<span class="level">${level}</span> `}
        <strong>${inWords(type.replaceAll(".", " "))}${count > 1 && `, ${whole(count)} times`}</strong>
        ${iteration !== null && html` <span class="muted">iteration ${iteration}</span>`}
        ${" "}<span>${label(text, 160)}</span>
        <time class="muted" datetime=${at}>${exactMoment(at)}</time></summary>
      ${isOpen && html`<${Details} line=${line} runId=${runId} />`}
    </details>
    ${id && html`<a href=${href(["runs", runId, "trajectories", id])}>Read the rollout</a>`}
    ${
      !id &&
      iteration !== null &&
      level !== "info" &&
      html`<a href=${href(["runs", runId, "trajectories"], { iteration })}>Rollouts of the iteration</a>`
    }
  </li>`;
}

/** The whole text of a line, and the data of an event. @param {{line: Line, runId: string}} props */
function Details({ line: { seq, text }, runId }) {
  const state = useLoaded(
    async (aborted) =>
      seq === null
        ? null
        : (await get(path`runs/${runId}/events`, { cursor: String(seq - 1), limit: 1 }, aborted)).items[0],
    [runId, seq],
  );
  return html`<div>${text && html`<p><${Text} value=${text} limit=${1000} /></p>`}
    <${Loaded} state=${state} rows=${2}>${(/** @type {import("../api_types").EventOut | null} */ event) =>
      event &&
      html`<p class="muted">Event ${event.seq}, by <${Text} value=${event.actor} limit=${200} /></p>
      <${JsonText} value=${event.data} />`}<//></div>`;
}
