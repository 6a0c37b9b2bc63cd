// The answer that a scenario expects, and why a rollout is not a success, where that is known.

import { html } from "./html.js";
import { label, Text } from "./text.js";

/** @param {{scenario: Record<string, any>}} props */
export function Expected({ scenario }) {
  const answer = scenario?.reference?.answer;
  return typeof answer === "string"
    ? html`<p class="expected">Expected: <strong><${Text} value=${answer} limit=${2000} /></strong></p>`
    : null;
}

/**
 * The environment's clause about a rollout or an answer that is not a success.
 * @param {{of: {why_no_success?: string | null}}} props
 */
export const WhyNoSuccess = ({ of: { why_no_success: why } }) =>
  why ? html`<span class="why-no-success" dir="auto">${label(why, 300)}</span>` : null;
