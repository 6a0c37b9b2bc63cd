// The page of a run: a header with the available actions, and tabs.

import { useEffect, useMemo } from "../vendor/hooks.js";
import { html } from "../parts/html.js";
import { Failed, Loading } from "../parts/states.js";
import { Status } from "../parts/status.js";
import { label, Text } from "../parts/text.js";
import { Verdict } from "../parts/verdict.js";
import { href } from "../router.js";
import { openRun } from "../run_data.js";
import { HeldOut } from "./held_out.js";
import { RunActions } from "./run_actions.js";
import { RunEvents } from "./run_events.js";
import { RunIterations } from "./run_iterations.js";
import { RunOverview } from "./run_overview.js";
import { RunRequest } from "./run_request.js";
import { Sales } from "./sales.js";
import { RunTrajectories } from "./trajectories.js";

/** @typedef {import("../run_data.js").RunData} RunData */
/** @typedef {{data: RunData, run: import("../api_types").RunOut, query: URLSearchParams}} PartProps */

/** @type {{name: string, title: string, part: (props: PartProps) => any, when?: (run: any) => boolean}[]} */
const _PARTS = [
  { name: "", title: "Overview", part: RunOverview },
  { name: "iterations", title: "Iterations", part: RunIterations },
  { name: "trajectories", title: "Trajectories", part: RunTrajectories },
  { name: "held-out", title: "Before and after", part: HeldOut },
  { name: "emails", title: "Emails and graph", part: Sales, when: (run) => run.environment === "sales_email" },
  { name: "events", title: "Events", part: RunEvents },
  { name: "request", title: "Settings", part: RunRequest },
];
const _CONNECTIONS = /** @type {Record<string, string>} */ ({
  connecting: "connecting …",
  live: "live",
  lost: "connection lost, trying again …",
});

/** @param {{id: string, part: string, query: URLSearchParams}} props */
export function RunPage({ id, part, query }) {
  const data = useMemo(() => openRun(id), [id]);
  useEffect(() => () => data.close(), [data]);
  const run = data.run.value;
  if (!run) return data.error.value ? html`<${Failed} error=${data.error.value} />` : html`<${Loading} rows=${8} />`;
  const shown = _PARTS.find((each) => each.name === part) ?? _PARTS[0];
  return html`
    <${Head} data=${data} run=${run} />
    <nav class="tabs" aria-label="Parts of the run">
      ${_PARTS.filter((each) => each.when?.(run) ?? true).map(
        (each) => html`<a
          href=${href(["runs", id, ...(each.name ? [each.name] : [])], { held: query.get("held") })}
          aria-current=${each === shown ? "page" : undefined}
        >${each.title}</a>`,
      )}
    </nav>
    <${shown.part} data=${data} run=${run} query=${query} />`;
}

/** @param {{data: RunData, run: import("../api_types").RunOut}} props */
function Head({ data, run }) {
  const connection = _CONNECTIONS[data.connection.value];
  return html`
    <p class="crumbs"><a href=${href([])}>Runs</a> / <code>${run.run_id}</code></p>
    <div class="title-row">
      <h1>${label(`${run.model.project}/${run.model.name}`)} <${Status} status=${run.status} />
        ${connection && html`<span class=${`connection ${data.connection.value}`} role="status">${connection}</span>`}
      </h1>
      <${RunActions} data=${data} run=${run} />
    </div>
    <p class="muted">
      <${Text} value=${run.environment} limit=${80} /> judged by <${Text} value=${run.judge} limit=${80} />, trained on
      ${" "}<${Text} value=${run.backend} limit=${80} /> from <${Text} value=${run.model.base_model} limit=${120} />
      ${run.parent && html`, forked from <a href=${href(["runs", run.parent.run_id])}>${run.parent.run_id}</a> at step ${run.parent.step}`}
    </p>
    <${Verdict} verdict=${run.verdict} />
    <${Notices} run=${run} />`;
}

/** Why the run failed, is waiting, or may learn nothing. @param {{run: import("../api_types").RunOut}} props */
function Notices({ run }) {
  return html`
    ${run.error && html`<section class="notice bad" role="alert"><h2>Why it failed</h2><${Text} as="p" value=${run.error} limit=${1500} /></section>`}
    ${run.queue && html`<section class="notice"><h2>In the queue</h2><p>${run.queue.position} ${run.queue.position === 1 ? "run" : "runs"} ahead. <${Text} value=${run.queue.reason} limit=${400} /></p></section>`}
    ${run.wait_reason && html`<section class="notice warn"><h2>${run.status === "paused" ? "Why it is paused" : "What it waits for"}</h2><${Text} as="p" value=${run.wait_reason} limit=${800} /></section>`}
    ${run.warnings.length > 0 && html`<section class="notice warn"><h2>Worth a look</h2><ul>
      ${run.warnings.map((each) => html`<li><${Text} value=${each} limit=${600} /></li>`)}</ul></section>`}`;
}
