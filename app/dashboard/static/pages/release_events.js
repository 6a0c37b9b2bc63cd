// The events of a release, newest first, each with its evidence in words.

import { counted, finePercent } from "../format.js";
import { EventRow } from "../parts/event_row.js";
import { html } from "../parts/html.js";
import { evidenceText } from "../parts/release.js";
import { label } from "../parts/text.js";

/** @typedef {import("../api_types").ReleaseOut} Release */
/** @typedef {import("../api_types").ReleaseEventOut} Event */

/** @param {{release: Release, events: Event[]}} props */
export function ReleaseEvents({ release, events }) {
  if (events.length === 0) return null;
  return html`<h2>Events</h2>
    <ol class="events" reversed>${[...events].reverse().map(
      (event) =>
        html`<${EventRow} key=${event.seq} event=${event}
            gist=${inWords(event, release)} tone=${_TONES[event.type] ?? ""} />`,
    )}</ol>`;
}

const _WHY = /** @type {Record<string, string>} */ ({ time: "because its time was up", outcome: "by its outcomes" });
const _TONES = /** @type {Record<string, string>} */ ({ "release.rolled_back": "bad", "release.held": "warn" });

/** What happened, with the evidence for it. @param {Event} event @param {Release} release */
export function inWords({ type, actor, data }, release) {
  const by = label(actor);
  switch (type) {
    case "release.started":
      return `${finePercent(data.share)} of the ${release.unit}s meet the candidate, ${trialled(data.evidence)}.`;
    case "release.stage_changed":
      return (
        `The share rose from ${finePercent(data.before?.share)} to ${finePercent(data.share)}: ` +
        `${counted(data.evidence?.met ?? 0, release.unit)} of the stage had met the candidate, ` +
        "and no guardrail spoke against it."
      );
    case "release.held":
      return data.reason === "person"
        ? `Held by ${by} at ${finePercent(data.share)}.`
        : `Held, because both arms fail: ${failures(data.evidence)}.`;
    case "release.resumed":
      return `Resumed by ${by}.`;
    case "release.rolled_back":
      return (
        `Rolled back${because(data, by, release)}.` +
        (data.ended_sessions ? ` ${counted(data.ended_sessions, "open session")} ended with it.` : "")
      );
    case "release.promoted":
      return `Promoted ${data.by === "person" ? `by ${by}` : _WHY[data.by]}. ${label(data.quality, 300)}`;
    case "release.confirmed":
      return "Confirmed by users who had no part in the decision.";
    case "release.ended":
      return "Ended, because the name was given to another checkpoint or withdrawn.";
    default:
      return "";
  }
}

/** @param {Record<string, any>} data @param {string} by @param {Release} release */
function because({ reason, evidence }, by, release) {
  if (reason === "guardrail") return `: ${alarms(evidence, release).join("; ")}`;
  if (reason === "breaker") return `: ${failures(evidence)}`;
  if (reason === "trial")
    return `: the trial on held-out scenarios ${evidence?.trial ? "refused the candidate" : "failed"}`;
  return reason === "person" ? ` by ${by}` : `: ${label(release.summary.split(": ")[1], 200)}`;
}

/**
 * The guardrails that took the candidate back.
 * @param {Record<string, any> | null} evidence @param {Release} release
 */
function alarms(evidence, release) {
  return Object.entries(evidence?.guardrails ?? {})
    .filter(([, found]) => found.harm >= found.harm_threshold)
    .map(([name, found]) => {
      const called = release.guardrails.find((each) => each.guardrail === name)?.means ?? label(name, 40);
      const means = `${finePercent(found.stable.mean)} → ${finePercent(found.candidate.mean)}`;
      return `${called} ${means}, evidence ${evidenceText(found.harm, found.harm_threshold)}`;
    });
}

/** What the breaker went by. @param {Record<string, any> | null} evidence */
function failures(evidence) {
  const { in_a_row: row = 0, stable_failed: failed = 0, stable_units: units = 0 } = evidence?.failures ?? {};
  const ofStable = `the stable checkpoint ${failed} of ${counted(units, "time")}`;
  return `the candidate failed ${counted(row, "time")} in a row, and ${ofStable} meanwhile`;
}

/** @param {Record<string, any> | null} evidence */
function trialled(evidence) {
  const decision = evidence?.trial?.decision;
  if (!decision) return "without a trial on held-out scenarios";
  return decision === "promote" ? "after a trial that found it better" : "after a trial that decided nothing";
}
