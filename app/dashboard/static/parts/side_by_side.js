// Rollouts of one scenario side by side, turn by turn, with the first turn in which they differ.

import { useRef } from "../vendor/hooks.js";
import { get, path } from "../api.js";
import { number } from "../format.js";
import { WhyNoSuccess } from "./expected.js";
import { html } from "./html.js";
import { Said } from "./conversation.js";
import { Signed } from "./reward.js";
import { Loaded, useLoaded } from "./states.js";
import { Sideways } from "./strip.js";
import { label } from "./text.js";

/** @typedef {import("../api_types").TrajectoryOut} Trajectory */
/** @typedef {import("./conversation.js").Message} Message */
/** @typedef {{id: string, title: string, href: string, note?: string}} Side */
/** @typedef {{first: Trajectory, count: number}} Act rollouts that did the same */

/** The agent's turns, each with the results of its tool calls. @param {Message[]} messages */
function turnsOf(messages) {
  /** @type {{said: Message, results: Message[]}[]} */
  const turns = [];
  for (const message of messages) {
    if (message.role === "assistant") turns.push({ said: message, results: [] });
    else if (message.role === "tool") turns.at(-1)?.results.push(message);
  }
  return turns;
}

/** What an agent did, as a text that is the same for rollouts that did the same. @param {Trajectory} trajectory */
const actsOf = ({ messages }) => JSON.stringify(turnsOf(/** @type {Message[]} */ (messages)).map(actOf));

/**
 * Rollouts that did the same as one, the best first, then those that failed, the worst first.
 * @param {Trajectory[]} found @param {(trajectory: Trajectory) => unknown} [by] what else has to be the same
 * @returns {Act[]}
 */
export function folded(found, by = () => "") {
  const reward = (/** @type {Act} */ act) => act.first.reward ?? -Infinity;
  const different = Map.groupBy(found, (each) => `${by(each)} ${each.success} ${actsOf(each)}`);
  const acts = [...different.values()].map((same) => ({ first: same[0], count: same.length }));
  const [best, ...others] = acts.sort((one, other) => reward(other) - reward(one));
  if (!best) return [];
  const failed = others.filter((act) => !act.first.success).reverse();
  return [best, ...failed, ...others.filter((act) => act.first.success)];
}

/** @param {{said: Message} | undefined} turn */
const actOf = (turn) =>
  JSON.stringify([
    turn?.said.content ?? null,
    (turn?.said.tool_calls ?? []).map((call) => [call.function?.name, call.function?.arguments]),
  ]);

/**
 * Index of the first turn in which two rollouts differ; -1 if they do not.
 * @param {ReturnType<typeof turnsOf>} one
 * @param {ReturnType<typeof turnsOf>} other
 */
function firstDifference(one, other) {
  const longest = Math.max(one.length, other.length);
  for (let index = 0; index < longest; index++) if (actOf(one[index]) !== actOf(other[index])) return index;
  return -1;
}

/**
 * While others are loaded, those before stay, so that a reader who goes through many sees no gap.
 * @param {{sides: Side[]}} props
 */
export function SideBySide({ sides }) {
  const last = useRef(/** @type {{sides: Side[], found: Trajectory[]} | undefined} */ (undefined));
  const state = useLoaded(
    async (aborted) => ({
      sides,
      found: await Promise.all(sides.map((side) => get(path`trajectories/${side.id}`, {}, aborted))),
    }),
    [sides.map((side) => side.id).join()],
  );
  last.current = state.data ?? last.current;
  if (state.error || !last.current) return html`<${Loaded} state=${state} rows=${6}>${() => null}<//>`;
  return html`<${Columns} ...${last.current} />
    ${!state.data && html`<span class="loading unseen" role="status">Loading …</span>`}`;
}

/**
 * @param {{sides: Side[], found: Trajectory[], replayed?: number}} props `replayed`: number of first turns that were
 *   not sampled
 */
export function Columns({ sides, found, replayed = 0 }) {
  const all = found.map((each) => turnsOf(/** @type {Message[]} */ (each.messages)));
  const differs = all.map((turns) => firstDifference(all[0], turns));
  const longest = Math.max(0, ...all.map((turns) => turns.length));
  return html`
    <p class="muted">${
      differs.every((turn) => turn === -1)
        ? "All did the same."
        : "Marked: the first turn in which a rollout differs from the leftmost one."
    }</p>
    <${Sideways} class="side-by-side" label="Rollouts side by side"><table>
      <thead><tr><th scope="col">Turn</th>
        ${sides.map(
          (side, index) =>
            html`<th scope="col"><a href=${side.href}>${label(side.title, 60)}</a>
              ${side.note && html` <span class="muted">${side.note}</span>`}
              <${Verdict} trajectory=${found[index]} /></th>`,
        )}
      </tr></thead>
      <tbody>${Array.from(
        { length: longest },
        (_, turn) => html`<tr>
        <th scope="row">${turn + 1}${turn < replayed && html`<span class="replayed">replayed</span>`}</th>
        ${all.map(
          (turns, column) => html`<td class=${turn === differs[column] ? "parts-here" : ""}>
          ${turn === differs[column] && html`<span class="mark-here">differs from here</span>`}
          ${turns[turn] ? html`<${Turn} ...${turns[turn]} />` : html`<span class="muted">–</span>`}</td>`,
        )}
      </tr>`,
      )}</tbody>
    </table><//>`;
}

/**
 * Buttons to move through columns of which only some are shown.
 * @param {{from: number, most: number, count: number, move: (from: number) => void}} props
 */
export function Pages({ from, most, count, move }) {
  if (count <= most) return null;
  return html` <button disabled=${from === 0} onClick=${() => move(Math.max(0, from - most))}>Before</button>${" "}
    <button disabled=${from + most >= count} onClick=${() => move(from + most)}>Next</button>`;
}

/** @param {{trajectory: Trajectory}} props */
function Verdict({ trajectory }) {
  return html`<span class="verdict">
    <span class=${trajectory.success ? "good" : "muted"}>
      ${trajectory.success === null ? "" : trajectory.success ? "✓ success" : "✗ no success"}</span>
    <${WhyNoSuccess} of=${trajectory} />
    <span>reward ${number(trajectory.reward)}</span>
    ${trajectory.kind === "train" && html`<${Signed} value=${trajectory.advantage} name="advantage " />`}
  </span>`;
}

/** @param {{said: Message, results: Message[]}} props */
function Turn({ said, results }) {
  return html`<${Said} message=${said} />
    ${results.map(
      (result) => html`<details class="result"><summary>Result</summary><${Said} message=${result} /></details>`,
    )}`;
}
