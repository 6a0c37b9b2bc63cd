// Why the service refused a request. If an environment has changed, the recorded text and the one of today.

import { ApiError } from "../api.js";
import { html } from "./html.js";
import { label, Text } from "./text.js";

/** @param {{error: Error}} props */
export function Refusal({ error }) {
  const { recorded, found, tool, turn } = error instanceof ApiError ? error.problem : {};
  const where = tool ? `${label(tool, 60)} in turn ${turn}` : turn ? `turn ${turn}` : "the opening messages";
  return html`<span class="wrong" role="alert"><${Text} value=${error.message} limit=${300} /></span>
    ${
      recorded !== undefined &&
      html`<${BothTexts} titles=${[`Recorded: ${where}`, "Found now"]} texts=${[recorded, found]} />`
    }`;
}

/**
 * Two versions of a text.
 * @param {{titles: string[], texts: (string | null)[]}} props `null`: there was no such message
 */
export function BothTexts({ titles, texts }) {
  return html`<dl class="both-texts">${titles.map(
    (title, index) => html`<div><dt>${title}</dt>
    <dd>${
      texts[index] === null
        ? html`<span class="muted">no message</span>`
        : html`<${Text} as="pre" class="code" value=${texts[index]} limit=${1500} />`
    }</dd></div>`,
  )}</dl>`;
}
