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

/**
 * Titles and pages by the first part of the address: of all, and of the one whose id follows.
 * @type {Record<string, {title: string, All: any, one?: string, One?: any}>}
 */
const _PAGES = {
  start: { title: "Start a run", All: Start },
  trajectories: { title: "Not found", All: NotFound, one: "Trajectory", One: TrajectoryPage },
  compare: { title: "Compare runs", All: Compare },
  ask: { title: "Ask", All: Ask },
  models: { title: "Models", All: Models },
  releases: { title: "Models", All: Models, one: "Release", One: ReleasePage },
  evaluations: { title: "Evaluations", All: Evaluations, one: "Evaluation", One: EvaluationPage },
  improvements: { title: "Improvements", All: Improvements, one: "Improvement", One: ImprovementPage },
  schedules: { title: "Schedules", All: Schedules, one: "Schedule", One: SchedulePage },
  sessions: { title: "Sessions", All: Sessions, one: "Session", One: SessionPage },
  webhooks: { title: "Webhooks", All: Webhooks, one: "Webhook", One: WebhookPage },
  keys: { title: "Keys", All: Keys },
  settings: { title: "Settings", All: SettingsPage },
  prompts: { title: "Prompts", All: Prompts, one: "Prompt", One: PromptPage },
  data: { title: "Data", All: Data },
};
/** Kinds whose titles have the id. */
const _NUMBERED = ["trajectories", "evaluations"];

/** @param {import("../router.js").Route} route @returns {Shown} */
export function pageOf({ names, query }) {
  const [place = "", id, part = "", inner, within] = names;
  if (place === "runs") return ofRun(id, part, inner, query);
  if (place === "trajectories" && part === "what-if" && inner) return whatIfPage(id, inner, within, query);
  if (place === "models" && part)
    return shown(`${id}/${part}`, () => html`<${ModelPage} project=${id} name=${part} />`, `models/${id}/${part}`);
  if (place === "data" && part)
    return shown("Data", () => html`<${DocumentPage} kind=${id} sha256=${part} />`, `data/${part}`);
  const { title, All, one, One } = _PAGES[place] ?? { title: "Not found", All: NotFound };
  if (!id || !One) return shown(title, () => html`<${All} query=${query} />`, place);
  const named = _NUMBERED.includes(place) ? `${one} ${id}` : String(one);
  return shown(named, () => html`<${One} id=${id} query=${query} />`, `${place}/${id}`);
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
