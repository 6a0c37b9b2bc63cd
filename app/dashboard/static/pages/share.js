// What a run is shared by: its report, a card, its tables, and a link to this view.

import { download, path, url } from "../api.js";
import { Action, Copy } from "../parts/action.js";
import { html } from "../parts/html.js";
import { Menu } from "../parts/menu.js";

const _TABLES = ["iterations", "evaluations", "rollouts"];

/** @param {{id: string}} props */
export function Share({ id }) {
  const report = path`runs/${id}/report`;
  return html`<${Menu} title="Share">
    <p><strong>Report</strong> <span class="muted">One HTML file to read offline, print and pass on: the verdict,${" "}
        all figures, and five tasks before and after.</span></p>
    <${Action} label="Download the report" kind="primary" act=${() => download(url(report), `report-${id}.html`)} />
    <p><strong>Card</strong> <span class="muted">A picture of 1200 x 630 pixels.</span></p>
    <div class="actions">
      <${Action} label="PNG" act=${() => download(url(report, { form: "png" }), `card-${id}.png`)} />
      <${Action} label="SVG" act=${() => download(url(report, { form: "svg" }), `card-${id}.svg`)} />
    </div>
    <p><strong>Tables</strong> <span class="muted">The figures of all charts, as CSV.</span></p>
    <div class="actions">
      ${_TABLES.map(
        (table) => html`<a class="button" href=${url(path`runs/${id}/tables/${table}`)} download>${table}</a>`,
      )}
    </div>
    <p><strong>Link</strong> <span class="muted">
        To what this page shows now. It asks for a key where the service needs one.</span></p>
    <${Copy} text=${() => location.href} label="Copy link to this view" kind="" />
  <//>`;
}
