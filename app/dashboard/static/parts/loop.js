// What a run is doing, in one line: the phases of its loop with the current one marked, and how far it is.

import { useRef } from "../vendor/hooks.js";
import { counted, duration, percent, whole } from "../format.js";
import { html } from "./html.js";
import { Progress } from "./status.js";
import { label } from "./text.js";

/** @typedef {import("../api_types").RunOut} Run */

/** @param {{run: Run, remaining: string}} props `remaining` says how long the run will still take, if that is known */
export function Loop({ run, remaining }) {
  const { progress } = run;
  const now = phaseOf(run);
  const left = usePhaseLeft(run);
  return html`<section class="loop" aria-label="How this run learns">
    <ol>${phasesOf(run).map(
      ({ phase, title, text }, index) => html`<li key=${phase} class=${phase === now ? "now" : ""}
        aria-current=${phase === now ? "step" : undefined} title=${text}>
        ${index > 0 && html`<span class="step-number" aria-hidden="true">${index}</span>`}${title}
        ${
          phase === now &&
          progress.total !== null &&
          html` <span class="muted">${whole(progress.done)} of ${whole(progress.total)}</span>`
        }
      </li>`,
    )}</ol>
    <div class="loop-whole">${
      now === "baseline" && progress.total
        ? html`<${Progress} done=${progress.done} total=${progress.total} label="Baseline done" />
        <span class="muted">${percent((progress.done ?? 0) / progress.total)} of the baseline${
          left !== undefined && `, about ${duration(left)} left`
        }</span>`
        : html`<${Progress} done=${progress.iterations_done}
          total=${progress.iterations_total} label="Iterations done" />
        <span class="muted">${progress.iterations_done} of${" "}
          ${counted(progress.iterations_total, "iteration")}${remaining && `, ${remaining}`}</span>`
    }
    </div>
  </section>`;
}

/** Shortest time that says how fast a phase is. */
const _PACE_MS = 2000;

/**
 * About how many seconds the current phase still takes, by its pace since this page first saw it: before that, the run
 * may have waited or been taken over. Undefined while that is not known.
 * @param {Run} run
 */
function usePhaseLeft({ status, progress: { iteration, phase, done, total } }) {
  const first = useRef({ phase: "", done: 0, at: 0 });
  if (status !== "running" || done === null || total === null) return undefined;
  const [name, now] = [`${iteration} ${phase}`, Date.now()];
  if (first.current.phase !== name || done < first.current.done) first.current = { phase: name, done, at: now };
  const [made, took] = [done - first.current.done, now - first.current.at];
  return made > 0 && took >= _PACE_MS ? ((total - done) * took) / made / 1000 : undefined;
}

/** The phase that the run is in; the baseline evaluation is one of its own. @param {Run} run */
function phaseOf({ status, progress }) {
  if (status !== "running") return null;
  if (progress.iteration === 0) return "baseline";
  return progress.phase === "reflect" ? "evaluate" : progress.phase;
}

/** @param {Run} run */
function phasesOf(run) {
  const { groups_per_iteration: groups, rollouts_per_group: rollouts, evaluation, pipeline } = run.request;
  const ahead = pipeline?.max_staleness ?? 0; // not stored by earlier versions
  const heldOut = `${counted(evaluation.scenarios, "scenario")} that the agent never trains on`;
  return [
    {
      phase: "baseline",
      title: "Baseline",
      text: `The untrained model is evaluated on ${heldOut}.`,
    },
    {
      phase: "rollout",
      title: "Roll out",
      text:
        `The agent attempts ${counted(groups, "scenario")}, each ${counted(rollouts, "time")}: ` +
        `${counted(groups * rollouts, "rollout")}.` +
        (ahead ? ` They begin up to ${counted(ahead, "iteration")} ahead.` : ""),
    },
    {
      phase: "judge",
      title: "Judge",
      text:
        `The judge “${label(run.judge, 40)}” scores every rollout. ` +
        "Those of one scenario are compared with each other.",
    },
    {
      phase: "train",
      title: "Train",
      text: "What went better than its group’s average becomes more likely, what went worse less likely.",
    },
    {
      phase: "evaluate",
      title: "Evaluate",
      text: `Every ${evaluation.every === 1 ? "iteration" : `${evaluation.every} iterations`}, on ${heldOut}.`,
    },
  ];
}
