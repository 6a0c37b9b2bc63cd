// Maps URLs to the pages of the second script: all but the list of runs and a run.

import { html } from "../parts/html.js";
import { Empty } from "../parts/states.js";
import { href } from "../router.js";
import { Ask } from "./ask.js";
import { Compare } from "./compare.js";
import { Data, DocumentPage } from "./data.js";
import { EvaluationPage, Evaluations } from "./evaluations.js";
import { GroupPage } from "./group.js";
import { ImprovementPage, Improvements } from "./improvements.js";
import { Keys } from "./keys.js";
import { ModelPage, Models } from "./models.js";
import { PromptPage, Prompts } from "./prompts.js";
import { RejudgingPage } from "./rejudging.js";
import { ReleasePage } from "./release.js";
import { SchedulePage } from "./schedule.js";
import { Schedules } from "./schedules.js";
import { SessionPage, Sessions } from "./sessions.js";
import { SettingsPage } from "./settings.js";
import { Start } from "./start.js";
import { TrajectoryPage } from "./trajectory.js";
import { WebhookPage, Webhooks } from "./webhooks.js";
import { WhatIfPage } from "./what_if.js";

/** @typedef {import("./index.js").Shown} Shown */

/** @param {import("../router.js").Route} route @returns {Shown} */
export function pageOf({ names, query }) {
  const [place = "", id, part = "", inner, within] = names;
  switch (place) {
    case "start":
      return shown("Start a run", () => html`<${Start} query=${query} />`, "start");
    case "runs":
      return ofRun(id, part, inner, query);
    case "trajectories":
      if (id && part === "what-if" && inner) return whatIfPage(id, inner, within, query);
      return shown(`Trajectory ${id}`, () => html`<${TrajectoryPage} id=${id} />`, `trajectories/${id}`);
    case "compare":
      return shown("Compare runs", () => html`<${Compare} query=${query} />`, "compare");
    case "ask":
      return shown("Ask", () => html`<${Ask} query=${query} />`, "ask");
    case "models":
      if (id && part)
        return shown(`${id}/${part}`, () => html`<${ModelPage} project=${id} name=${part} />`, `models/${id}/${part}`);
      return shown("Models", () => html`<${Models} />`, "models");
    case "releases":
      return id
        ? shown("Release", () => html`<${ReleasePage} id=${id} />`, `releases/${id}`)
        : shown("Models", () => html`<${Models} />`, "models");
    case "evaluations":
      if (id) return shown(`Evaluation ${id}`, () => html`<${EvaluationPage} id=${id} />`, `evaluations/${id}`);
      return shown("Evaluations", () => html`<${Evaluations} />`, "evaluations");
    case "improvements":
      if (id) return shown("Improvement", () => html`<${ImprovementPage} id=${id} />`, `improvements/${id}`);
      return shown("Improvements", () => html`<${Improvements} />`, "improvements");
    case "schedules":
      if (id) return shown("Schedule", () => html`<${SchedulePage} id=${id} />`, `schedules/${id}`);
      return shown("Schedules", () => html`<${Schedules} />`, "schedules");
    case "sessions":
      if (id) return shown("Session", () => html`<${SessionPage} id=${id} />`, `sessions/${id}`);
      return shown("Sessions", () => html`<${Sessions} query=${query} />`, "sessions");
    case "webhooks":
      if (id) return shown("Webhook", () => html`<${WebhookPage} id=${id} query=${query} />`, `webhooks/${id}`);
      return shown("Webhooks", () => html`<${Webhooks} />`, "webhooks");
    case "keys":
      return shown("Keys", () => html`<${Keys} />`, "keys");
    case "settings":
      return shown("Settings", () => html`<${SettingsPage} />`, "settings");
    case "prompts":
      if (id) return shown("Prompt", () => html`<${PromptPage} sha256=${id} query=${query} />`, `prompts/${id}`);
      return shown("Prompts", () => html`<${Prompts} />`, "prompts");
    case "data":
      if (part) return shown("Data", () => html`<${DocumentPage} kind=${id} sha256=${part} />`, `data/${part}`);
      return shown("Data", () => html`<${Data} />`, "data");
    default:
      return shown("Not found", () => html`<${NotFound} />`, "lost");
  }
}

/** @param {string} id @param {string} part @param {string | undefined} inner @param {URLSearchParams} query */
function ofRun(id, part, inner, query) {
  if (part === "trajectories" && inner)
    return shown(
      `Trajectory ${inner}`,
      () => html`<${TrajectoryPage} id=${inner} runId=${id} />`,
      `trajectories/${inner}`,
    );
  if (part === "rejudgings" && inner)
    return shown(
      "Rejudging",
      () => html`<${RejudgingPage} runId=${id} id=${inner} query=${query} />`,
      `rejudgings/${inner}`,
    );
  return shown("Group", () => html`<${GroupPage} runId=${id} query=${query} />`, `group/${id}`);
}

/** @param {string} of @param {string} id @param {string | undefined} continuation @param {URLSearchParams} query */
function whatIfPage(of, id, continuation, query) {
  const names = ["trajectories", of, "what-if", id];
  if (continuation)
    return shown(
      `Continuation ${continuation}`,
      () => html`<${TrajectoryPage} id=${continuation} whatIf=${href(names)} />`,
      `trajectories/${continuation}`,
    );
  return shown("What if", () => html`<${WhatIfPage} of=${of} id=${id} query=${query} />`, names.join("/"));
}

/** @param {string} title @param {() => any} page @param {string} key @returns {Shown} */
const shown = (title, page, key) => ({ title, page, key });

function NotFound() {
  return html`<${Empty} title="There is no such page"><p>Go to the <a href=${href([])}>list of runs</a>.</p><//>`;
}
