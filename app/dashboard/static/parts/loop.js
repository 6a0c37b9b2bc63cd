// How a run learns, in four phases with the run's figures; the current phase is marked.

import { counted, whole } from "../format.js";
import { html } from "./html.js";
import { Progress } from "./status.js";
import { label } from "./text.js";

/** @param {{run: import("../api_types").RunOut}} props */
export function Loop({ run }) {
  const { groups_per_iteration: groups, rollouts_per_group: rollouts, evaluation, pipeline } = run.request;
  const ahead = pipeline?.max_staleness ?? 0; // not stored by earlier versions
  const steps = [
    {
      phase: "rollout",
      title: "Roll out",
      text: `The agent attempts ${counted(groups, "scenario")}, each ${rollouts} times: ${whole(groups * rollouts)} rollouts.${ahead ? ` They begin up to ${counted(ahead, "iteration")} ahead.` : ""}`,
    },
    {
      phase: "judge",
      title: "Judge",
      text: `The judge “${label(run.judge, 40)}” scores every rollout. Those of one scenario are compared with each other.`,
    },
    {
      phase: "train",
      title: "Train",
      text: "What went better than its group's average becomes more likely, what went worse less likely.",
    },
    {
      phase: "evaluate",
      title: "Evaluate",
      text: `Every ${evaluation.every === 1 ? "iteration" : `${evaluation.every} iterations`}, on ${counted(evaluation.scenarios, "scenario")} that it never trains on.`,
    },
  ];
  return html`<section class="card loop" aria-label="How this run learns">
    <h2>How it learns <span class="muted">${now(run)}</span></h2>
    <ol>${steps.map((step, index) => html`<${Step} key=${step.phase} step=${step} number=${index + 1} progress=${run.progress} />`)}</ol>
    <div class="loop-whole">
      <${Progress} done=${run.progress.iterations_done} total=${run.progress.iterations_total} label="Iterations done" />
      <span class="muted">${run.progress.iterations_done} of ${run.progress.iterations_total} iterations</span>
    </div>
  </section>`;
}

/** @param {{step: {phase: string, title: string, text: string}, number: number, progress: import("../api_types").Progress}} props */
function Step({ step, number, progress }) {
  const isNow = progress.phase === step.phase || (step.phase === "evaluate" && progress.phase === "reflect");
  return html`<li class=${isNow ? "now" : ""} aria-current=${isNow ? "step" : undefined}>
    <h3><span class="step-number" aria-hidden="true">${number}</span>${step.title}</h3>
    <p>${step.text}</p>
    ${isNow &&
    progress.total !== null &&
    html`<${Progress} done=${progress.done} total=${progress.total} label=${step.title} />
      <span class="muted">${progress.done} of ${progress.total}</span>`}
  </li>`;
}

/** @param {import("../api_types").RunOut} run */
function now({ status, progress }) {
  if (status !== "running") return "";
  if (progress.iteration === 0) return "now: the baseline, before any training";
  return progress.iteration === null ? "starting" : `now: iteration ${progress.iteration}`;
}
