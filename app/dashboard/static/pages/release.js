// A release: what it is doing and lacks, its ramp, both arms, its guardrails, and what a person can do.

import { all, get, path, post } from "../api.js";
import { counted, finePercent, moment, number } from "../format.js";
import { Action } from "../parts/action.js";
import { html } from "../parts/html.js";
import { isLive, ReleaseState } from "../parts/release.js";
import { Loaded, useLoaded, useReload } from "../parts/states.js";
import { JsonText, label, served, starter, Text } from "../parts/text.js";
import { Said } from "../parts/verdict.js";
import { href } from "../router.js";
import { may } from "../session.js";
import { Arms } from "./release_arms.js";
import { inWords, ReleaseEvents } from "./release_events.js";
import { Guardrails } from "./release_guardrails.js";

/** @typedef {import("../api_types").ReleaseOut} Release */
/** @typedef {import("../api_types").ReleaseEventOut} Event */

/** @param {{id: string}} props */
export function ReleasePage({ id }) {
  const state = useLoaded((aborted) => load(id, aborted), [id]);
  useReload(state, state.data !== undefined && !isOver(state.data.release));
  return html`<p class="crumbs"><a href=${href(["models"])}>Models</a> / <code>${label(id)}</code></p>
    <${Loaded} state=${state} rows=${6}>${(/** @type {Awaited<ReturnType<typeof load>>} */ found) =>
      html`<${Whole} ...${found} reload=${state.reload} />`}<//>`;
}

/** @param {string} id @param {AbortSignal} aborted */
async function load(id, aborted) {
  const [release, events] = await Promise.all([
    get(path`releases/${id}`, {}, aborted),
    all(path`releases/${id}/events`, {}, { aborted }),
  ]);
  return { release: /** @type {Release} */ (release), events: /** @type {Event[]} */ (events) };
}

/** @param {Release} release */
const isOver = (release) => !isLive(release) && (release.state !== "promoted" || release.confirmation.length === 0);

/** @param {{release: Release, events: Event[], reload: () => void}} props */
function Whole({ release, events, reload }) {
  return html`<div class="title-row">
      <h1>${served(release.candidate, release.candidate_prompt)} for ${label(release.name, 120)}${" "}
        <${ReleaseState} release=${release} /></h1>
      ${may("write") && html`<${Actions} release=${release} reload=${reload} />`}</div>
    <p class="muted">Started by ${starter(release.started_by)}</p>
    <${Headline} release=${release} events=${events} />
    <${Ramp} release=${release} events=${events} />
    <${Arms} release=${release} />
    <${Guardrails} release=${release} />
    <div class="columns">
      <section class="card"><h2>Quality</h2><${Text} as="p" value=${release.quality} limit=${900} /></section>
      <${Forecast} release=${release} />
    </div>
    <${ReleaseEvents} release=${release} events=${events} />
    <details class="card"><summary><h2>Rules</h2></summary><${JsonText} value=${release.rules} /></details>`;
}

const _TONES = /** @type {Record<string, string>} */ ({
  held: "warn",
  promoted: "good",
  confirmed: "good",
  rolled_back: "bad",
});

/**
 * What is missing for the next step, or why it is held or has ended.
 * @param {{release: Release, events: Event[]}} props
 */
function Headline({ release, events }) {
  const { state, summary, next } = release;
  const last = events.at(-1);
  if (state === "trial" || state === "running") return html`<${Said} text=${next ?? ""} />`;
  return html`<${Said} text=${summary} tone=${_TONES[state]} />
    <${Text} as="p" value=${next ?? (last && inWords(last, release))} limit=${600} />`;
}

/** @param {{release: Release, reload: () => void}} props */
function Actions({ release, reload }) {
  const { release_id: id, state, candidate_prompt: prompt, stable_prompt: before, name } = release;
  const [candidate, stable] = [served(release.candidate, prompt), served(release.stable, before)];
  /** @param {string} verb @param {unknown} [body] */
  const move = async (verb, body) => (await post(`${path`releases/${id}`}/${verb}`, body), reload());
  return html`<div class="actions">
    ${state === "running" && html`<${Action} label="Hold" act=${() => move("hold")} />`}
    ${state === "held" && html`<${Action} label="Resume" kind="primary" act=${() => move("resume")} />`}
    ${
      ["running", "held"].includes(state) &&
      html`<${Action} label="Promote" act=${() => move("promote")}
        confirm=${
          `Give ${label(name, 120)} to ${candidate}? Every user gets it from the next request on, ` +
          "and the release ends. The promotion will say that outcomes did not decide it."
        } />`
    }
    ${
      isLive(release) &&
      html`<${Action} label="Roll back" kind="danger"
        act=${(/** @type {boolean} */ endsSessions) => move("rollback", { sessions: endsSessions ? "end" : "keep" })}
        confirm=${
          `Take the candidate back for good? Every user gets ${stable} from the next request on. ` +
          "Open sessions keep the candidate to their end, unless they are ended."
        }
        option=${state === "trial" ? undefined : "End open sessions with the candidate"} />`
    }
  </div>`;
}

/** Its stages as steps, with when each began or is expected. @param {{release: Release, events: Event[]}} props */
function Ramp({ release, events }) {
  const { state, stage, share, rules, evaluation_id: trial } = release;
  const now = state === "trial" ? "trial" : isLive(release) ? `stage ${stage}` : "end";
  const reached = release.started_at ? stage + 1 : 0;
  const stages = isLive(release) ? rules.ramp : rules.ramp.slice(0, reached);
  const steps = [
    ...(rules.skip_trial
      ? []
      : [{ key: "trial", title: trial ? html`<a href=${href(["evaluations", trial])}>Trial</a>` : "Trial", note: "" }]),
    ...stages.map((each, index) => ({
      key: `stage ${index}`,
      title: finePercent(each),
      note: begun(release, events, index),
    })),
    {
      key: "end",
      title: _ENDS[state] ?? (rules.at_end === "promote" ? "Promotion" : "Return to stable"),
      note: ending(release),
    },
  ];
  return html`<section class="loop" aria-label="Ramp">
    <ol>${steps.map(
      ({ key, title, note }) =>
        html`<li key=${key} class=${key === now ? "now" : ""} aria-current=${key === now ? "step" : undefined}>
          ${title}${note && html` <span class="muted">${note}</span>`}</li>`,
    )}</ol>
    <p class="muted">${share > 0 && `${finePercent(share)} of the ${release.unit}s meet the candidate now.`}</p>
  </section>`;
}

const _ENDS = /** @type {Record<string, string>} */ ({
  promoted: "Promoted",
  confirmed: "Confirmed",
  rolled_back: "Rolled back",
  overtaken: "Overtaken",
});

/**
 * When a stage began, or will begin if the candidate is like the stable checkpoint.
 * @param {Release} release @param {Event[]} events @param {number} stage
 */
function begun(release, events, stage) {
  const first = events.find(
    ({ type, data }) => data.stage === stage && ["release.started", "release.stage_changed"].includes(type),
  );
  if (first) return `since ${moment(first.occurred_at)}`;
  const days = release.forecast.days[stage];
  return isLive(release) && days != null ? `expected on day ${number(days, 0)}` : "";
}

/** @param {Release} release */
function ending({ ended_at: ended, started_at: started, rules }) {
  if (ended) return moment(ended);
  const end = started && new Date(Date.parse(started) + rules.max_days * 86_400_000).toISOString();
  return end ? `on ${moment(end)}` : `after ${counted(Math.round(rules.max_days), "day")}`;
}

/** @param {{release: Release}} props */
function Forecast({ release: { forecast } }) {
  return html`<section class="card"><h2>Forecast at the start</h2>
    <${Text} as="p" value=${forecast.note} limit=${600} /></section>`;
}
