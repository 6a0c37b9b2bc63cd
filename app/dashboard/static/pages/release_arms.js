// Both arms of a release: their checkpoints with the runs that made them, and what became of their users.

import { counted, number, percent, whole } from "../format.js";
import { html } from "../parts/html.js";
import { Table } from "../parts/table.js";
import { label, promptName } from "../parts/text.js";
import { href } from "../router.js";

/** @typedef {import("../api_types").ReleaseOut} Release */
/** @typedef {import("../api_types").ArmOut} Arm */

/** @param {{release: Release}} props */
export function Arms({ release: { arms, unit, rules } }) {
  const users = unit === "user" ? "Users" : "Sessions";
  /** @type {import("../parts/table.js").Column<Arm>[]} */
  const columns = [
    { title: "Arm", isHead: true, cell: (each) => html`<span class="row-name">${each.arm}</span>` },
    { title: "Checkpoint", cell: checkpoint },
    { title: users, isNumber: true, cell: (each) => whole(each.units) },
    {
      title: "Windows",
      isNumber: true,
      cell: (each) => `${whole(each.closed_windows)} closed, ${whole(each.open_windows)} open`,
    },
    { title: "Mean outcome", isNumber: true, cell: (each) => number(each.mean_outcome, 3) },
    { title: "Late events", isNumber: true, cell: (each) => whole(each.late_events) },
  ];
  return html`<section class="card"><h2>Both arms</h2>
    <p class="muted">Only enrolled ${users.toLowerCase()}, each with a fair coin for the arm. ${outcome(rules)}</p>
    <${Table} caption="Both arms" class="stacked" rows=${arms}
      keyOf="arm" columns=${columns} /></section>`;
}

/** @param {Arm} arm */
function checkpoint({ checkpoint: name, prompt, run_id: run, iteration, success }) {
  const [project, model] = name.slice(0, name.lastIndexOf("@")).split("/", 2);
  return html`<a href=${href(["models", project, model])}>${label(name, 120)}</a>
    ${prompt && html`<br />with the prompt ${label(promptName(prompt))}`}
    ${run && html`<br /><a href=${href(["runs", run])}>iteration ${iteration} of a run</a>`}
    ${success !== null && html`<br /><span class="muted">${percent(success)} held-out success</span>`}`;
}

/** What an outcome is, and when it is frozen. @param {Release["rules"]} rules */
function outcome({ outcome: rule, window_hours: hours }) {
  const window = hours % 24 === 0 ? counted(hours / 24, "day") : `${number(hours, 1)} hours`;
  return `${what(rule)}, within ${window} of the first answer.`;
}

/** @param {Record<string, any>} rule */
function what({ feedback, event, session_reward: range, value }) {
  if (feedback) {
    const values = `thumbs up ${feedback.thumbs_up}, none ${feedback.none}, thumbs down ${feedback.thumbs_down}`;
    return `The outcome is the last opinion (${values})`;
  }
  if (event) return `The outcome is 1 if “${label(event, 40)}” came, otherwise 0`;
  if (range) return `The outcome is the reward of the first session, from ${range[0]} to ${range[1]}`;
  return `The outcome is the last value of “${label(value, 64)}”, 0 without one`;
}
