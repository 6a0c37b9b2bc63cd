// The request that started a run, with all defaults filled in, and how to start it again.

import { html } from "../parts/html.js";
import { JsonText, Text } from "../parts/text.js";
import { AsCode } from "../parts/as_code.js";

/** @param {import("./run.js").PartProps} props */
export function RunRequest({ run }) {
  return html`<section class="card">
      <h2>Settings</h2>
      <p>Environment <${Text} value=${run.environment} limit=${80} />, judge <${Text} value=${run.judge} limit=${80} />, backend
        ${" "}<${Text} value=${run.backend} limit=${80} />, base model <${Text} value=${run.model.base_model} limit=${120} />.</p>
      <${JsonText} value=${run.request} limit=${20_000} />
      ${run.reproducible !== null &&
      html`<p>${run.reproducible ? "The same seed gives the same weights on this machine. " : "The same seed may give other weights. "}
        <span class="muted"><${Text} value=${run.reproducible_reason} limit=${400} /></span></p>`}
    </section>
    <section class="card"><h2>Start it again</h2><${AsCode} body=${run.request} /></section>`;
}
