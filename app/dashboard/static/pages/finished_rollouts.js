// Rollouts of the iteration in progress, as they finish: they have no reward yet, and are no trajectories yet.

import { useEffect, useState } from "../vendor/hooks.js";
import { get, path } from "../api.js";
import { ago, counted, duration, ending } from "../format.js";
import { Conversation } from "../parts/conversation.js";
import { html } from "../parts/html.js";
import { label, Text, visible } from "../parts/text.js";

/** @typedef {import("../api_types").FinishedRollouts} Finished */

const _EVERY_MS = 2000;
const _PURPOSES = /** @type {Record<string, string>} */ ({
  train: "training",
  "train.replacement": "training, another scenario",
  showcase: "sample email",
});

/** @param {{runId: string}} props */
export function FinishedRollouts({ runId }) {
  const [found, setFound] = useState(/** @type {Finished | undefined} */ (undefined));
  useEffect(() => {
    const controller = new AbortController();
    // A failed read is repeated at the next turn; the page's event stream says when the connection is lost.
    const read = () =>
      document.hidden || get(path`runs/${runId}/rollouts`, { limit: 12 }, controller.signal).then(setFound, () => {});
    read();
    const timer = setInterval(read, _EVERY_MS);
    return () => {
      controller.abort();
      clearInterval(timer);
    };
  }, [runId]);
  if (!found || found.total === 0) return null;
  return html`<section class="card finished"><h2>Just finished</h2>
    <p class="muted">${counted(found.total, "rollout")} of the iteration in progress
      ${found.total === 1 ? " has" : " have"} finished; the newest are here. They are judged and listed below once the
      iteration is saved.</p>
    <ul class="rollouts">${found.items.map(
      (each) => html`<li key=${each.id}><details>
      <summary>${taskIn(each.messages)} <span class="muted">${noteOn(each)}</span></summary>
      <${Conversation} messages=${each.messages} />
    </details>${
      each.error && html`<p class="wrong-soft"><${Text} value=${lastLine(each.error)} limit=${300} /></p>`
    }</li>`,
    )}</ul>
  </section>`;
}

/** What it is for, how it ended, and how long it took. @param {Finished["items"][number]} rollout */
function noteOn(rollout) {
  const purpose = _PURPOSES[rollout.purpose] ?? rollout.purpose.replace(".", ", ");
  const length = `${counted(rollout.turns, "turn")}, ${duration(rollout.seconds)}`;
  return `${purpose} · ${visible(ending(rollout))}, ${length} · ${ago(rollout.finished_at)}`;
}

/** The line of an error that names it. @param {string} error */
const lastLine = (error) =>
  error
    .trim()
    .split("\n")
    .findLast((line) => /[\p{L}\p{N}]/u.test(line)) ?? error;

/** The agent's task: the first message of the user. @param {any[]} messages */
const taskIn = (messages) => label(messages.find((each) => each.role === "user")?.content ?? "A rollout", 100);
