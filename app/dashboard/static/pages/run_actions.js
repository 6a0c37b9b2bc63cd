// The actions that a run's status allows.

import { useState } from "../vendor/hooks.js";
import { all, path, post, remove } from "../api.js";
import { Action } from "../parts/action.js";
import { Dialog } from "../parts/dialog.js";
import { html } from "../parts/html.js";
import { Improve } from "../parts/improve.js";
import { Promote } from "../parts/promote.js";
import { NoticeSwitch } from "../parts/run_notice.js";
import { Loaded, useLoaded } from "../parts/states.js";
import { go, href } from "../router.js";
import { ENDED } from "../run_data.js";
import { may } from "../session.js";
import { sent } from "./run_request.js";
import { Share } from "./share.js";

/** @typedef {import("../api_types").CheckpointOut} Checkpoint */
/** @typedef {import("../api_types").RunOut} Run */

/**
 * @param {{data: import("../run_data.js").RunData, run: import("../api_types").RunOut, promoted: () => void}} props
 *   `promoted` is called after a promotion
 */
export function RunActions({ data, run, promoted }) {
  const id = run.run_id;
  /** @param {string} verb */
  const command = (verb) => async () => {
    await post(`${path`runs/${id}`}/${verb}`);
    await data.reopen();
  };
  async function erase() {
    await remove(path`runs/${id}`);
    go([]);
  }
  const isShort = run.status === "paused" && run.shortage !== null; // its notice asks for a new limit
  const isLive = !ENDED.has(run.status);
  return html`<div class="actions">
    <${NoticeSwitch} run=${run} />
    <${Share} id=${id} />
    ${["queued", "running"].includes(run.status) && html`<${Action} label="Pause" act=${command("pause")} />`}
    ${run.status === "paused" && !isShort && html`<${Action} label="Resume" kind="primary" act=${command("resume")} />`}
    ${run.status === "failed" && html`<${Action} label="Retry" kind="primary" act=${command("retry")} />`}
    ${run.best_checkpoint && may("write") && html`<${PromoteRun} run=${run} promoted=${promoted} />`}
    ${run.best_checkpoint && html`<a class="button" href=${href(["start"], { fork: id })}>Fork</a>`}
    ${!isLive && may("write") && html`<${Improve} agent=${agentOf(run)} />`}
    ${
      isLive &&
      html`<${Action} label="Cancel" kind="danger" confirm="Cancel this run for good? What it has learned is kept."
      act=${command("cancel")} disabled=${run.cancel_requested} />`
    }
    ${
      !isLive &&
      html`<${Action} label="Delete" kind="danger" act=${erase}
      confirm="Delete this run with its trajectories, events and model? That cannot be undone." />`
    }
  </div>`;
}

/** The run's agent for `POST /improvements`: its best checkpoint, or else what it began with. @param {Run} run */
function agentOf({ run_id: from, request, best_checkpoint: best }) {
  const { environment, agent, judge, prompt, max_turns, max_completion_tokens, model } = sent(request);
  const { name: _name, ...base } = model;
  const fields = { environment, agent, judge, prompt, max_turns, max_completion_tokens, model: base };
  return best ? { ...fields, from } : fields;
}

/**
 * Promotes one of the run's checkpoints, by default the best.
 * @param {{run: import("../api_types").RunOut, promoted: () => void}} props
 */
function PromoteRun({ run, promoted }) {
  const [isOpen, setOpen] = useState(false);
  return html`<button onClick=${() => setOpen(true)}>Promote</button>
    ${
      isOpen &&
      html`<${Dialog} title="Promote a checkpoint" close=${() => (setOpen(false), promoted())}>
        ${(/** @type {() => void} */ close) => html`<${OfRun} run=${run} done=${close} />`}<//>`
    }`;
}

/** @param {{run: import("../api_types").RunOut, done: () => void}} props */
function OfRun({ run, done }) {
  const state = useLoaded((aborted) => all(path`runs/${run.run_id}/checkpoints`, {}, { aborted }), [run.run_id]);
  return html`<${Loaded} state=${state}>${(/** @type {Checkpoint[]} */ made) => {
    const kept = made
      .filter((each) => !each.deleted_at)
      .sort((one, other) => Number(other.is_best) - Number(one.is_best) || other.step - one.step);
    if (kept.length === 0) return html`<p>The run has no checkpoint that is kept.</p>`;
    return html`<${Promote} project=${run.model.project} name=${run.model.name}
        checkpoints=${kept} runId=${run.run_id} done=${done} />`;
  }}<//>`;
}
