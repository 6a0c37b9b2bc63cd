// The page of a run: a header with the available actions, and tabs.

import { useEffect, useMemo } from "../vendor/hooks.js";
import { get, path } from "../api.js";
import { useBaseline } from "../parts/baseline.js";
import { html } from "../parts/html.js";
import { EditRun, Star, Tags } from "../parts/run_edit.js";
import { nameOf } from "../parts/run_name.js";
import { useRunNotice } from "../parts/run_notice.js";
import { Failed, Loading, useLoaded } from "../parts/states.js";
import { Status } from "../parts/status.js";
import { Strip } from "../parts/strip.js";
import { label, starter, Text } from "../parts/text.js";
import { Verdict } from "../parts/verdict.js";
import { href } from "../router.js";
import { openRun } from "../run_data.js";
import { AddedPage, addedPages } from "./added_page.js";
import { RunFailures } from "./failures.js";
import { HeldOut } from "./held_out.js";
import { RunJudges } from "./rejudgings.js";
import { RunActions } from "./run_actions.js";
import { RunIterations } from "./run_iterations.js";
import { RunLogPage } from "./run_log.js";
import { RunMetrics } from "./run_metrics.js";
import { Notices } from "./run_notices.js";
import { RunOverview } from "./run_overview.js";
import { RunRequest } from "./run_request.js";
import { RunTrajectories } from "./trajectories.js";

/** @typedef {import("../run_data.js").RunData} RunData */
/** @typedef {import("../api_types").ModelCheckpoint} Checkpoint */
/** @typedef {import("../api_types").RunOut} Run */
/** @typedef {import("../parts/baseline.js").Baseline} Baseline */
/** @typedef {{data: RunData, run: Run, query: URLSearchParams, baseline: Baseline | undefined}} PartProps */

/** @typedef {{name: string, title: string, part: (props: PartProps) => any}} Part */

/** @type {Part[]} */
const _PARTS = [
  { name: "", title: "Overview", part: RunOverview },
  { name: "metrics", title: "Metrics", part: RunMetrics },
  { name: "iterations", title: "Iterations", part: RunIterations },
  { name: "trajectories", title: "Trajectories", part: RunTrajectories },
  { name: "held-out", title: "What it learned", part: HeldOut },
  { name: "failures", title: "Failures", part: RunFailures },
  { name: "rejudgings", title: "Judges", part: RunJudges },
  { name: "log", title: "Log", part: RunLogPage },
  { name: "request", title: "Settings", part: RunRequest },
];
/** Names in addresses of earlier versions. @type {Record<string, string>} */
const _EARLIER = { events: "log" };
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
  const baseline = useBaseline(run?.environment, [id]);
  if (!run)
    return data.error.value
      ? html`<${Failed} error=${data.error.value} retry=${data.retry} />`
      : html`<${Loading} rows=${8} />`;
  const parts = partsOf(run.environment);
  const shown = parts.find((each) => each.name === (_EARLIER[part] ?? part)) ?? parts[0];
  return html`
    <${Head} data=${data} run=${run} isElsewhere=${shown.name !== ""} />
    <${Strip} class="tabs" label="Parts of the run">
      ${parts.map(
        (each) => html`<a
          href=${href(["runs", id, ...(each.name ? [each.name] : [])], { held: query.get("held") })}
          aria-current=${each === shown ? "page" : undefined}
        >${each.title}</a>`,
      )}
    <//>
    <${shown.part} data=${data} run=${run} query=${query} baseline=${baseline} />`;
}

/** The parts of a run: those of its environment come before its log. @type {Map<string, Part[]>} */
const _OF_ENVIRONMENTS = new Map();

/** @param {string} environment */
function partsOf(environment) {
  const known = _OF_ENVIRONMENTS.get(environment);
  if (known) return known;
  const added = addedPages(environment).map((page) => ({
    name: page.name,
    title: page.title,
    part: (/** @type {PartProps} */ props) =>
      html`<${AddedPage} page=${page} data=${props.data} run=${props.run} query=${props.query} />`,
  }));
  const parts = _PARTS.toSpliced(
    _PARTS.findIndex((each) => each.name === "log"),
    0,
    ...added,
  );
  _OF_ENVIRONMENTS.set(environment, parts);
  return parts;
}

/** @param {{data: RunData, run: Run, isElsewhere: boolean}} props `isElsewhere`: not on the overview */
function Head({ data, run, isElsewhere }) {
  useRunNotice(run);
  // Nothing moves while a run waits or is paused.
  const isNews = run.status === "running" || data.connection.value === "lost";
  const connection = isNews && _CONNECTIONS[data.connection.value];
  const {
    model: { project, name },
    parent,
  } = run;
  const model = useLoaded(
    async (aborted) => (run.best_checkpoint ? get(path`models/${project}/${name}`, {}, aborted) : { checkpoints: [] }),
    [project, name, run.best_checkpoint === null],
  );
  const live = /** @type {Checkpoint[]} */ (model.data?.checkpoints ?? []).filter(
    (each) => each.run_id === run.run_id && each.promoted_as.length > 0,
  );
  return html`<div class=${isElsewhere ? "run-head elsewhere" : "run-head"}>
    <p class="crumbs"><a href=${href([])}>Runs</a> / <code>${run.run_id}</code>${
      parent &&
      html` · forked from${" "}
      <a href=${href(["runs", parent.run_id])}>${parent.run_id}</a> at step ${parent.step}`
    }${run.started_by && ` · started by ${starter(run.started_by)}`}</p>
    <div class="title-row">
      <h1><${Star} run=${run} changed=${data.reopen} />${" "}
        <span class="title-name" title=${nameOf(run, 200)}>${nameOf(run, 100)}</span>${" "}
        <${EditRun} run=${run} changed=${data.reopen} /> <${Status} status=${run.status} />
        ${connection && html`<span class=${`connection ${data.connection.value}`} role="status">${connection}</span>`}
      </h1>
      <${RunActions} data=${data} run=${run} promoted=${model.reload} />
    </div>
    ${
      live.length > 0 &&
      html`<p class="live">${live.map(
        ({ step, promoted_as: names }) =>
          html`<span key=${step}><a href=${href(["models"])}>${label(names.join(", "), 120)}</a>${" "}
            means step ${step} of this run. </span>`,
      )}</p>`
    }
    ${
      (run.tags.length > 0 || run.notes) &&
      html`<p class="said"><${Tags} tags=${run.tags} /> <${Text} value=${run.notes} limit=${400} /></p>`
    }
    <${Verdict} verdict=${run.verdict} />
    <${Notices} data=${data} run=${run} />
  </div>`;
}
