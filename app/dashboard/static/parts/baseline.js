// The baseline: the run with the tag `baseline`, drawn in the charts of the other runs of its environment.

import { all, get, patch, path } from "../api.js";
import { nameOf } from "./run_name.js";
import { useLoaded } from "./states.js";

/** @typedef {import("../api_types").RunOut} Run */
/** @typedef {import("../api_types").RunListed} Listed */
/** @typedef {import("../run_data.js").Iteration} Iteration */
/** @typedef {{name: string, run: Run, iterations: Iteration[]}} Baseline */

export const TAG = "baseline";

/**
 * The runs with the tag, newest first.
 * @param {string} environment @param {AbortSignal} [aborted] @returns {Promise<Listed[]>}
 */
const tagged = async (environment, aborted) =>
  (await all("runs", { tag: TAG }, { aborted })).filter(
    (/** @type {Listed} */ each) => each.environment === environment,
  );

/**
 * The baseline of an environment's runs; undefined until it is loaded, and if there is none.
 * @param {string | undefined} environment @param {string[]} shown ids of the runs that are drawn anyway
 * @returns {Baseline | undefined}
 */
export function useBaseline(environment, shown) {
  const state = useLoaded(
    async (aborted) => {
      const [found] = environment === undefined ? [] : await tagged(environment, aborted);
      if (!found || shown.includes(found.run_id)) return null;
      const [run, iterations] = await Promise.all([
        get(path`runs/${found.run_id}`, {}, aborted),
        all(path`runs/${found.run_id}/iterations`, {}, { aborted }),
      ]);
      return {
        name: `baseline ${nameOf(found, 40)}`,
        run,
        iterations: iterations.filter((/** @type {Iteration} */ each) => each.iteration > 0),
      };
    },
    [environment, shown.join()],
  );
  return state.data ?? undefined;
}

/**
 * The baseline as a line of a chart of its iterations.
 * @param {Baseline | undefined} baseline @param {(each: Iteration) => number | null | undefined} value
 * @returns {import("./chart.js").Thin | undefined}
 */
export const lineOf = (baseline, value) =>
  baseline && {
    label: baseline.name,
    values: new Map(baseline.iterations.map((each) => [each.iteration, value(each) ?? null])),
  };

/** Take the tag from the other runs of the environment. @param {{run_id: string, environment: string}} run */
export async function unpinOthers({ run_id: id, environment }) {
  const others = (await tagged(environment)).filter((each) => each.run_id !== id);
  await Promise.all(
    others.map((each) => patch(path`runs/${each.run_id}`, { tags: each.tags.filter((tag) => tag !== TAG) })),
  );
}
