// Whether a run learned: its verdict, and the held-out figures of which one kind is shown at a time.

import { counted, percent } from "../format.js";
import { html } from "./html.js";
import { visible } from "./text.js";
import { refine } from "../router.js";

/** @typedef {import("../api_types").VerdictOut} VerdictOut */
/** @typedef {import("../api_types").RunOut} Run */
/** @typedef {Run["evaluations"][number]} Evaluation */
/** @typedef {{name: string, title: string, split: string, mode: string}} Kind */

const _TONES = /** @type {Record<string, string>} */ ({
  learned: "good",
  got_worse: "bad",
  no_change_shown: "warn",
  too_early: "idle",
  demonstrations_learned: "good",
  demonstrations_not_learned: "warn",
});

/** The sentence, and the small print below it. @param {{verdict: VerdictOut}} props */
export const Verdict = ({ verdict: { state, sentence, details } }) =>
  html`<${Said} text=${`${sentence}.`} details=${details} tone=${_TONES[state]} />`;

/**
 * What was found: its first sentence, and in small print the others.
 * @param {{text: string, details?: string, tone?: string}} props
 */
export function Said({ text, details, tone = "" }) {
  const [sentence, ...others] = details === undefined ? text.split(/(?<=[.?!]) (?=[A-Z])/) : [text];
  const small = details ?? others.join(" ");
  return html`<div class=${`verdict ${tone}`}><p>${visible(sentence)}</p>
    ${small && html` <p class="small-print">${visible(small)}</p>`}</div>`;
}

const _WORDS = /** @type {Record<string, string>} */ ({
  learned: "learned",
  got_worse: "got worse",
  no_change_shown: "no change",
  too_early: "too early",
  demonstrations_learned: "demos learned",
  demonstrations_not_learned: "demos not learned",
});

/** The verdict in two words; the sentence is its title. @param {{state: VerdictOut["state"], text?: string}} props */
export const VerdictMark = ({ state, text }) =>
  html`<span class=${`verdict-mark ${_TONES[state]}`} title=${text && visible(text)}>${_WORDS[state]}</span>`;

/** The headline figure before and now. @param {{verdict: VerdictOut}} props */
export function Headline({ verdict: { on } }) {
  if (!on) return "–";
  return html`${percent(on.first.success)}${
    on.latest && html` <span aria-label="to">→</span> ${percent(on.latest.success)}`
  }`;
}

/** The kinds of held-out figures; the first one that a run has is the headline. @type {Kind[]} */
const _KINDS = [
  { name: "sampled", title: "Sampled", split: "validation", mode: "sampled" },
  { name: "greedy", title: "Greedy", split: "validation", mode: "greedy" },
  { name: "test", title: "Test", split: "test", mode: "sampled" },
];

/** The run's evaluations of a kind, in order. @param {Run} run @param {Kind} kind */
export const evaluationsOf = (run, kind) =>
  run.evaluations.filter((each) => each.split === kind.split && each.mode === kind.mode);

/** The kinds that a run was evaluated in. @param {Run} run */
export const kindsOf = (run) => _KINDS.filter((kind) => evaluationsOf(run, kind).length > 0);

/** The kind that the address names, or the headline. @param {Run} run @param {URLSearchParams} query @returns {Kind} */
export function kindOf(run, query) {
  const evaluated = kindsOf(run);
  return evaluated.find((kind) => kind.name === query.get("held")) ?? evaluated[0] ?? _KINDS[0];
}

/** What a kind's figures are of. @param {Kind} kind @param {number} scenarios */
export const described = (kind, scenarios) =>
  `${counted(scenarios, `${kind.split} scenario`)}, ${kind.mode}${kind.split === "test" ? ", best checkpoint" : ""}`;

/**
 * The later evaluation with its success on the scenarios of the baseline, if the baseline ended early.
 * @param {Evaluation} first @param {Evaluation} later @returns {Evaluation}
 */
export const onSameScenarios = (first, later) =>
  first.scenarios < later.scenarios && later.difference
    ? { ...later, scenarios: first.scenarios, success: first.success + later.difference.mean }
    : later;

/** Chooses the kind of held-out figures of a page. @param {{run: Run, query: URLSearchParams}} props */
export function HeldOutSwitch({ run, query }) {
  const shown = kindOf(run, query);
  const evaluated = kindsOf(run);
  if (evaluated.length < 2) return null;
  return html`<div class="switch" role="group" aria-label="Held-out figures">
    <span class="muted">Held-out figures:</span>
    ${evaluated.map(
      (kind) =>
        html`<button key=${kind.name} aria-pressed=${kind === shown}
          onClick=${() => refine({ held: kind.name })}>${kind.title}</button>`,
    )}
  </div>`;
}
