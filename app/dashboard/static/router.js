// Routing: the part of the URL after `#`, as path names and a query.

import { signal } from "./vendor/signals.js";

/** @typedef {{names: string[], query: URLSearchParams, hash: string}} Route */

/** @returns {Route} */
function read() {
  const hash = location.hash.replace(/^#/, "") || "/";
  const [path, query] = hash.split("?", 2);
  return { names: path.split("/").filter(Boolean).map(decoded), query: new URLSearchParams(query ?? ""), hash };
}

/** @param {string} name */
function decoded(name) {
  try {
    return decodeURIComponent(name);
  } catch {
    return name;
  }
}

export const route = signal(read());
addEventListener("hashchange", () => {
  route.value = read();
});

/**
 * The URL of a page, for links.
 * @param {(string | number)[]} names
 * @param {Record<string, string | number | null | undefined>} [query] empty values are left out
 */
export function href(names, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const search = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
  return `#/${names.map((name) => encodeURIComponent(name)).join("/")}${search && `?${search}`}`;
}

/** Go to a page. @param {(string | number)[]} names @param {Parameters<typeof href>[1]} [query] */
export function go(names, query) {
  location.hash = href(names, query);
}

/** Change the query of this page without adding a history entry. @param {Parameters<typeof href>[1]} query */
export function refine(query) {
  history.replaceState(null, "", href(route.value.names, query));
  route.value = read();
}
