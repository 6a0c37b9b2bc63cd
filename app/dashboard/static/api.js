// Requests to the API. They take a path, and return JSON or throw an ApiError.

import { signal } from "./vendor/signals.js";

const _AGAIN_MS = 300;

/** Whether the service refused a request because the user is not signed in. */
export const needsKey = signal(false);

/** A failed request, with the service's explanation. */
export class ApiError extends Error {
  /**
   * @param {number} status HTTP status; 0 if there was no reply
   * @param {string} detail
   * @param {{loc: (string | number)[], msg: string}[]} [errors] faults by field
   * @param {Record<string, any>} [problem] the whole problem document
   */
  constructor(status, detail, errors = [], problem = {}) {
    super(detail);
    this.status = status;
    this.errors = errors;
    this.problem = problem;
  }
}

/**
 * @param {string} path relative to the root of the service
 * @param {Record<string, string | number | boolean | null | undefined | number[] | string[]>} [query] null and
 *   undefined are left out; a list is given as often as it has values
 */
export function url(path, query = {}) {
  const each = Object.entries(query).flatMap(([name, value]) =>
    (Array.isArray(value) ? value : [value]).map((one) => ({ name, one })),
  );
  const given = each.filter(({ one }) => one !== null && one !== undefined && one !== "");
  const search = new URLSearchParams(given.map(({ name, one }) => [name, String(one)])).toString();
  return new URL(path.replace(/^\//, "") + (search && `?${search}`), document.baseURI).href;
}

/** A path whose parts can contain any character. @param {TemplateStringsArray} strings @param {...unknown} parts */
export function path(strings, ...parts) {
  return String.raw({ raw: strings.raw }, ...parts.map((part) => encodeURIComponent(String(part))));
}

/**
 * @param {string} method
 * @param {string} target
 * @param {{body?: unknown, raw?: BodyInit, headers?: Record<string, string>, signal?: AbortSignal}} [options]
 *   `body` is sent as JSON, `raw` unchanged
 * @returns {Promise<any>}
 */
export async function request(method, target, { body, raw, headers: more, signal: aborted } = {}) {
  const headers = new Headers({ Accept: "application/json", ...more });
  if (body !== undefined) headers.set("Content-Type", "application/json");
  const init = {
    method,
    headers,
    signal: aborted,
    body: raw ?? (body === undefined ? undefined : JSON.stringify(body)),
  };
  const response = await sent(target, init).catch((/** @type {Error} */ error) => {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The service does not answer. Is it running, and are you connected?");
  });
  const reply = await response.text().then((text) => (text ? parsed(text) : null));
  if (response.ok) return reply;
  if (response.status === 401) needsKey.value = true;
  throw new ApiError(response.status, reply?.detail ?? response.statusText, reply?.errors, reply ?? {});
}

/**
 * Retry GET requests once, because browsers abort requests when the network changes.
 * @param {string} target @param {RequestInit} init
 */
async function sent(target, init) {
  try {
    return await fetch(target, init);
  } catch (error) {
    if (init.method !== "GET" || init.signal?.aborted) throw error;
    await new Promise((resume) => setTimeout(resume, _AGAIN_MS));
    return fetch(target, init);
  }
}

/** @param {string} text */
function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return { detail: text.slice(0, 300) };
  }
}

/**
 * @param {string} where
 * @param {Parameters<typeof url>[1]} [query]
 * @param {AbortSignal} [aborted]
 */
export const get = (where, query, aborted) => request("GET", url(where, query), { signal: aborted });

/** @param {string} where @param {unknown} [body] */
export const post = (where, body) => request("POST", url(where), { body });

/** @param {string} where @param {unknown} body */
export const patch = (where, body) => request("PATCH", url(where), { body });

/** @param {string} where */
export const remove = (where) => request("DELETE", url(where));

/**
 * All items of a list, read page by page, up to `most`. `each` is called with the items so far after every page.
 * @param {string} where
 * @param {Record<string, any>} [query]
 * @param {{most?: number, aborted?: AbortSignal, each?: (items: any[]) => void}} [options]
 * @returns {Promise<any[]>}
 */
export async function all(where, query = {}, { most = Infinity, aborted, each } = {}) {
  /** @type {any[]} */
  const items = [];
  for (let cursor = query.cursor; ; ) {
    const page = await get(where, { limit: 200, ...query, cursor }, aborted);
    items.push(...page.items);
    each?.(items);
    cursor = page.next_cursor;
    if (!cursor || items.length >= most) return items;
  }
}

/**
 * Have the browser save the file that a GET returns. Unlike a link, it says why there is none.
 * @param {string} target @param {string} name
 */
export async function download(target, name) {
  const response = await sent(target, { method: "GET" }).catch(() => {
    throw new ApiError(0, "The service does not answer. Is it running, and are you connected?");
  });
  if (!response.ok) throw new ApiError(response.status, parsed(await response.text())?.detail ?? response.statusText);
  const link = document.createElement("a");
  link.href = URL.createObjectURL(await response.blob());
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}
