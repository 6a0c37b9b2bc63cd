// The tokens of a rollout, coloured by how much likelier one checkpoint finds each than another one.

import { percent } from "../format.js";
import { html } from "./html.js";
import { visible } from "./text.js";

/** @typedef {import("../api_types").ScoredTurn} ScoredTurn */
/** @typedef {{text: string, before: number, after: number}} Token probabilities under the two checkpoints */

/** Changes of probability from which a token has the next stronger colour. */
const _STEPS = [0.05, 0.2, 0.5];
const _LISTED = 5;

/**
 * @param {ScoredTurn} turn
 * @returns {Token[]}
 */
const tokensOf = ({ texts, logprobs: [before, after] }) =>
  texts.map((text, index) => ({ text, before: Math.exp(before[index]), after: Math.exp(after[index]) }));

/** @param {Token} token */
function tone({ before, after }) {
  const step = _STEPS.filter((least) => Math.abs(after - before) >= least).length;
  return step === 0 ? "" : `${after > before ? "likelier" : "less-likely"} by-${step}`;
}

/** @param {Token} token */
const said = ({ before, after }) => `${percent(before)} → ${percent(after)}`;

/** @param {{turns: ScoredTurn[]}} props */
export function TokenChanges({ turns }) {
  const all = turns.map((turn) => ({ turn, tokens: tokensOf(turn) }));
  const most = all
    .flatMap(({ turn, tokens }) => tokens.map((token) => ({ token, number: turn.turn })))
    .filter(({ token }) => tone(token) !== "")
    .sort(
      (one, other) => Math.abs(other.token.after - other.token.before) - Math.abs(one.token.after - one.token.before),
    )
    .slice(0, _LISTED);
  return html`<div class="token-changes">
    <p class="muted small legend">Chance of each token: ${["likelier", "less-likely"].map(
      (way) => html`<span class="legend-group">${way === "likelier" ? "likelier" : "less likely"} by
      ${_STEPS.map(
        (least, index) => html` <span class=${`tokens ${way} by-${index + 1}`}>${percent(least)}</span>`,
      )}</span>`,
    )}</p>
    ${all.map(
      ({ turn, tokens }) => html`<h4>Turn ${turn.turn}</h4>
      <p class="tokens text">${tokens.map(
        (token) => html`<span class=${tone(token)} title=${said(token)}>${visible(token.text)}</span>`,
      )}</p>`,
    )}
    ${
      most.length === 0
        ? html`<p class="muted small">No token changed by ${percent(_STEPS[0])} or more.</p>`
        : html`<p class="muted small">Changed most: ${most.map(
            ({ token, number }, index) =>
              html`${index > 0 && ", "}
              <code>${visible(token.text).trim() || "space"}</code> ${said(token)} (turn ${number})`,
          )}</p>`
    }
  </div>`;
}
