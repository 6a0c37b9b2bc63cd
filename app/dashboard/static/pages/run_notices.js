// What a reader of a run has to know first: why it does not learn, failed, waits or is paused, and what to do about it.

import { useState } from "../vendor/hooks.js";
import { get, path, post } from "../api.js";
import { counted, inWords, whole } from "../format.js";
import { Action } from "../parts/action.js";
import { html } from "../parts/html.js";
import { readiness } from "../parts/service_state.js";
import { useLoaded } from "../parts/states.js";
import { Text } from "../parts/text.js";
import { go, href } from "../router.js";
import { ENDED } from "../run_data.js";

/** @typedef {import("../api_types").RunOut} Run */
/** @typedef {import("../api_types").RunDiagnosis} RunDiagnosis */
/** @typedef {import("../run_data.js").RunData} RunData */
/** @typedef {import("../run_data.js").Shortage} Shortage */

/** @param {{data: RunData, run: Run}} props */
export function Notices({ data, run }) {
  const shortage = /** @type {Shortage | undefined} */ (run.status === "paused" ? run.shortage : undefined);
  const service = readiness.value;
  return html`
    ${(run.diagnosis || run.verdict.causes.length > 0 || isUnexplained(run)) && html`<${Causes} run=${run} />`}
    ${run.ended_early && html`<section class="notice"><p>${run.ended_early}</p></section>`}
    ${
      run.error &&
      html`<section class="notice bad" role="alert"><h2>Why it failed</h2>
      <${Text} as="p" value=${run.error} limit=${1500} /></section>`
    }
    ${run.progress.failures && html`<${FailedRollouts} run=${run} failures=${run.progress.failures} />`}
    ${
      run.status === "running" &&
      service &&
      service.status !== "ready" &&
      html`<section class="notice warn" role="status"><h2>The run is waiting for the service</h2>
      <p>The service is ${service.status}: database ${service.database}, engine ${service.engine}. The run continues by
        itself once they answer.</p></section>`
    }
    ${
      run.queue &&
      html`<section class="notice"><h2>In the queue</h2>
      <${Text} as="p" value=${run.queue.reason} limit=${400} /></section>`
    }
    ${shortage && html`<${BudgetPause} data=${data} run=${run} shortage=${shortage} />`}
    ${
      run.wait_reason &&
      !run.queue &&
      !shortage &&
      html`<section class="notice warn"><h2>${run.status === "paused" ? "Why it is paused" : "What it waits for"}</h2>
      <${Text} as="p" value=${run.wait_reason} limit=${800} /></section>`
    }
    ${run.warnings.length > 0 && html`<${Warnings} run=${run} />`}`;
}

/** Where the text of warnings does not push the tabs off the screen. */
const _ROOM = "(min-width: 46rem)";

/** @param {{run: Run}} props */
const Warnings = ({ run: { status, warnings } }) => html`<details class="notice warn"
    open=${!ENDED.has(status) && matchMedia(_ROOM).matches}>
    <summary>${warnings.length === 1 ? "A warning" : counted(warnings.length, "warning")} about the request</summary>
    <ul>${warnings.map((warning) => html`<li><${Text} value=${warning} limit=${600} /></li>`)}</ul></details>`;

/**
 * How many rollouts failed, and why the first one did.
 * @param {{run: Run, failures: NonNullable<Run["progress"]["failures"]>}} props
 */
function FailedRollouts({ run, failures: { iteration, failed, finished, first } }) {
  const where = iteration > 0 ? ` in iteration ${iteration}` : "";
  const query = { kind: iteration > 0 ? "train" : "evaluation", iteration };
  return html`<section class="notice bad" role="status">
    <h2>${whole(failed)} of ${counted(finished, "rollout")} failed${where}</h2>
    <p><code><${Text} value=${first} limit=${300} /></code></p>
    <p class="muted"><a href=${href(["runs", run.run_id, "trajectories"], query)}>Read them</a>. A rollout that failed
      has no reward, neither good nor bad.</p></section>`;
}

/** Whether a run has ended without having learned. @param {Run} run */
const isUnexplained = ({ status, verdict }) =>
  ENDED.has(status) && (verdict.state === "no_change_shown" || verdict.state === "got_worse");

/** Says that no cause was found, and which ones could not be looked for. @param {{diagnosis: RunDiagnosis}} props */
const NoCause = ({ diagnosis: { not_examined: unexamined } }) => html`<div class="causes muted small">
  <p>No likely cause was found.${unexamined.length > 0 && " Not examined:"}</p>
  ${
    unexamined.length > 0 &&
    html`<ul>${unexamined.map(
      ({ cause, reason }) => html`<li>${inWords(cause)}: <${Text} value=${reason} limit=${300} /></li>`,
    )}</ul>`
  }
</div>`;

/** Why it does not learn, each cause with the fork that repairs it. @param {{run: Run}} props */
function Causes({ run }) {
  const state = useLoaded(
    (aborted) => get(path`runs/${run.run_id}/diagnosis`, {}, aborted),
    [run.run_id, run.diagnosis],
  );
  const found = /** @type {RunDiagnosis | undefined} */ (state.data);
  const active = found?.diagnoses.filter((each) => each.state === "active") ?? [];
  if (active.length === 0) return found && isUnexplained(run) && html`<${NoCause} diagnosis=${found} />`;
  const first = run.verdict.state === "learned" ? "Noticed" : "Likely cause";
  return html`<ul class="causes" aria-label="Causes">
    ${active.map(
      ({ cause, summary, remedy, first_iteration: since }) => html`<li key=${cause} class="cause">
      <p><strong>${cause === found?.cause ? first : "Also"}:</strong> <${Text} value=${summary} limit=${500} />
        ${" "}<span class="muted">since iteration ${since}</span></p>
      <p><${Text} value=${remedy.text} limit=${500} />${" "}
        ${
          remedy.how === "fork" &&
          html`<${Action} label="Fork with this change" act=${async () => {
            const forked = await post(path`runs/${run.run_id}/fork`, remedy.request);
            go(["runs", forked.run_id]);
          }} />`
        }</p>
    </li>`,
    )}
  </ul>`;
}

/**
 * Asks for a higher limit, filled in with what the whole run will probably need.
 * @param {{data: RunData, run: Run, shortage: Shortage}} props
 */
function BudgetPause({ data, run, shortage: { limit, max, needs, spent } }) {
  const unit = limit.replace("max_", "").replace("usd", "dollars");
  const used = spent[limit.replace("max_", "")] ?? 0;
  const { iterations_done: done, iterations_total: total } = run.progress;
  // The baseline evaluation costs about as much as an iteration; where it is not finished, about half of it is done.
  const forAll = (used / (done > 0 ? done + 1 : 0.5)) * (total + 1) * 1.1;
  const enough = roundedUp(Math.max(needs, max * 1.01, forAll));
  const [value, setValue] = useState(String(enough));
  const shown = (/** @type {number} */ amount) =>
    limit === "max_usd" ? `$${amount.toFixed(2)}` : counted(Math.round(amount), unit.slice(0, -1));
  async function resume() {
    await post(path`runs/${run.run_id}/resume`, { budget: { [limit]: Number(value) } });
    await data.reopen();
  }
  const after = done === 0 ? "a part of the baseline evaluation" : `${done} of ${counted(total, "iteration")}`;
  const verb = limit === "max_usd" || Math.round(used) === 1 ? "is" : "are";
  const typed = (/** @type {any} */ event) => setValue(event.currentTarget.value);
  return html`<section class="notice warn"><h2>Paused: the budget of ${shown(max)} is used up</h2>
    <p>${shown(used)} ${verb} used after ${after}; the next call may bring it to ${shown(needs)}.
      ${` About ${shown(enough)}`} should finish the run.</p>
    <div class="resume"><label class="field"><span>New limit, in ${unit}</span>
      <input type="number" min="0" step="any" value=${value} onInput=${typed} /></label>
      <${Action} label="Resume" kind="primary" act=${resume} /></div>
  </section>`;
}

/** The next number with at most two digits that are not zero. @param {number} value */
function roundedUp(value) {
  const digit = 10 ** Math.max(-2, Math.floor(Math.log10(value)) - 1);
  return Number((Math.ceil(value / digit) * digit).toPrecision(12));
}
