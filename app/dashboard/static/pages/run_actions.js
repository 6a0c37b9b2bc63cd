// The actions that a run's status allows.

import { path, post, remove } from "../api.js";
import { Action } from "../parts/action.js";
import { html } from "../parts/html.js";
import { go, href } from "../router.js";
import { ENDED } from "../run_data.js";
import { shortageOf } from "./run_notices.js";
import { Share } from "./share.js";

/** @param {{data: import("../run_data.js").RunData, run: import("../api_types").RunOut}} props */
export function RunActions({ data, run }) {
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
  const isShort = shortageOf(data) !== undefined; // its notice asks for a new limit
  const isLive = !ENDED.has(run.status);
  return html`<div class="actions">
    <${Share} id=${id} />
    ${["queued", "running"].includes(run.status) && html`<${Action} label="Pause" act=${command("pause")} />`}
    ${run.status === "paused" && !isShort && html`<${Action} label="Resume" kind="primary" act=${command("resume")} />`}
    ${run.status === "failed" && html`<${Action} label="Retry" kind="primary" act=${command("retry")} />`}
    ${run.best_checkpoint && html`<a class="button" href=${href(["start"], { fork: id })}>Fork</a>`}
    ${isLive &&
    html`<${Action} label="Cancel" kind="danger" confirm="Cancel this run for good? What it has learned is kept."
      act=${command("cancel")} disabled=${run.cancel_requested} />`}
    ${!isLive &&
    html`<${Action} label="Delete" kind="danger" act=${erase}
      confirm="Delete this run with its trajectories, events and model? That cannot be undone." />`}
  </div>`;
}
