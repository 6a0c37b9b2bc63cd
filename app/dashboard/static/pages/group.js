// The rollouts of one group side by side, to see where the good ones act differently.

import { all, path } from "../api.js";
import { html } from "../parts/html.js";
import { SideBySide } from "../parts/side_by_side.js";
import { Empty, Loaded, useLoaded } from "../parts/states.js";
import { Text } from "../parts/text.js";
import { href, refine } from "../router.js";
import { taskOf } from "./trajectories.js";

/** @typedef {import("../api_types").TrajectoryBrief} Brief */

const _AT_ONCE = 8;

/** @param {{runId: string, query: URLSearchParams}} props */
export function GroupPage({ runId, query }) {
  const [iteration, scenario] = [query.get("iteration") ?? "", query.get("scenario") ?? ""];
  const wanted = { kind: "train", iteration, scenario_id: scenario };
  const state = useLoaded((aborted) => all(path`runs/${runId}/trajectories`, wanted, { aborted, most: 400 }), [runId, iteration, scenario]);
  return html`
    <p class="crumbs"><a href=${href(["runs", runId])}>Run</a> / <a href=${href(["runs", runId, "trajectories"], { iteration })}>Iteration ${iteration}</a> / group</p>
    <${Loaded} state=${state} rows=${6}>${(/** @type {Brief[]} */ found) => html`<${Whole} runId=${runId} found=${found} query=${query} />`}<//>`;
}

/** @param {{runId: string, found: Brief[], query: URLSearchParams}} props */
function Whole({ runId, found, query }) {
  if (found.length === 0) return html`<${Empty} title="This group has no rollouts" />`;
  const sorted = found.sort((one, other) => (other.reward ?? -Infinity) - (one.reward ?? -Infinity));
  const from = Number(query.get("from") ?? 0);
  const shown = sorted.slice(from, from + _AT_ONCE);
  const move = (/** @type {number} */ next) => refine({ ...Object.fromEntries(query), from: String(next) });
  return html`<h1><${Text} value=${taskOf(found[0])} limit=${300} /></h1>
    <p class="muted">Rollouts ${from + 1} to ${from + shown.length} of ${sorted.length}, the best reward first.
      ${sorted.length > _AT_ONCE && html` <button disabled=${from === 0} onClick=${() => move(Math.max(0, from - _AT_ONCE))}>Better ones</button>
        <button disabled=${from + _AT_ONCE >= sorted.length} onClick=${() => move(from + _AT_ONCE)}>Worse ones</button>`}</p>
    <${SideBySide} sides=${shown.map((each, index) => ({
      id: each.id,
      title: `Rollout ${from + index + 1}`,
      href: href(["runs", runId, "trajectories", each.id]),
    }))} />`;
}
