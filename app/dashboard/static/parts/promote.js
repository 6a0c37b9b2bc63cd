// Promoting a checkpoint to a name: immediately, after a trial against what a name means, or to a share of the name's
// users first.

import { useState } from "../vendor/hooks.js";
import { ApiError, get, path, post } from "../api.js";
import { finePercent, percent } from "../format.js";
import { href } from "../router.js";
import { Action } from "./action.js";
import { AsCurl } from "./as_code.js";
import { Field } from "./field.js";
import { html } from "./html.js";
import { ReleaseLine } from "./release.js";
import { useLoaded } from "./states.js";
import { label, promptName, served, Text } from "./text.js";

/** @typedef {{step: number, success: number | null, is_best: boolean}} Checkpoint */
/** @typedef {import("../api_types").PromotionOut} Promotion */
/** @typedef {import("../api_types").ReleaseAccepted} Release */
/** @typedef {"now" | "trial" | "release"} Way */
/** @typedef {import("../api_types").PromptUsed} Prompt */
/**
 * @typedef {{step: number, prompt: string, as: string, way: Way, champion: string, share: string,
 *   isTried: boolean}} Choice `prompt`: empty for the usual one, `-` for the environment's own texts
 */
/** @typedef {{choice: Choice, promoted?: Promotion, evaluationId?: string | null, release?: Release}} Outcome */

/** The stages of a release after the first one, which is chosen. */
const _LATER_SHARES = [0.2, 0.5];
const _FIELDS = ["as", "ramp"];
const _PROMPTS = 200;

/**
 * @param {{project: string, name: string, checkpoints: Checkpoint[], runId: string | null, done: () => void,
 *   prompt?: string, base?: string}} props
 *   the first checkpoint and `prompt` are proposed; `done` is called to close, whether or not it was promoted; `base`:
 *   the base model that a new model of that name is made of
 */
export function Promote({ project, name, checkpoints, runId, done, prompt: proposed = "", base }) {
  const [choice, setChoice] = useState(
    /** @type {Choice} */ ({
      step: checkpoints[0].step,
      prompt: proposed,
      as: "live",
      way: "now",
      champion: "",
      share: "5",
      isTried: true,
    }),
  );
  const [outcome, setOutcome] = useState(/** @type {Outcome | undefined} */ (undefined));
  const [faults, setFaults] = useState(/** @type {ApiError["errors"]} */ ([]));
  const promotions = useLoaded((aborted) => get("promotions", {}, aborted), []);
  const prompts = useLoaded((aborted) => get("prompts", { limit: _PROMPTS }, aborted), []);
  const promoted = /** @type {Promotion[]} */ (promotions.data?.items ?? []).filter((promotion) =>
    promotion.name.startsWith(`${project}/`),
  );
  if (outcome) return html`<${Result} outcome=${outcome} project=${project} name=${name} close=${done} />`;
  const obstacles = obstaclesOf(promoted, `${project}/${choice.as}`, `${project}/${name}`, choice);
  if (base) obstacles.release = "It becomes a model when it is promoted, and a model is needed for a release.";
  const way = obstacles[choice.way] ? "now" : choice.way;
  const champion = choice.champion || firstOf(promoted, `${project}/${choice.as}`);
  async function promote() {
    const request = { ...choice, way, champion };
    setFaults([]);
    try {
      setOutcome({ choice: request, ...(await send(project, name, request, base)) });
    } catch (error) {
      const atFields = error instanceof ApiError ? error.errors.map(atField) : [];
      if (!atFields.some(({ loc }) => _FIELDS.includes(String(loc[1])))) throw error;
      setFaults(atFields);
    }
  }
  const change = (/** @type {Partial<Choice>} */ changes) => setChoice({ ...choice, way, ...changes });
  const labels = { now: "Promote it", trial: "Start the trial", release: "Start the release" };
  return html`
    <${ChosenCheckpoint} checkpoints=${checkpoints} step=${choice.step} change=${change} runId=${runId} />
    <${ChosenPrompt} prompts=${prompts.data?.items ?? []} prompt=${choice.prompt} change=${change} />
    <${NameField} project=${project} promoted=${promoted} as=${choice.as} change=${change} faults=${faults} />
    <fieldset class="ways"><legend>Who gets it</legend>
      <${Option} way="now" chosen=${way} change=${change} title="Everybody, now" />
      <${Option} way="trial" chosen=${way} change=${change} title="Everybody, if a trial shows that it is better"
        obstacle=${obstacles.trial}>
        <${Champion} promoted=${promoted} project=${project} champion=${champion} change=${change} />
      <//>
      <${Option} way="release" chosen=${way} change=${change} title="A share of the users first"
        obstacle=${obstacles.release}>
        <${FirstShare} choice=${choice} meant=${meantBy(promoted, `${project}/${choice.as}`)} change=${change}
          faults=${faults} />
      <//>
    </fieldset>
    <div class="actions">
      <${Action} key=${way} label=${labels[way]} kind="primary" disabled=${!choice.as.trim()} act=${promote} />
      <button onClick=${done}>Close</button>
    </div>`;
}

/**
 * Post what was chosen.
 * @param {string} project @param {string} name of the model @param {Choice} choice @param {string} [base]
 */
async function send(project, name, { step, prompt, as, way, champion, share: percentage, isTried }, base) {
  const served = prompt ? { step, prompt: prompt === "-" ? null : prompt } : { step };
  if (way === "release") {
    const first = Number(percentage || Number.NaN) / 100;
    const ramp = [first, ..._LATER_SHARES.filter((share) => share > first)];
    const body = { model: name, ...served, ramp, skip_trial: !isTried };
    return { release: /** @type {Release} */ (await post(path`promotions/${project}/${as}/releases`, body)) };
  }
  const body = { ...served, as, base_model: base, ...(way === "trial" ? { if_better_than: champion } : {}) };
  const reply = await post(path`models/${project}/${name}/promote`, body);
  return way === "trial" ? { evaluationId: reply.evaluation_id } : { promoted: /** @type {Promotion} */ (reply) };
}

/**
 * A release has the promoted name in its path, where the form has a field for it.
 * @param {ApiError["errors"][number]} fault
 */
const atField = ({ loc, msg }) => ({ loc: loc[0] === "path" ? ["body", "as"] : loc, msg });

/** @param {Promotion[]} promoted @param {string} name */
const meantBy = (promoted, name) => promoted.find((promotion) => promotion.name === name);

/** What a name means. @param {Promotion} promotion */
const meaning = ({ model, step, prompt }) => served(`${model}@${step}`, prompt);

/**
 * The promoted name to compare with at first, without its project.
 * @param {Promotion[]} promoted @param {string} name
 */
const firstOf = (promoted, name) => (meantBy(promoted, name) ?? promoted[0])?.name.split("/")[1] ?? "";

/**
 * Why a checkpoint cannot be tried against a name, or be released to its users.
 * @param {Promotion[]} promoted @param {string} name @param {string} model @param {Choice} choice
 * @returns {Partial<Record<Way, unknown>>}
 */
function obstaclesOf(promoted, name, model, { step, prompt }) {
  const meant = meantBy(promoted, name);
  const hasPrompt = !prompt || prompt === (meant?.prompt ? promptName(meant.prompt) : "-");
  return {
    trial: promoted.length === 0 && "Nothing is promoted in this project yet, so there is nothing to compare it with.",
    release: !meant
      ? `Nothing is promoted as ${label(name, 120)} yet, so it has no users.`
      : meant.release
        ? html`${label(name, 120)} has a release already: <${ReleaseLine} release=${meant.release} />`
        : meant.model === model &&
          meant.step === step &&
          hasPrompt &&
          `${label(name, 120)} means this checkpoint already.`,
  };
}

/**
 * @param {{checkpoints: Checkpoint[], step: number, change: (changes: Partial<Choice>) => void,
 *   runId: string | null}} props
 */
function ChosenCheckpoint({ checkpoints, step, change, runId }) {
  const checkpoint = checkpoints.find((other) => other.step === step) ?? checkpoints[0];
  const chosen = (/** @type {any} */ event) => change({ step: Number(event.target.value) });
  const option = (/** @type {Checkpoint} */ offered) => {
    const text = `step ${offered.step}, ${percent(offered.success)}${offered.is_best ? ", best" : ""}`;
    return html`<option value=${offered.step} selected=${offered.step === step}>${text}</option>`;
  };
  const isBest = checkpoint.is_best ? ", the best of its run" : "";
  return html`${
    checkpoints.length > 1 &&
    html`<label class="field"><span>Checkpoint</span>
      <select value=${step} onChange=${chosen}>${checkpoints.map(option)}</select></label>`
  }
    <p>Its evidence: ${percent(checkpoint.success)} success on held-out scenarios${isBest}.
      ${runId && html` <a href=${href(["runs", runId, "held-out"])}>Read them, through the checkpoints</a>`}</p>`;
}

/**
 * The prompt that the checkpoint is served with, where any is stored.
 * @param {{prompts: Prompt[], prompt: string, change: (changes: Partial<Choice>) => void}} props
 */
function ChosenPrompt({ prompts, prompt, change }) {
  const option = (/** @type {string} */ value, /** @type {string} */ text) =>
    html`<option value=${value} selected=${value === prompt}>${text}</option>`;
  const chosen = (/** @type {any} */ event) => change({ prompt: event.target.value });
  return (
    prompts.length > 0 &&
    html`<label class="field"><span>Prompt</span>
      <select value=${prompt} aria-describedby="prompt-help" onChange=${chosen}>${option("", "the usual one")}
        ${option("-", "the environment’s own texts")}
        ${prompts.map((stored) => option(promptName(stored), label(promptName(stored))))}</select>
      <span class="help" id="prompt-help">The usual one is what the name had with this step last, or what it was trained
        with.</span></label>`
  );
}

/**
 * @param {{project: string, promoted: Promotion[], as: string, change: (changes: Partial<Choice>) => void,
 *   faults: ApiError["errors"]}} props
 */
function NameField({ project, promoted, as, change, faults }) {
  const name = `${project}/${as}`;
  const meant = meantBy(promoted, name);
  const today = meant ? ` Today it means ${meaning(meant)}.` : "";
  const help = `Clients use it as ${label(name, 120)}.${today}`;
  return html`<${Field} field=${{ name: "as", label: "Name", type: "string", help }} value=${as} faults=${faults}
    set=${(/** @type {string} */ value) => change({ as: value })} />`;
}

/**
 * One way to promote, with its fields if it is chosen, or with what prevents it.
 * @param {{way: Way, chosen: Way, change: (changes: Partial<Choice>) => void, title: string, obstacle?: unknown,
 *   children?: any}} props
 */
function Option({ way, chosen, change, title, obstacle, children }) {
  return html`<div class="way">
    <label class="check"><input type="radio" name="way" checked=${way === chosen} disabled=${Boolean(obstacle)}
      onChange=${() => change({ way })} /> ${title}</label>
    ${obstacle ? html`<p class="muted small">${obstacle}</p>` : way === chosen && children}
  </div>`;
}

/**
 * @param {{promoted: Promotion[], project: string, champion: string, change: (changes: Partial<Choice>) => void}} props
 */
function Champion({ promoted, project, champion, change }) {
  const option = (/** @type {Promotion} */ promotion) => {
    const value = promotion.name.slice(project.length + 1);
    const text = `${label(promotion.name, 100)} (${meaning(promotion)})`;
    return html`<option value=${value} selected=${value === champion}>${text}</option>`;
  };
  const chosen = (/** @type {any} */ event) => change({ champion: event.target.value });
  return html`<label class="field"><span>Better than</span>
    <select value=${champion} aria-describedby="trial-help" onChange=${chosen}>${promoted.map(option)}</select>
    <span class="help" id="trial-help">Both attempt the same held-out scenarios until it is clear which is
      better.</span></label>`;
}

/**
 * @param {{choice: Choice, meant: Promotion | undefined, change: (changes: Partial<Choice>) => void,
 *   faults: ApiError["errors"]}} props
 */
function FirstShare({ choice: { share, isTried }, meant, change, faults }) {
  const stable = meant ? meaning(meant) : "";
  const help = `At most 50. The others keep ${stable}. The share rises while guardrails permit it, and harm ends it.`;
  return html`<${Field} field=${{ name: "ramp", label: "Share of the users, in percent", type: "number", help }}
      value=${share} faults=${faults} set=${(/** @type {string} */ value) => change({ share: value })} />
    <label class="check"><input type="checkbox" checked=${isTried}
      onChange=${(/** @type {any} */ event) => change({ isTried: event.target.checked })} />
      A trial on held-out scenarios comes first</label>`;
}

/** What was done. @param {{outcome: Outcome, project: string, name: string, close: () => void}} props */
function Result({ outcome: { choice, promoted, evaluationId, release }, project, name, close }) {
  const wins = ` If step ${choice.step} wins, ${label(`${project}/${choice.as}`, 120)} means it.`;
  return html`${
    release
      ? html`<${Released} release=${release} choice=${choice} />`
      : evaluationId
        ? html`<p role="status">The trial is running:
            ${" "}<a href=${href(["evaluations", evaluationId])}>see it</a>.${wins}</p>`
        : html`<${Promoted} promotion=${promoted} model=${`${project}/${name}`} />`
  }
    <div class="actions"><button onClick=${close}>Close</button></div>`;
}

/** What the name means now, and how clients ask it. @param {{promotion: Promotion, model: string}} props */
function Promoted({ promotion: { name, step, prompt, warnings }, model }) {
  const body = { model: name, messages: [{ role: "user", content: "Hello" }] };
  return html`<p role="status"><strong>${label(name, 120)} now means step ${step}</strong> of ${served(model, prompt)}.
      ${" "}<a href=${href(["models"])}>See all promoted names</a></p>
    <${Warnings} texts=${warnings} />
    <p class="muted">Clients of the OpenAI API ask it by this name:</p>
    <${AsCurl} body=${body} target="v1/chat/completions" />`;
}

/** What the owner should know. @param {{texts: string[]}} props */
function Warnings({ texts }) {
  const warning = (/** @type {string} */ text) => html`<li><${Text} value=${text} limit=${400} /></li>`;
  return texts.length > 0 && html`<ul>${texts.map(warning)}</ul>`;
}

/** Who meets the checkpoint, and what its owner should know. @param {{release: Release, choice: Choice}} props */
function Released({ release, choice: { step, share } }) {
  const { release_id: id, state, name, forecast, warnings } = release;
  const users = `${finePercent(Number(share) / 100)} of the users of ${label(name, 120)}`;
  const others = `the others keep ${served(release.stable, release.stable_prompt)}.`;
  const news =
    state === "trial"
      ? html`<strong>A trial comes first.</strong> Unless it refuses step ${step}, ${users} meet it then; ${others}`
      : html`<strong>${users} now meet step ${step}</strong>; ${others}`;
  return html`<p role="status">${news} <a href=${href(["releases", id])}>See the release</a></p>
    <p class="muted"><${Text} value=${forecast.note} limit=${600} /></p>
    <${Warnings} texts=${warnings} />`;
}
