// What pages say about releases: a release in a line, its state, and evidence as a bar.

import { finePercent, inWords, number, whole } from "../format.js";
import { href } from "../router.js";
import { html } from "./html.js";
import { Status } from "./status.js";
import { served } from "./text.js";

/** @typedef {import("../api_types").ReleaseBrief} Brief */

const _LIVE = new Set(["trial", "running", "held"]);
const _MOST = 1_000_000;

/** Whether a release has not ended. @param {{state: string}} release */
export const isLive = ({ state }) => _LIVE.has(state);

/** @param {{release: {state: string}}} props */
export const ReleaseState = ({ release }) => html`<${Status} status=${inWords(release.state)} />`;

/**
 * The candidate of a live release against the stable checkpoint, its share and state.
 * @param {{release: Brief}} props
 */
export function ReleaseLine({ release }) {
  return html`<a href=${href(["releases", release.release_id])}>
      ${served(release.candidate, release.candidate_prompt)} against${" "}
      ${served(release.stable, release.stable_prompt)}</a>${" "}
    <span class="muted">${release.state === "trial" ? "no users yet" : `${finePercent(release.share)} of users`}
      </span> <${ReleaseState} release=${release} />`;
}

/**
 * Evidence and its threshold, in words. Evidence is what a bet that began with 1 has won.
 * @param {number} log natural logarithm of the evidence @param {number} threshold natural logarithm as well
 */
export const evidenceText = (log, threshold) => `${odds(log)} of ${odds(threshold)}`;

/** @param {number} log */
function odds(log) {
  const value = Math.exp(log);
  if (value >= _MOST) return `over ${whole(_MOST)}`;
  return value < 9.95 ? number(value, 1) : whole(value);
}

/**
 * Evidence as a bar towards its threshold, on a logarithmic scale.
 * @param {{log: number, threshold: number, reached: "good" | "bad"}} props `reached`: what it means to reach the
 *   threshold
 */
export function Evidence({ log, threshold, reached }) {
  const width = `${100 * Math.min(1, Math.max(0, log / threshold))}%`;
  return html`<span class="share"><span class="track"
      aria-hidden="true"><span class=${`fill ${log >= threshold ? reached : ""}`} style=${{ width }}></span></span>
    <span>${evidenceText(log, threshold)}</span></span>`;
}
