// Routing: the URL's path below `ui/` as names, and its query. Links within the dashboard do not load a page again.

import { signal } from "./vendor/signals.js";
import { leave, restore } from "./scroll_position.js";

/** @typedef {{names: string[], query: URLSearchParams}} Route */

const _ROOT = new URL(document.baseURI);
const _PAGES = "ui/";

/**
 * The part of a URL's path below the root of the service; undefined if it is not a page of the dashboard.
 * @param {URL | Location} place
 */
function placeOf({ origin, pathname }) {
  if (origin !== _ROOT.origin || !pathname.startsWith(_ROOT.pathname)) return undefined;
  const path = pathname.slice(_ROOT.pathname.length);
  return path === "" || `${path}/`.startsWith(_PAGES) ? path.slice(_PAGES.length) : undefined;
}

/** @returns {Route} */
function read() {
  const path = placeOf(location) ?? "";
  return { names: path.split("/").filter(Boolean).map(decoded), query: new URLSearchParams(location.search) };
}

/** @param {string} name */
function decoded(name) {
  try {
    return decodeURIComponent(name);
  } catch {
    return name;
  }
}

/** Replace an address of earlier versions, such as `/#/runs/ID?held=test`, with today's. */
function replaceOld() {
  if (!location.hash.startsWith("#/")) return;
  const [path, search] = location.hash.slice(2).split("?", 2);
  const names = path.split("/").filter(Boolean).map(decoded);
  history.replaceState(history.state, "", href(names, Object.fromEntries(new URLSearchParams(search ?? ""))));
}

replaceOld();
export const route = signal(read());
history.scrollRestoration = "manual"; // the browser would do it before the page's data has arrived
restore();
addEventListener("hashchange", () => {
  replaceOld();
  route.value = read();
});
addEventListener("popstate", () => {
  route.value = read();
  restore();
});
addEventListener("click", followed);

/** Follow a link to a page of the dashboard without loading it again. @param {MouseEvent} event */
function followed(event) {
  if (event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey)
    return;
  const link = event.target instanceof Element ? event.target.closest("a") : null;
  if (!link || link.target || link.hasAttribute("download") || placeOf(new URL(link.href)) === undefined) return;
  event.preventDefault();
  visit(link.href);
}

/** @param {string} address */
function visit(address) {
  leave();
  history.pushState(null, "", address);
  route.value = read();
}

/**
 * The URL of a page, for links. It is relative to the root of the service.
 * @param {(string | number)[]} names
 * @param {Record<string, string | number | null | undefined>} [query] empty values are left out
 */
export function href(names, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const search = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
  const path = names.length > 0 ? _PAGES + names.map((name) => encodeURIComponent(name)).join("/") : "./";
  return path + (search && `?${search}`);
}

/** Go to a page. @param {(string | number)[]} names @param {Parameters<typeof href>[1]} [query] */
export function go(names, query) {
  visit(href(names, query));
}

/** Show another page in place of this one, whose address is then not kept. @param {(string | number)[]} names */
export function replace(names) {
  history.replaceState(history.state, "", href(names));
  route.value = read();
}

/** Change the query of this page without adding a history entry. @param {Parameters<typeof href>[1]} query */
export function refine(query) {
  history.replaceState(history.state, "", href(route.value.names, query));
  route.value = read();
}
