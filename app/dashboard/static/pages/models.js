// Models: their checkpoints with evaluation results, and the names that checkpoints are promoted to.

import { useState } from "../vendor/hooks.js";
import { get, path, post, remove, url } from "../api.js";
import { ago, duration, finePercent, moment, percent } from "../format.js";
import { Action } from "../parts/action.js";
import { html } from "../parts/html.js";
import { Promote } from "../parts/promote.js";
import { ReleaseLine } from "../parts/release.js";
import { Empty, Loaded, useLoaded, useReload } from "../parts/states.js";
import { Table } from "../parts/table.js";
import { JsonText, label, promptName, Text } from "../parts/text.js";
import { href } from "../router.js";
import { Releases } from "./releases.js";

/** @typedef {import("../api_types").ModelBrief} Model */
/** @typedef {import("../api_types").ModelCheckpoint} Checkpoint */
/** @typedef {import("../api_types").PromotionOut} Promotion */

export function Models() {
  const models = useLoaded((aborted) => get("models", {}, aborted), []);
  const promotions = useLoaded((aborted) => get("promotions", {}, aborted), []);
  useReload(promotions, Boolean(promotions.data?.items.some((/** @type {Promotion} */ each) => each.release)));
  return html`<h1>Models</h1>
    <${Loaded} state=${models}>${(
      /** @type {{items: Model[]}} */ { items },
    ) => html`<section class="card"><h2>All models</h2>
      <${Table} caption="Models" rows=${items} keyOf=${(/** @type {Model} */ each) => each.model + each.backend}
        columns=${modelColumns} /></section>`}<//>
    <${Loaded} state=${promotions}>${(/** @type {{items: Promotion[]}} */ { items }) =>
      html`<${Promoted} items=${items} reload=${promotions.reload} />`}<//>
    <${Releases} />`;
}

/** @param {Model} model */
function modelLink({ model, base_model: base }) {
  const [project, name] = model.split("/", 2);
  return base ? html`<a href=${href(["models", project, name])}>${label(model, 120)}</a>` : label(model, 120);
}

/** @type {import("../parts/table.js").Column<Model>[]} */
const modelColumns = [
  { title: "Model", by: "model", cell: modelLink },
  {
    title: "Trained from",
    by: "base_model",
    cell: (each) => (each.base_model ? label(each.base_model, 120) : html`<span class="muted">a base model</span>`),
  },
  { title: "Newest step", by: "step", isNumber: true, cell: (each) => each.step ?? "–" },
  { title: "Promoted as", cell: (each) => each.promoted_as.map((name) => label(name)).join(", ") },
  { title: "Backend", by: "backend", cell: (each) => label(each.backend) },
  { title: "", cell: (each) => each.unusable && html`<span class="wrong">${label(each.unusable, 160)}</span>` },
];

/** @param {Promotion} promotion */
function evidence({ evidence: found }) {
  if (!found) return html`<span class="muted">none given</span>`;
  if (found.release_id)
    return html`<a href=${href(["releases", found.release_id])}>a release</a>${" "}
      <span class="muted">that ${found.by === "time" ? "reached its end" : "a person ended"}</span>`;
  return html`<details><summary>won a trial</summary><${JsonText} value=${found} /></details>`;
}

/** How many sessions of a name explore, and what that costs users. @param {{promotion: Promotion}} props */
function Exploring({ promotion: { name, explore } }) {
  const [project, last] = name.split("/", 2);
  const state = useLoaded((aborted) => get(path`promotions/${project}/${last}`, { limit: 1 }, aborted), [explore]);
  const notes = state.data?.items[0]?.explore?.notes ?? [];
  const share = finePercent(explore?.share);
  return html`<p class="muted">${share} of the consented sessions explore. ${notes.join(" ")}</p>`;
}

/** @param {{items: Promotion[], reload: () => void}} props */
function Promoted({ items, reload }) {
  const [said, setSaid] = useState("");
  /** @param {Promotion} promotion */
  async function check({ name }) {
    const [project, last] = name.split("/", 2);
    const found = await post(path`promotions/${project}/${last}/check`);
    setSaid(
      found.healthy ? `${name} answers, in ${duration(found.seconds)}.` : `${name} does not answer: ${found.reason}`,
    );
  }
  /** @param {Promotion} promotion */
  async function withdraw({ name }) {
    const [project, last] = name.split("/", 2);
    await remove(path`promotions/${project}/${last}`);
    reload();
  }
  /** @type {import("../parts/table.js").Column<Promotion>[]} */
  const columns = [
    {
      title: "Name",
      by: "name",
      isHead: true,
      cell: (each) => html`<span class="row-name">${label(each.name)}</span>`,
    },
    {
      title: "Means",
      cell: (each) =>
        html`${label(each.model)} @${each.step}${each.prompt && ` with ${label(promptName(each.prompt))}`}${
          each.prompt_missed_at &&
          html`<br /><span class="wrong">A request came without its prompt, ${ago(each.prompt_missed_at)}.</span>`
        }${each.release && html`<br />release: <${ReleaseLine} release=${each.release} />`}${
          each.explore && html`<${Exploring} promotion=${each} />`
        }`,
    },
    { title: "Evidence", cell: evidence },
    {
      title: "Since",
      by: "created_at",
      cell: (each) => html`${moment(each.created_at)} <span class="muted">by ${label(each.actor)}</span>`,
    },
    {
      title: "",
      cell: (each) =>
        html`<${Action} label="Check" act=${() => check(each)} /> <${Action} label="Withdraw" kind="danger"
          confirm="Take this name away? Requests that use it fail from then on." act=${() => withdraw(each)} />`,
    },
  ];
  return html`<section class="card"><h2>Promoted names</h2>
    <p class="muted">A stable name for clients of <code>/v1</code>; it can be moved to another checkpoint${" "}
      at any time.</p>
    ${
      items.length === 0
        ? html`<p>None yet. Promote a checkpoint on the page of its model.</p>`
        : html`<${Table} caption="Promoted names" class="stacked" rows=${items}
          keyOf="name" columns=${columns} />`
    }
    <p role="status"><${Text} value=${said} limit=${300} /></p>
  </section>`;
}

/** @param {{project: string, name: string}} props */
export function ModelPage({ project, name }) {
  const state = useLoaded((aborted) => get(path`models/${project}/${name}`, {}, aborted), [project, name]);
  return html`<p class="crumbs"><a href=${href(["models"])}>Models</a></p>
    <h1>${label(`${project}/${name}`, 200)}</h1>
    <${Loaded} state=${state}>${(/** @type {{checkpoints: Checkpoint[]}} */ { checkpoints }) =>
      checkpoints.length === 0
        ? html`<${Empty} title="It has no checkpoint" />`
        : html`<${Checkpoints} project=${project} name=${name} checkpoints=${checkpoints} reload=${state.reload} />`}
        <//>`;
}

/** @param {{project: string, name: string, checkpoints: Checkpoint[], reload: () => void}} props */
function Checkpoints({ project, name, checkpoints, reload }) {
  const [promoting, setPromoting] = useState(/** @type {number | undefined} */ (undefined));
  const promoted = checkpoints.find((each) => each.step === promoting);
  /** @type {import("../parts/table.js").Column<Checkpoint>[]} */
  const columns = [
    {
      title: "Step",
      by: "step",
      cell: (each) =>
        html`<strong>${each.step}</strong>${each.is_best && html` <span class="status good">best</span>`}`,
    },
    { title: "Held-out success", by: "success", isNumber: true, cell: (each) => percent(each.success) },
    {
      title: "Made by",
      cell: (each) =>
        each.run_id && html`<a href=${href(["runs", each.run_id])}>a run, iteration ${each.iteration}</a>`,
    },
    { title: "Promoted as", cell: (each) => each.promoted_as.map((promoted) => label(promoted)).join(", ") },
    { title: "Made", by: "created_at", cell: (each) => moment(each.created_at) },
    {
      title: "",
      cell: (each) => html`<span class="actions">
        <button onClick=${() => setPromoting(each.step)}>Promote</button>
        <a class="button" href=${url(path`models/${project}/${name}/export`, { step: each.step })} download>Export</a>
        <${Action} label="Delete" kind="danger" confirm="Delete this checkpoint for good?"
          disabled=${each.promoted_as.length > 0}
          act=${async () => (await remove(path`models/${project}/${name}/checkpoints/${each.step}`), reload())} />
      </span>`,
    },
  ];
  return html`
    ${
      promoted &&
      html`<section class="card narrow" aria-label="Promote"><h2>Promote step ${promoted.step}</h2>
      <${Promote} key=${promoted.step} project=${project} name=${name} checkpoints=${[promoted]}
        runId=${promoted.run_id} done=${() => (setPromoting(undefined), reload())} /></section>`
    }
    <section class="card"><h2>Checkpoints</h2>
      <${Table} caption="Checkpoints" rows=${[...checkpoints].reverse()}
        keyOf="step" columns=${columns} /></section>`;
}
