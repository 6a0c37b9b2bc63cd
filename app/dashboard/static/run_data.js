// Data of a run's page: figures, iterations and events, kept up to date by the event stream.

import { batch, signal } from "./vendor/signals.js";
import { all, get, path } from "./api.js";
import { follow } from "./live.js";

/** @typedef {import("./api_types").RunOut} Run */
/** @typedef {import("./api_types").IterationFigures & Partial<import("./api_types").IterationOut>} Iteration */
/** @typedef {import("./api_types").EventOut} Event */
/** @typedef {{limit: string, max: number, needs: number, spent: Record<string, number | null>}} Shortage of a budget */

export const ENDED = new Set(["completed", "failed", "cancelled"]);
const _AGAIN_MS = 1000;
const _SLOWEST_MS = 15_000;
/** Minimum time between two reads of the run's figures, which change with almost every event. */
const _REFRESH_MS = 400;

/** @param {string} runId */
export function openRun(runId) {
  const run = signal(/** @type {Run | undefined} */ (undefined));
  const error = signal(/** @type {Error | undefined} */ (undefined));
  const iterations = signal(/** @type {Iteration[]} */ ([]));
  const connection = signal(/** @type {import("./live.js").Connection} */ ("connecting"));
  const controller = new AbortController();
  let refreshing = 0;
  let seen = 0; // number of the newest event
  let isClosed = false;
  let again = 0; // timer of the next try to read a run that could not be read
  let failures = 0;
  /** @type {Promise<void> | undefined} */
  let whole;
  /** @type {ReturnType<typeof follow> | undefined} */
  let stream;

  async function start() {
    clearTimeout(again);
    try {
      listen(await read());
    } catch (problem) {
      if (isClosed || run.value) return;
      error.value = /** @type {Error} */ (problem);
      if (isOutage(problem)) again = setTimeout(start, Math.min(_AGAIN_MS * 2 ** failures++, _SLOWEST_MS));
    }
  }

  /** Whether the service may answer later. @param {any} problem */
  const isOutage = (problem) => problem.status === 0 || problem.status >= 500;
  const online = () => error.value && start();
  addEventListener("online", online);

  /** @returns {Promise<Run>} */
  async function read() {
    const found = await get(path`runs/${runId}`, {}, controller.signal);
    if (found.last_event < (run.value?.last_event ?? 0)) return found; // a later read finished first
    batch(() => {
      run.value = found;
      error.value = undefined;
      add(found.iterations);
    });
    return found;
  }

  /** @param {Run} found */
  function listen(found) {
    stream?.close();
    if (isClosed) return;
    if (ENDED.has(found.status)) {
      connection.value = "ended";
      return;
    }
    stream = follow(runId, found.last_event, { event: received, moved });
    stream.connection.subscribe((state) => {
      connection.value = state;
    });
  }

  /** Read all figures of the iterations after the given one. @param {number} after */
  async function readIterations(after) {
    const query = after < 0 ? {} : { cursor: String(after) };
    let shown = 0;
    await all(path`runs/${runId}/iterations`, query, {
      aborted: controller.signal,
      each: (items) => {
        add(items.slice(shown));
        shown = items.length;
      },
    });
  }

  /** Read all figures of all iterations, unless that was done: they are many, and a few pages need them. */
  function readAll() {
    whole ??= readIterations(-1).catch(() => {
      whole = undefined; // the next page tries again
    });
  }

  /** Replace or append iterations. @param {Iteration[]} more */
  function add(more) {
    const known = new Map(iterations.value.map((each) => [each.iteration, each]));
    for (const each of more) known.set(each.iteration, { ...known.get(each.iteration), ...each });
    iterations.value = [...known.values()].sort((one, other) => one.iteration - other.iteration);
  }

  /** @param {Event} event */
  function received(event) {
    seen = event.seq;
    if (event.type === "iteration.completed") batch(() => completed(event));
    if (event.type !== "phase.completed") refresh();
  }

  /** Show the figures in the event immediately, and read the others of the iteration. @param {Event} event */
  function completed(event) {
    const { iteration, step, rewards, success, supervised = null } = event.data;
    add([{ iteration, step, rewards, success, malformed: null, no_signal: null, lost_rollouts: {}, supervised }]);
    if (run.value) run.value = { ...run.value, progress: { ...run.value.progress, iterations_done: iteration } };
    readIterations(iteration - 1).catch(() => {});
  }

  /** @param {import("./live.js").Moved} moved */
  function moved(moved) {
    if (!run.value) return;
    const { iteration, phase, done, total, failures } = moved;
    run.value = { ...run.value, progress: { ...run.value.progress, iteration, phase, done, total, failures } };
  }

  function refresh() {
    if (refreshing || isClosed) return;
    refreshing = setTimeout(() => {
      refreshing = 0;
      const newest = seen;
      read().then(
        (found) => found.last_event < newest && refresh(), // the reply is older than the event
        (problem) => isOutage(problem) && refresh(),
      );
    }, _REFRESH_MS);
  }

  /** Follow the run again, after a command that can continue an ended run. */
  async function reopen() {
    listen(await read());
  }

  start();
  return {
    run,
    error,
    iterations,
    connection,
    readAll,
    reopen,
    retry: start,
    close() {
      isClosed = true;
      removeEventListener("online", online);
      clearTimeout(again);
      clearTimeout(refreshing);
      controller.abort();
      stream?.close();
    },
  };
}

/** @typedef {ReturnType<typeof openRun>} RunData */
