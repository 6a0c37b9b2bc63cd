// Promoting a checkpoint to a name, immediately or after a trial against what another name means.

import { useState } from "../vendor/hooks.js";
import { get, path, post } from "../api.js";
import { percent } from "../format.js";
import { href } from "../router.js";
import { Action } from "./action.js";
import { AsCurl } from "./as_code.js";
import { Field } from "./field.js";
import { html } from "./html.js";
import { useLoaded } from "./states.js";
import { label } from "./text.js";

/** @typedef {{step: number, success: number | null, is_best: boolean}} Checkpoint */
/** @typedef {import("../api_types").PromotionOut} Promotion */

/**
 * @param {{project: string, name: string, checkpoints: Checkpoint[], runId: string | null, done: () => void}} props
 *   the first checkpoint is proposed; `done` is called to close, whether or not it was promoted
 */
export function Promote({ project, name, checkpoints, runId, done }) {
  const [step, setStep] = useState(checkpoints[0].step);
  const [as, setAs] = useState("live");
  const [trial, setTrial] = useState("");
  const [made, setMade] = useState(/** @type {{evaluation_id?: string | null} | undefined} */ (undefined));
  const promotions = useLoaded((aborted) => get("promotions", {}, aborted), []);
  const known = (promotions.data?.items ?? []).filter((/** @type {Promotion} */ each) =>
    each.name.startsWith(`${project}/`),
  );
  const checkpoint = checkpoints.find((each) => each.step === step) ?? checkpoints[0];
  async function promote() {
    setMade(
      await post(path`models/${project}/${name}/promote`, { step, as, ...(trial ? { if_better_than: trial } : {}) }),
    );
  }
  if (made && !made.evaluation_id)
    return html`<${Promoted} name=${`${project}/${as}`} model=${`${project}/${name}`} step=${step} done=${done} />`;
  return html`
    ${
      checkpoints.length > 1 &&
      html`<label class="field"><span>Checkpoint</span>
      <select value=${step} onChange=${(/** @type {any} */ event) => setStep(Number(event.target.value))}>
        ${checkpoints.map((each) => html`<option value=${each.step} selected=${each.step === step}>step ${each.step}, ${percent(each.success)}${each.is_best ? ", best" : ""}</option>`)}
      </select></label>`
    }
    <p>Its evidence: ${percent(checkpoint.success)} success on held-out scenarios${checkpoint.is_best ? ", the best of its run" : ""}.
      ${runId && html` <a href=${href(["runs", runId, "held-out"])}>Read them, through the checkpoints</a>`}</p>
    <${Field} field=${{ name: "as", label: "Name", type: "string", help: `Clients use it as ${label(`${project}/${as}`, 120)}.` }} value=${as} set=${setAs} faults=${[]} />
    <label class="field"><span>Only if better than</span>
      <select value=${trial} onChange=${(/** @type {any} */ event) => setTrial(event.target.value)} aria-describedby="trial-help">
        <option value="">no trial: promote it now</option>
        ${known.map((/** @type {Promotion} */ each) => html`<option value=${each.name.slice(project.length + 1)}>${label(each.name, 100)} (${label(each.model, 60)}, step ${each.step})</option>`)}
      </select>
      <span class="help" id="trial-help">Both attempt the same held-out scenarios until it is clear which is better.${promotions.data && known.length === 0 && " Nothing is promoted in this project yet."}</span></label>
    <div class="actions"><${Action} label=${trial ? "Start the trial" : "Promote it"} kind="primary" disabled=${!as.trim()} act=${promote} /><button onClick=${done}>Close</button></div>
    ${made?.evaluation_id && html`<p role="status">The trial is running: <a href=${href(["evaluations", made.evaluation_id])}>see it</a>.</p>`}`;
}

/** What a promotion did, and how clients ask the model. @param {{name: string, model: string, step: number, done: () => void}} props */
function Promoted({ name, model, step, done }) {
  const body = { model: name, messages: [{ role: "user", content: "Hello" }] };
  return html`<p role="status"><strong>${label(name, 120)} now means step ${step}</strong> of ${label(model, 120)}. <a href=${href(["models"])}>See all promoted names</a></p>
    <p class="muted">Clients of the OpenAI API ask it by this name:</p>
    <${AsCurl} body=${body} target="v1/chat/completions" />
    <div class="actions"><button onClick=${done}>Close</button></div>`;
}
