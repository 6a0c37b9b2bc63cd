// What people thought of a rollout or a session, and a form to say it, with a comment.

import { useState } from "../vendor/hooks.js";
import { all, path } from "../api.js";
import { inWords, moment } from "../format.js";
import { Field } from "./field.js";
import { html } from "./html.js";
import { Rate } from "./rate.js";
import { useLoaded } from "./states.js";
import { label, Text } from "./text.js";

/**
 * @typedef {{event_id: string, type: string, name: string | null, value: number | null, comment: string | null,
 *   source: string, occurred_at: string}} Opinion
 */

const _TYPES = /** @type {Record<string, string>} */ ({
  thumbs_up: "Good",
  thumbs_down: "Bad",
  preferred: "Preferred to another one",
});

/** @param {Opinion} each */
const _spoken = (each) =>
  each.type === "outcome"
    ? `${label(each.name ?? "", 64)}: ${each.value}`
    : (_TYPES[each.type] ?? label(inWords(each.type), 40));

/** @param {{found: Opinion[]}} props newest first */
export const Opinions = ({ found }) =>
  found.length > 0 &&
  html`<ul class="opinions">${found.map(
    (each) => html`<li key=${each.event_id}><strong>${_spoken(each)}</strong>
    <span class="muted"> ${moment(each.occurred_at)}${each.source === "simulator" && ", simulated"}</span>
    ${each.comment && html`<${Text} as="p" value=${each.comment} limit=${2000} />`}</li>`,
  )}</ul>`;

/**
 * @param {{about: {trajectory_id: string} | {session_id: string}, rated: () => void}} props `rated` is called once the
 *   opinion is stored
 */
export function Opine({ about, rated }) {
  const [comment, setComment] = useState("");
  const stored = () => {
    setComment("");
    rated();
  };
  const [subject] = Object.values(about); // several forms can be on a page
  const field = { name: `comment-${subject}`, label: "Comment", type: "string", help: "What was said; not required." };
  return html`<${Field} field=${field} value=${comment} set=${setComment} faults=${[]} />
    <${Rate} about=${about} comment=${comment} rated=${stored} />`;
}

/**
 * What people thought of a rollout; `runId` is null if it belongs to no run.
 * @param {{runId: string | null, id: string}} props
 */
export function RolloutOpinions({ runId, id }) {
  const state = useLoaded(
    async (aborted) => (runId ? all(path`runs/${runId}/feedback`, { trajectory_id: id }, { aborted, most: 200 }) : []),
    [id],
  );
  return html`<${Opinions} found=${state.data ?? []} />
    <${Opine} about=${{ trajectory_id: id }} rated=${state.reload} />`;
}
