// The live events of a run. An interrupted stream continues after the last event, without a reload of the page.

import { signal } from "./vendor/signals.js";
import { get, path, url } from "./api.js";

/** @typedef {import("./api_types").EventOut} Event */
/** @typedef {import("./api_types").Progress["failures"]} Failures */
/**
 * @typedef {object} Moved
 * @property {string} run_id
 * @property {number} iteration
 * @property {string} phase
 * @property {number} done
 * @property {number} total
 * @property {Failures} failures
 */
/** @typedef {"connecting" | "live" | "lost" | "ended"} Connection */

const _OF_RUNS = [
  ..."created started released paused resumed retried forked diagnosis cancelled completed failed".split(" "),
  "cancel_requested",
  "pause_requested",
].map((name) => `run.${name}`);
const _OTHERS = [
  "phase.completed",
  "journal.damaged",
  "iteration.completed",
  "iteration.no_signal",
  "budget.reached",
  "checkpoint.pushed",
];
const _LAST = new Set(["run.completed", "run.failed", "run.cancelled"]);
const _AGAIN_MS = 1000;
const _SLOWEST_MS = 15_000;

/**
 * Follow a run, from the event after number `after`.
 * @param {string} runId
 * @param {number} after
 * @param {{event: (event: Event) => void, moved: (moved: Moved) => void}} tell
 */
export function follow(runId, after, tell) {
  const connection = signal(/** @type {Connection} */ ("connecting"));
  let last = after;
  let failures = 0;
  let timer = 0;
  /** @type {EventSource | undefined} */
  let source;

  function open() {
    source = new EventSource(url(path`runs/${runId}/events`, { after: last }));
    source.onopen = () => {
      failures = 0;
      connection.value = "live";
    };
    source.onerror = again;
    source.addEventListener("progress", (message) => tell.moved(JSON.parse(message.data)));
    for (const type of [..._OF_RUNS, ..._OTHERS]) source.addEventListener(type, received);
  }

  /** @param {MessageEvent} message */
  function received(message) {
    const event = /** @type {Event} */ (JSON.parse(message.data));
    if (event.seq <= last) return;
    last = event.seq;
    tell.event(event);
    if (_LAST.has(event.type)) close("ended");
  }

  // We reconnect ourselves, because a browser gives up after an error status such as 503 while the service restarts.
  function again() {
    source?.close();
    connection.value = "lost";
    get("session").catch(() => {}); // if the sign-in has expired, the page asks for a key
    clearTimeout(timer);
    timer = setTimeout(open, Math.min(_AGAIN_MS * 2 ** failures++, _SLOWEST_MS));
  }

  /** @param {Connection} state */
  function close(state) {
    clearTimeout(timer);
    source?.close();
    connection.value = state;
  }

  const online = () => connection.value === "lost" && (clearTimeout(timer), open());
  addEventListener("online", online);
  open();
  return {
    connection,
    close() {
      removeEventListener("online", online);
      close("ended");
    },
  };
}
