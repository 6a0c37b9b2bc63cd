// The agent's sampled tokens; the less likely a token was, the stronger its color.

import { percent } from "../format.js";
import { html } from "./html.js";
import { visible } from "./text.js";

const _STEPS = [0.95, 0.8, 0.5, 0.2, 0.05];
const _SHOWN = 3000;

/** @param {number} logprob */
function tone(logprob) {
  const p = Math.exp(logprob);
  const step = _STEPS.findIndex((limit) => p >= limit);
  return `t${step === -1 ? _STEPS.length : step}`;
}

/** @param {{turn: import("../api_types").SampledTurn}} props */
export function Tokens({ turn }) {
  const { texts, logprobs } = turn;
  const least = logprobs
    .map((logprob, index) => ({ logprob, text: texts[index] }))
    .sort((one, other) => one.logprob - other.logprob)
    .slice(0, 3);
  return html`<p class="tokens text">${texts.slice(0, _SHOWN).map(
    (text, index) =>
      html`<span class=${tone(logprobs[index])}
          title=${`${percent(Math.exp(logprobs[index]))} likely`}>${visible(text)}</span>`,
  )}${texts.length > _SHOWN && ` … and ${texts.length - _SHOWN} more`}</p>
    <p class="muted small">Least likely: ${least.map(
      ({ text, logprob }, index) =>
        html`${index > 0 && ", "}<code>${visible(text).trim() || "space"}</code> ${percent(Math.exp(logprob))}`,
    )}</p>`;
}

export function TokensLegend() {
  return html`<p class="muted small legend">How likely each token was:
    ${["over 95%", "80%", "50%", "20%", "5%", "less"].map(
      (each, step) => html` <span class=${`tokens t${step}`}>${each}</span>`,
    )}</p>`;
}
