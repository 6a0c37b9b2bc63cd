// Loading data for a page, and what it shows without data: loading, failed, not allowed, or empty.

import { useCallback, useEffect, useRef, useState } from "../vendor/hooks.js";
import { ApiError } from "../api.js";
import { html } from "./html.js";
import { Text } from "./text.js";

const _AGAIN_MS = 4000;
const _EVERY_MS = 2000;

/**
 * Load data, and load it again when a dependency changes.
 * @template T
 * @param {(aborted: AbortSignal) => Promise<T>} load
 * @param {unknown[]} dependencies
 * @returns {{data: T | undefined, error: Error | undefined, reload: () => void, set: (data: T) => void}}
 */
export function useLoaded(load, dependencies) {
  const [state, setState] = useState(/** @type {{data?: T, error?: Error}} */ ({}));
  const [turn, setTurn] = useState(0);
  const shown = useRef(0);
  useEffect(() => {
    const controller = new AbortController();
    if (shown.current === turn) setState({}); // a dependency changed, so the old data would be wrong
    shown.current = turn;
    load(controller.signal).then(
      (data) => setState({ data }),
      (error) => controller.signal.aborted || setState({ error }),
    );
    return () => controller.abort();
  }, [...dependencies, turn]);
  useEffect(() => {
    if (!(state.error instanceof ApiError && state.error.status === 0)) return undefined;
    const timer = setTimeout(reload, _AGAIN_MS); // the service may be back by then
    return () => clearTimeout(timer);
  }, [state.error]);
  const reload = useCallback(() => setTurn((count) => count + 1), []);
  const set = useCallback((/** @type {T} */ data) => setState({ data }), []);
  return { data: state.data, error: state.error, reload, set };
}

/**
 * Load again after a while, as long as something has not ended.
 * @param {{data: unknown, reload: () => void}} state @param {boolean} isDue
 */
export function useReload(state, isDue) {
  useEffect(() => {
    if (!isDue) return undefined;
    const timer = setTimeout(state.reload, _EVERY_MS);
    return () => clearTimeout(timer);
  }, [state.data]);
}

/** Placeholder for content that is still loading. @param {{rows?: number}} props */
export function Loading({ rows = 4 }) {
  return html`<div class="loading" role="status">
    <span class="unseen">Loading …</span>
    ${Array.from({ length: rows }, () => html`<div class="skeleton"></div>`)}
  </div>`;
}

/** @param {{error: Error, retry?: () => void}} props */
export function Failed({ error, retry }) {
  const status = error instanceof ApiError ? error.status : -1;
  const title =
    { 0: "No connection", 401: "Sign in first", 403: "Not allowed", 404: "Not found" }[status] ?? "That did not work";
  return html`<section class="notice bad" role="alert">
    <h2>${title}</h2>
    <p><${Text} value=${error.message} limit=${600} /></p>
    ${retry && html`<button onClick=${retry}>Try again</button>`}
  </section>`;
}

/** @param {{title: string, children?: any}} props */
export function Empty({ title, children }) {
  return html`<section class="empty"><h2>${title}</h2>${children}</section>`;
}

/**
 * Shows loading, failure, or what `children` renders from the data.
 * @param {{state: {data: any, error: Error | undefined, reload: () => void}, rows?: number,
 *   children: (data: any) => any}} props
 */
export function Loaded({ state, rows, children }) {
  if (state.error) return html`<${Failed} error=${state.error} retry=${state.reload} />`;
  return state.data === undefined ? html`<${Loading} rows=${rows} />` : children(state.data);
}
