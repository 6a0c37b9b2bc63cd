// A page of a run that its environment brings. It is loaded when it is first shown.

import { useEffect } from "../vendor/hooks.js";
import { html } from "../parts/html.js";
import { address, imported } from "../parts/script.js";
import { Loaded, useLoaded } from "../parts/states.js";

/** @typedef {{name: string, title: string, script: string, style: string | null}} Added */

/** @type {Record<string, Added[]>} */
const _PAGES = JSON.parse(
  /** @type {HTMLMetaElement | null} */ (document.querySelector("meta[name=learnloop-pages]"))?.content ?? "{}",
);

/** The pages that runs of an environment have beside those of all runs. @param {string} environment */
export const addedPages = (environment) => _PAGES[environment] ?? [];

/** @typedef {import("../run_data.js").RunData} RunData */
/** @typedef {import("../api_types").RunOut} Run */

/** @param {{page: Added, data: RunData, run: Run, query: URLSearchParams}} props */
export function AddedPage({ page, data, run, query }) {
  useEffect(data.readAll, [data]);
  const state = useLoaded(() => load(page), [page]);
  return html`<${Loaded} state=${state} rows=${8}>${(/** @type {any} */ { Page }) =>
    html`<${Page} data=${data} run=${run} query=${query} />`}<//>`;
}

/** The module of a page, whose styles are added to the document. @param {Added} page */
async function load({ script, style }) {
  if (style && !document.querySelector(`link[href="${address(style)}"]`)) {
    document.head.append(Object.assign(document.createElement("link"), { rel: "stylesheet", href: address(style) }));
  }
  return imported(script);
}
