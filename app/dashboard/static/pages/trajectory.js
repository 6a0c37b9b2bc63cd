// One trajectory: what happened, the judge's verdict, and a comparison with the others of its group.

import { useRef, useState } from "../vendor/hooks.js";
import { all, get, path } from "../api.js";
import { counted, duration, moment, number, whole } from "../format.js";
import { Conversation } from "../parts/conversation.js";
import { Expected, WhyNoSuccess } from "../parts/expected.js";
import { html } from "../parts/html.js";
import { RolloutOpinions } from "../parts/opinions.js";
import { PromptLink } from "../parts/prompt.js";
import { Parts, Signed } from "../parts/reward.js";
import { Loaded, useLoaded } from "../parts/states.js";
import { JsonText, label, Text } from "../parts/text.js";
import { TokensLegend } from "../parts/tokens.js";
import { Unfold } from "../parts/unfold.js";
import { href } from "../router.js";
import { may } from "../session.js";
import { taskOf } from "./trajectories.js";
import { DecisiveTurn, useWhatIfs } from "./turn_values.js";
import { turnAt, WhatIfForm } from "./what_if_form.js";

/** @typedef {import("../api_types").TrajectoryOut} Trajectory */
/** @typedef {import("../api_types").TrajectoryBrief} Brief */
/** @typedef {import("../api_types").SampledTurn} Turn */

/**
 * @param {{id: string, runId?: string, whatIf?: string}} props `whatIf`: address of the what-if that it is a
 *   continuation of
 */
export function TrajectoryPage({ id, runId, whatIf }) {
  const state = useLoaded((aborted) => load(id, aborted), [id]);
  return html`<${Loaded} state=${state} rows=${8}>
    ${(/** @type {Awaited<ReturnType<typeof load>>} */ found) =>
      html`<${Whole} ...${found} runId=${runId} whatIf=${whatIf} />`}
  <//>`;
}

/** @param {string} id @param {AbortSignal} aborted */
async function load(id, aborted) {
  const [trajectory, sampled] = await Promise.all([
    get(path`trajectories/${id}`, {}, aborted),
    get(path`trajectories/${id}/tokens`, {}, aborted),
  ]);
  return { trajectory: /** @type {Trajectory} */ (trajectory), turns: /** @type {Turn[]} */ (sampled.turns) };
}

/** @param {{trajectory: Trajectory, turns: Turn[], runId?: string, whatIf?: string}} props */
function Whole({ trajectory, turns, runId, whatIf }) {
  const [showsTokens, setShowsTokens] = useState(false);
  const whatIfs = useWhatIfs(trajectory.id);
  const decisive = whatIfs.data?.values.decisive?.turn;
  const run = runId ?? trajectory.run_id;
  return html`
    <p class="crumbs">${whatIf && html`<a href=${whatIf}>What if</a> / `}${
      run && html`<a href=${href(["runs", run])}>Run</a> / <a href=${backTo(run, trajectory)}>Trajectories</a> / `
    }<code>${label(trajectory.id)}</code></p>
    <h1><${Text} value=${taskOf(trajectory)} limit=${300} /></h1>
    ${run && html`<${Neighbours} runId=${run} trajectory=${trajectory} />`}
    <div class="trajectory">
      <section class="card" aria-label="Conversation">
        <div class="title-row"><h2>What happened</h2>
          ${
            turns.length > 0 &&
            html`<button aria-pressed=${showsTokens}
              onClick=${() => setShowsTokens(!showsTokens)}>Colour tokens by likelihood</button>`
          }</div>
        ${showsTokens && html`<${TokensLegend} />`}
        <${Conversation} messages=${trajectory.messages} turns=${showsTokens ? turns : undefined}
          atReply=${(/** @type {number} */ place) =>
            html`<${AtReply} trajectory=${trajectory} place=${place} decisive=${decisive} />`} />
        ${trajectory.additional_histories.map(
          (each, index) =>
            html`<details><summary>Further conversation ${index + 1}</summary>
              <${Conversation} messages=${each.messages} /></details>`,
        )}
        ${
          trajectory.error &&
          html`<section class="notice bad"><h3>Why it failed</h3>
            <${Text} as="p" value=${trajectory.error} limit=${1000} /></section>`
        }
      </section>
      <div class="trajectory-side"><${Verdict} trajectory=${trajectory} />
        ${
          whatIfs.data &&
          trajectory.turns > 0 &&
          html`<${DecisiveTurn} id=${trajectory.id} known=${whatIfs.data} reload=${whatIfs.reload} />`
        }
        <${Details} trajectory=${trajectory} /></div>
    </div>`;
}

/**
 * At a reply of the agent: the way to continue from there.
 * @param {{trajectory: Trajectory, place: number, decisive?: number}} props
 */
function AtReply({ trajectory, place, decisive }) {
  const [isOpen, setOpen] = useState(false);
  const button = useRef(/** @type {HTMLButtonElement | null} */ (null));
  const turn = turnAt(trajectory, place);
  if (turn < 1) return null;
  const close = () => (setOpen(false), button.current?.focus());
  return html`<div class="at-reply">${turn === decisive && html`<span class="status warn">decisive</span>`}
      <button ref=${button} class="quiet" title="Continue from here" aria-expanded=${isOpen}
        onClick=${() => setOpen(!isOpen)}>What if <span class="unseen">at turn ${turn}</span></button></div>
    ${isOpen && html`<${WhatIfForm} trajectory=${trajectory} place=${place} close=${close} />`}`;
}

/** @param {string} run @param {Trajectory} trajectory */
const backTo = (run, { kind, iteration }) => href(["runs", run, "trajectories"], { kind, iteration });

/** The trajectories of its group, ordered by reward. @param {{runId: string, trajectory: Trajectory}} props */
function Neighbours({ runId, trajectory }) {
  const { iteration, kind, mode, scenario_id: scenario, split, step } = trajectory;
  const query = { iteration, kind, mode, split, scenario_id: scenario };
  const state = useLoaded(
    (aborted) => all(path`runs/${runId}/trajectories`, query, { aborted, most: 400 }),
    [trajectory.id],
  );
  const others = /** @type {Brief[]} */ (state.data ?? []).sort(
    (one, other) => (other.reward ?? -Infinity) - (one.reward ?? -Infinity),
  );
  const place = others.findIndex((each) => each.id === trajectory.id);
  const link = (/** @type {Brief | undefined} */ each, /** @type {string} */ text, /** @type {string} */ rel) =>
    each
      ? html`<a class="button" rel=${rel} href=${href(["runs", runId, "trajectories", each.id])}>${text}</a>`
      : html`<button disabled>${text}</button>`;
  return html`<nav class="actions" aria-label="Other rollouts of this scenario">
    ${link(others[place - 1], "← Better reward", "prev")}
    ${link(place < 0 ? undefined : others[place + 1], "Worse reward →", "next")}
    <span class="muted">${place >= 0 && `${place + 1} of ${others.length} by reward`}</span>
    ${
      kind === "train" &&
      html`<a href=${href(["runs", runId, "group"], { iteration, scenario })}>The group side by side</a>`
    }
    ${
      kind === "evaluation" &&
      html`<a href=${href(["runs", runId, "held-out"], {
        held: split === "test" ? "test" : mode,
        scenario,
        step,
      })}>Through the checkpoints</a>`
    }
  </nav>`;
}

/** @param {{trajectory: Trajectory}} props */
function Verdict({ trajectory }) {
  return html`<section class="card"><h2>Verdict</h2>
    <${Expected} scenario=${trajectory.scenario} />
    <dl class="pairs">
      <div><dt>Success</dt><dd>${
        trajectory.success === null
          ? "not known"
          : trajectory.success
            ? html`<strong class="good">✓ yes</strong>`
            : html`✗ no<${WhyNoSuccess} of=${trajectory} />`
      }</dd></div>
      <div><dt>Reward</dt><dd><strong>${number(trajectory.reward)}</strong></dd></div>
      <div><dt>Advantage</dt><dd><${Signed} value=${trajectory.advantage} /></dd></div>
      <div><dt>Score</dt><dd>${number(trajectory.score)}</dd></div>
    </dl>
    ${
      trajectory.score_explanation &&
      html`<div><h3>Why the judge gave this score</h3>
        <${Text} as="p" value=${trajectory.score_explanation} limit=${3000} /></div>`
    }
    <${Parts} parts=${trajectory.score_parts} caption="What the score is made of" />
    <${Parts} parts=${trajectory.reward_parts} caption="What the reward is made of" />
    ${
      trajectory.run_id &&
      trajectory.score !== null &&
      html`<${Unfold} key=${trajectory.id} title="What the judge model is asked">
        ${() => html`<${Asked} id=${trajectory.id} />`}<//>`
    }
    ${
      trajectory.run_id &&
      may("write") &&
      trajectory.score !== null &&
      html`<p><a href=${judgeAgain(trajectory)}>Judge again</a>${" "}
        <span class="muted">with the others of its iteration</span></p>`
    }
    <h3>What people think of it</h3><${RolloutOpinions} runId=${trajectory.run_id} id=${trajectory.id} />
  </section>`;
}

/** What a judge that is a language model is asked. @param {{id: string}} props */
function Asked({ id }) {
  const state = useLoaded((aborted) => get(path`trajectories/${id}/judge-questions`, {}, aborted), [id]);
  return html`<${Loaded} state=${state} rows=${2}>${(
    /** @type {import("../api_types").JudgeQuestions} */ { questions },
  ) =>
    questions.length === 0
      ? html`<p class="muted">Nothing: its judge needs no language model here.</p>`
      : questions.map(
          (each) => html`<p class="muted small">${label(each.judge, 60)} asks ${label(each.model, 100)}:</p>
          ${each.messages.map(
            (message) => html`<${Text} as="pre" class="code" value=${message.content} limit=${3000} />`,
          )}`,
        )}<//>`;
}

/** @param {Trajectory} trajectory */
const judgeAgain = ({ run_id: run, iteration, kind }) =>
  href(["runs", /** @type {string} */ (run), "rejudgings"], {
    kinds: kind === "train" ? "training" : "held-out",
    first: iteration,
    last: iteration,
  });

/** What the rollout was made for. @param {Trajectory} trajectory */
function purpose({ kind, split, mode }) {
  const sampling = mode === "greedy" ? "the likeliest tokens" : "sampled tokens";
  if (kind === "train") return `training, with ${sampling}`;
  if (kind === "evaluation" && split === "train") return `an evaluation of training scenarios, with ${sampling}`;
  if (kind === "evaluation") return `held-out evaluation on the ${split} split, with ${sampling}`;
  if (kind === "what_if") return `a continuation of another rollout, with ${sampling}`;
  return kind === "showcase" ? "a sample email after an iteration" : "an asked question";
}

/** @param {{trajectory: Trajectory}} props */
function Details({ trajectory }) {
  return html`<section class="card"><h2>Details</h2>
    <dl class="pairs">
      <div><dt>Model</dt><dd><${Text} value=${trajectory.model} limit=${200} />
          ${trajectory.step !== null && ` @${trajectory.step}`}</dd></div>
      ${
        trajectory.prompt_sha256 &&
        html`<div><dt>Prompt</dt>
          <dd><${PromptLink} prompt=${{ sha256: trajectory.prompt_sha256, name: null, version: null }} /></dd></div>`
      }
      <div><dt>Purpose</dt><dd>${purpose(trajectory)}</dd></div>
      ${
        trajectory.copied_from &&
        html`<div><dt>A copy of</dt><dd>
          <a href=${href(["trajectories", trajectory.copied_from])}>a rollout of an earlier evaluation</a></dd></div>`
      }
      <div><dt>Iteration</dt><dd>${trajectory.iteration ?? "–"}</dd></div>
      <div><dt>Length</dt>
        <dd>${counted(trajectory.turns, "turn")}, ${counted(trajectory.completion_tokens, "token")}</dd></div>
      <div><dt>Took</dt><dd>${duration(trajectory.seconds)}</dd></div>
      <div><dt>Started</dt><dd>${moment(trajectory.started_at)}</dd></div>
      <div><dt>Scenario</dt><dd><${Text} value=${trajectory.scenario_id} limit=${200} /></dd></div>
    </dl>
    <details><summary>What only the judge sees</summary>
      <${JsonText} value=${trajectory.scenario.reference ?? {}} /></details>
    <details><summary>What the environment observed</summary><${JsonText} value=${trajectory.outcome} /></details>
    <details><summary>${counted(trajectory.tools.length, "tool")} offered</summary>
      <${JsonText} value=${trajectory.tools} limit=${6000} /></details>
  </section>`;
}
