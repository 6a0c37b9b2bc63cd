// The rollouts of one group side by side, to see where the good ones act differently.

import { all, get, path } from "../api.js";
import { counted } from "../format.js";
import { html } from "../parts/html.js";
import { Columns, folded, Pages } from "../parts/side_by_side.js";
import { Empty, Loaded, useLoaded } from "../parts/states.js";
import { Text } from "../parts/text.js";
import { href, refine } from "../router.js";
import { taskOf } from "./trajectories.js";

/** @typedef {import("../api_types").TrajectoryBrief} Brief */
/** @typedef {import("../api_types").TrajectoryOut} Trajectory */

const _AT_ONCE = 8;
/** Maximum number of rollouts of a group to read. */
const _MOST = 64;

/** @param {{runId: string, query: URLSearchParams}} props */
export function GroupPage({ runId, query }) {
  const [iteration, scenario] = [query.get("iteration") ?? "", query.get("scenario") ?? ""];
  const state = useLoaded((aborted) => load(runId, iteration, scenario, aborted), [runId, iteration, scenario]);
  return html`
    <p class="crumbs"><a href=${href(["runs", runId])}>Run</a> /${" "}
      <a href=${href(["runs", runId, "trajectories"], { iteration })}>Iteration ${iteration}</a> / group</p>
    <${Loaded} state=${state} rows=${6}>${(/** @type {Trajectory[]} */ found) =>
      html`<${Whole} runId=${runId} found=${found} query=${query} />`}<//>`;
}

/**
 * @param {string} runId
 * @param {string} iteration
 * @param {string} scenario
 * @param {AbortSignal} aborted
 * @returns {Promise<Trajectory[]>}
 */
async function load(runId, iteration, scenario, aborted) {
  const query = { kind: "train", iteration, scenario_id: scenario };
  const found = /** @type {Brief[]} */ (await all(path`runs/${runId}/trajectories`, query, { aborted, most: _MOST }));
  return Promise.all(found.slice(0, _MOST).map((each) => get(path`trajectories/${each.id}`, {}, aborted)));
}

/** @param {{runId: string, found: Trajectory[], query: URLSearchParams}} props */
function Whole({ runId, found, query }) {
  if (found.length === 0) return html`<${Empty} title="This group has no rollouts" />`;
  const different = folded(found);
  const from = Number(query.get("from") ?? 0);
  const shown = different.slice(from, from + _AT_ONCE);
  const move = (/** @type {number} */ next) => refine({ ...Object.fromEntries(query), from: String(next) });
  const sides = shown.map(({ first, count }, index) => ({
    id: first.id,
    title: from + index === 0 ? "Best" : `${first.success ? "Success" : "Failure"} ${from + index}`,
    href: href(["runs", runId, "trajectories", first.id]),
    note: count > 1 ? `${count} × the same` : undefined,
  }));
  return html`<h1><${Text} value=${taskOf(found[0])} limit=${300} /></h1>
    <p class="muted">${counted(found.length, "rollout")}, ${
      different.length === 1
        ? "all the same."
        : `${different.length} different: the best first, then those that failed, the worst first.`
    }
      <${Pages} from=${from} most=${_AT_ONCE} count=${different.length} move=${move} /></p>
    <${Columns} sides=${sides} found=${shown.map((act) => act.first)} />`;
}
