// The answer that a scenario expects, where it has one.

import { html } from "./html.js";
import { Text } from "./text.js";

/** @param {{scenario: Record<string, any>}} props */
export function Expected({ scenario }) {
  const answer = scenario?.reference?.answer;
  return typeof answer === "string" ? html`<p class="expected">Expected: <strong><${Text} value=${answer} limit=${2000} /></strong></p>` : null;
}
