// Maps URLs to pages. The list of runs and a run are in the first script, all others in a second one.

import { signal } from "../vendor/signals.js";
import { html } from "../parts/html.js";
import { imported } from "../parts/script.js";
import { Loaded, useLoaded } from "../parts/states.js";
import { RunPage } from "./run.js";
import { Runs } from "./runs.js";

/** @typedef {{title: string, page: () => any, key: string}} Shown */

/** Parts of a run's address that lead to pages of their own. @type {Record<string, boolean>} */
const _OF_RUN = { trajectories: true, rejudgings: true };

const others = signal(/** @type {typeof import("./others.js").pageOf | undefined} */ (undefined));

/**
 * The page at a URL; undefined until `Others` has loaded it.
 * @param {import("../router.js").Route} route @returns {Shown | undefined}
 */
export function pageOf(route) {
  const { names, query } = route;
  const [place = "", id, part = "", inner] = names;
  if (place === "" || (place === "runs" && !id))
    return { title: "Runs", page: () => html`<${Runs} query=${query} />`, key: "" };
  if (place !== "runs" || part === "group" || (inner && _OF_RUN[part])) return others.value?.(route);
  const page = () => html`<${RunPage} id=${id} part=${part} query=${query} />`;
  return { title: `Run ${id}`, page, key: `runs/${id}` };
}

/** Loads the second script. */
export function Others() {
  const state = useLoaded(async () => {
    others.value = (await imported("others.js")).pageOf;
  }, []);
  return html`<${Loaded} state=${{ ...state, reload: () => location.reload() }} rows=${8}>${() => null}<//>`;
}
