// Plays one held-out scenario: what the agent answered at each checkpoint, beside the expected answer.

import { useEffect, useRef, useState } from "../vendor/hooks.js";
import { all, path, post } from "../api.js";
import { counted, ending } from "../format.js";
import { Action } from "../parts/action.js";
import { WhyNoSuccess } from "../parts/expected.js";
import { html } from "../parts/html.js";
import { SideBySide } from "../parts/side_by_side.js";
import { Empty, Loaded, useLoaded } from "../parts/states.js";
import { Sideways } from "../parts/strip.js";
import { label, Text, visible } from "../parts/text.js";
import { TokenChanges } from "../parts/token_changes.js";
import { href } from "../router.js";
import { may } from "../session.js";

/** @typedef {import("../api_types").FilmOut} Film */
/** @typedef {Film["checkpoints"][number]} Checkpoint */
/** @typedef {Film["scenarios"][number]} Scenario */
/** @typedef {import("../api_types").RunOut} Run */
/** @typedef {import("../api_types").TrajectoryBrief} Brief */
/** @typedef {import("../api_types").Likelihood} Likelihood */
/** @typedef {{checkpoint: Checkpoint, made: Brief[]}} Frame */

const _FRAME_MS = 1200;
const _LONGEST_ANSWER = 160;

/**
 * @param {{run: Run, kind: import("../parts/verdict.js").Kind, film: Film, scenario: Scenario, title: string,
 *   at: number, go: (at: number) => void}} props
 *   `at` is the index of the checkpoint that is shown, and `go` shows another one
 */
export function Player({ run, kind, film, scenario, title, at, go }) {
  const query = {
    kind: "evaluation",
    split: kind.split,
    mode: kind.mode,
    scenario_id: scenario.scenario_id,
    iteration: film.checkpoints.map((each) => each.iteration),
  };
  const state = useLoaded(
    (aborted) => all(path`runs/${run.run_id}/trajectories`, query, { aborted, most: 1000 }),
    [run.run_id, kind.name, scenario.scenario_id, film.checkpoints.length],
  );
  return html`<section class="card player" aria-label="Answers through the checkpoints">
    <div class="player-head"><h2><${Text} value=${title} limit=${300} /></h2>
      ${
        scenario.expected !== null &&
        html`<p class="expected">Expected: <strong><${Text} value=${scenario.expected} limit=${300} /></strong></p>`
      }</div>
    <${Loaded} state=${state} rows=${4}>${(/** @type {Brief[]} */ found) =>
      html`<${Frames} run=${run} frames=${framesOf(film, found)} at=${at} go=${go} />`}<//>
  </section>`;
}

/** @param {Film} film @param {Brief[]} found @returns {Frame[]} */
function framesOf({ checkpoints }, found) {
  const by = Map.groupBy(found, (each) => `${each.iteration}/${each.step}`);
  return checkpoints.map((checkpoint) => ({
    checkpoint,
    made: by.get(`${checkpoint.iteration}/${checkpoint.step}`) ?? [],
  }));
}

/** @param {{run: Run, frames: Frame[], at: number, go: (at: number) => void}} props */
function Frames({ run, frames, at, go }) {
  const [isPlaying, setPlaying] = useState(false);
  const last = frames.length - 1;
  useEffect(() => {
    if (!isPlaying) return undefined;
    if (at >= last) return setPlaying(false);
    const timer = setTimeout(() => go(at + 1), _FRAME_MS);
    return () => clearTimeout(timer);
  }, [isPlaying, at]);
  const play = () => {
    if (at >= last) go(0);
    setPlaying(!isPlaying);
  };
  const frame = frames[Math.min(at, last)];
  const strip = useRef(/** @type {HTMLOListElement | null} */ (null));
  useEffect(() => {
    const [list, now] = [strip.current?.parentElement, strip.current?.children[at]];
    if (!list || !now) return;
    const [whole, part] = [list.getBoundingClientRect(), now.getBoundingClientRect()];
    list.scrollLeft += part.left + part.width / 2 - whole.left - whole.width / 2;
  }, [at, frames.length]);
  return html`
    ${
      last > 0 &&
      html`<div class="actions"><button onClick=${play}>${isPlaying ? "❚❚ Pause" : "▶ Play"}</button>
      <button aria-label="Previous checkpoint" disabled=${at === 0} onClick=${() => go(at - 1)}>‹</button>
      <button aria-label="Next checkpoint" disabled=${at === last} onClick=${() => go(at + 1)}>›</button></div>`
    }
    <${Sideways} label="Answers by checkpoint">
      <ol ref=${strip} class="frames">${frames.map(
        (each, index) =>
          html`<li key=${index}><${FrameButton} frame=${each} isNow=${index === at} choose=${() => go(index)} /></li>`,
      )}</ol><//>
    ${
      frame.made.length > 0
        ? html`<${Compared} run=${run} frames=${frames} frame=${frame} />`
        : html`<${Empty} title="This scenario was not evaluated at this checkpoint" />`
    }`;
}

/** @param {Checkpoint} checkpoint */
const nameOf = ({ iteration, step }) => (iteration === 0 ? "Before training" : `Step ${step}`);

/** @param {{frame: Frame, isNow: boolean, choose: () => void}} props */
function FrameButton({ frame: { checkpoint, made }, isNow, choose }) {
  const right = made.filter((each) => each.success).length;
  const [first] = made;
  const isRight = made.length > 0 && right === made.length;
  return html`<button class=${`frame ${isRight ? "right" : ""}`} aria-pressed=${isNow} onClick=${choose}>
    <span class="frame-name">${nameOf(checkpoint)}</span>
    ${
      first
        ? html`<strong>${label(answerOf(first) || ending(first) || "no answer", _LONGEST_ANSWER)}</strong>
      <span class=${first.success ? "good" : "bad-ink"}>
        ${first.success ? "✓ right" : "✗ wrong"}${" "}
        <span class="muted">${[visible(ending(first)), counted(first.turns, "turn")].filter(Boolean).join(", ")}</span>
        </span><${WhyNoSuccess} of=${first} />
      ${made.length > 1 && html`<span class="muted">${right} of ${counted(made.length, "sample")} right</span>`}`
        : html`<span class="muted">not evaluated</span>`
    }
  </button>`;
}

/** What the agent answered, where the environment says it. @param {Brief} rollout */
function answerOf({ outcome }) {
  const given = outcome?.answer ?? outcome?.email?.subject ?? outcome?.output;
  return typeof given === "string" ? given : "";
}

/**
 * The first checkpoint's rollout beside the shown one's, and what training made likelier in it.
 * @param {{run: Run, frames: Frame[], frame: Frame}} props
 */
function Compared({ run, frames, frame }) {
  const [sample, setSample] = useState(0);
  const shown = frame.made[Math.min(sample, frame.made.length - 1)];
  const first = frames.find((each) => each.made.length > 0);
  const sides = (first === frame ? [frame] : [/** @type {Frame} */ (first), frame]).map((each) => {
    const rollout = each === frame ? shown : each.made[0];
    return {
      id: rollout.id,
      title: nameOf(each.checkpoint),
      href: href(["runs", run.run_id, "trajectories", rollout.id]),
    };
  });
  return html`
    ${
      frame.made.length > 1 &&
      html`<div class="switch" role="group" aria-label="Samples">${frame.made.map(
        (each, index) =>
          html`<button key=${each.id} aria-pressed=${each === shown}
            onClick=${() => setSample(index)}>Sample ${index + 1} ${each.success ? "✓" : "✗"}</button>`,
      )}</div>`
    }
    <${SideBySide} sides=${sides} />
    <${Likelihoods} key=${shown.id} rollout=${shown} checkpoints=${frames.map((each) => each.checkpoint)} />`;
}

/**
 * How training changed the chance of each token of a rollout.
 * @param {{rollout: Brief, checkpoints: Checkpoint[]}} props
 */
function Likelihoods({ rollout, checkpoints }) {
  const kept = checkpoints.filter((each) => each.is_kept);
  const [between, setBetween] = useState([kept[0]?.step, kept.at(-1)?.step]);
  const [turn, setTurn] = useState("");
  const [scored, setScored] = useState(/** @type {Likelihood | undefined} */ (undefined));
  if (kept.length < 2 || !may("write")) return null;
  async function score() {
    setScored(
      await post(path`trajectories/${rollout.id}/likelihood`, {
        checkpoints: between,
        ...(turn && { turn: Number(turn) }),
      }),
    );
  }
  const step = (
    /** @type {number} */ side,
    /** @type {string} */ name,
  ) => html`<label class="field"><span>${name}</span>
    <select onChange=${(/** @type {any} */ event) =>
      setBetween(between.map((each, index) => (index === side ? Number(event.target.value) : each)))}>
      ${kept.map(
        (each) => html`<option value=${each.step} selected=${each.step === between[side]}>${nameOf(each)}</option>`,
      )}
    </select></label>`;
  return html`<section class="likelihoods" aria-label="What training made likelier"><h3>What training made likelier</h3>
    <p class="muted small">Two checkpoints score the tokens of this rollout, each given everything before it.</p>
    <div class="filters">${step(0, "Between")}${step(1, "and")}
      <label class="field"><span>Turns</span>
        <select onChange=${(/** @type {any} */ event) => setTurn(event.target.value)}>
        <option value="">all</option>${Array.from(
          { length: rollout.turns },
          (_, index) => html`<option value=${index + 1}>${index + 1}</option>`,
        )}
      </select></label>
      <${Action} label="Score the tokens" act=${score} /></div>
    ${scored && html`<${TokenChanges} turns=${scored.turns} />`}
  </section>`;
}
