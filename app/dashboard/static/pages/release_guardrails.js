// The guardrails of a release: both arms' estimates, and evidence that the candidate does harm or does not.

import { finePercent, number, whole } from "../format.js";
import { html } from "../parts/html.js";
import { Evidence, isLive } from "../parts/release.js";
import { Table } from "../parts/table.js";
import { label } from "../parts/text.js";

/** @typedef {import("../api_types").ReleaseOut} Release */
/** @typedef {import("../api_types").GuardrailOut} Guardrail */
/** @typedef {import("../api_types").ArmFigure} Figure */

/** @param {{release: Release}} props */
export function Guardrails({ release }) {
  const { guardrails, stage, stages } = release;
  const gate = {
    title: "For the next stage",
    cell: (/** @type {Guardrail} */ each) => html`<${Gate} guardrail=${each} />`,
  };
  /** @type {import("../parts/table.js").Column<Guardrail>[]} */
  const columns = [
    {
      title: "Guardrail",
      isHead: true,
      cell: (each) =>
        html`<span class="row-name">${label(each.means)}</span>
        ${_SCALES[each.guardrail] && html`<br /><span class="muted">${_SCALES[each.guardrail]}</span>`}`,
    },
    { title: "Candidate", isNumber: true, cell: (each) => figure(each.candidate) },
    { title: "Stable", isNumber: true, cell: (each) => figure(each.stable) },
    { title: "Tolerated", isNumber: true, cell: (each) => `+${points(each.tolerance)}` },
    {
      title: "Evidence of harm",
      cell: (each) => html`<${Evidence} log=${each.harm} threshold=${each.harm_threshold} reached="bad" />`,
    },
    ...(isLive(release) && stage < stages - 1 ? [gate] : []),
  ];
  return html`<section class="card"><h2>Guardrails</h2>
    <p class="muted">The first answers to all users of the name, enrolled or not. Evidence is the wealth of a bet${" "}
      that began with 1. If the candidate is no worse than is
      tolerated, any evidence of harm becomes full in at most 1% of releases.</p>
    <${Table} caption="Guardrails" class="stacked" rows=${guardrails}
      keyOf="guardrail" columns=${columns} /></section>`;
}

const _SCALES = /** @type {Record<string, string>} */ ({
  slow: "above stable’s 95th percentile",
  cost: "tokens, of 4 times stable’s mean",
});

/** @param {Figure} found */
const figure = ({ mean, units }) => html`${finePercent(mean)}<br /><span class="muted">of ${whole(units)}</span>`;

/** @param {number} share */
const points = (share) => `${number(100 * share, Number.isInteger(Math.round(1000 * share) / 10) ? 0 : 1)} points`;

/** That an increase above the stage's level is ruled out. @param {{guardrail: Guardrail}} props */
function Gate({ guardrail: { level, ruled_out: log, ruled_out_threshold: threshold } }) {
  if (level === null || log === null) return "–";
  return html`<${Evidence} log=${log} threshold=${threshold} reached="good" /><br />
    <span class="muted">that it is below +${points(level)}</span>`;
}
