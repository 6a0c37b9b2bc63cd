// Stored prompts: the list of their versions, and one with its parts and what differs from another.

import { all, path, remove } from "../api.js";
import { counted, moment, whole } from "../format.js";
import { Action } from "../parts/action.js";
import { html } from "../parts/html.js";
import { PromptLink } from "../parts/prompt.js";
import { Compared } from "../parts/prompt_parts.js";
import { idEnd } from "../parts/run_name.js";
import { Empty, Loaded, useLoaded } from "../parts/states.js";
import { Table } from "../parts/table.js";
import { label } from "../parts/text.js";
import { go, href, refine } from "../router.js";

/** @typedef {import("../api_types").PromptOut} Prompt */

/** Most links to what uses a prompt. */
const _LINKS = 20;
const _BEGIN = "learnloop prompts upload NAME FILE";

/** @param {AbortSignal} aborted @returns {Promise<Prompt[]>} */
const versions = (aborted) => all("prompts", {}, { aborted, most: 1000 });

export function Prompts() {
  const state = useLoaded(versions, []);
  /** @type {import("../parts/table.js").Column<Prompt>[]} */
  const columns = [
    { title: "Prompt", by: "name", isHead: true, cell: (each) => html`<${PromptLink} prompt=${each} />` },
    { title: "Parts", by: "count", isNumber: true, cell: (each) => whole(each.count) },
    { title: "Author", by: "origin.author", cell: (each) => label(each.origin.author) },
    { title: "Stored", by: "created_at", cell: (each) => moment(each.created_at) },
    { title: "Used by", cell: (each) => uses(each) },
  ];
  return html`<h1>Prompts</h1>
    <${Loaded} state=${state}>${(/** @type {Prompt[]} */ found) =>
      found.length === 0
        ? html`<${Empty} title="No prompt yet">
          <p>A prompt replaces texts that an agent brings to its model. Store one: <code>${_BEGIN}</code></p><//>`
        : html`<section class="card"><h2>${counted(found.length, "version")}</h2>
          <${Table} caption="Prompts, newest first" class="stacked" rows=${found} columns=${columns}
            keyOf=${(/** @type {Prompt} */ each) => `${each.name}@${each.version}`} /></section>`}<//>`;
}

/** What uses a prompt, in numbers. @param {Prompt} prompt */
const uses = ({ used_by: by }) =>
  Object.entries(by)
    .filter(([, ids]) => ids.length > 0)
    .map(([kind, ids]) => counted(ids.length, kind.slice(0, -1)))
    .join(", ") || html`<span class="muted">nothing</span>`;

/** @param {{id: string, query: URLSearchParams}} props `against` of the query is the hash of another one, or `-` */
export function PromptPage({ id: sha256, query }) {
  const state = useLoaded(versions, [sha256]);
  return html`<p class="crumbs"><a href=${href(["prompts"])}>Prompts</a> / <code>${label(sha256)}</code></p>
    <${Loaded} state=${state}>${(/** @type {Prompt[]} */ found) =>
      html`<${Whole} sha256=${sha256} found=${found} chosen=${query.get("against")} />`}<//>`;
}

/** @param {{sha256: string, found: Prompt[], chosen: string | null}} props */
function Whole({ sha256, found, chosen }) {
  const names = found.filter((each) => each.sha256 === sha256);
  const [newest] = names;
  const before = newest && found.find((each) => each.name === newest.name && each.version < newest.version);
  const against = chosen ?? before?.sha256 ?? "-";
  const gone = async () => (await remove(path`prompts/${sha256}`), go(["prompts"]));
  return html`<div class="title-row"><h1>${label(names.map(nameOf).join(", ") || sha256.slice(0, 12), 200)}</h1>
      <div class="actions"><${Action} label="Delete" kind="danger" confirm="Delete this prompt and all its names?"
        act=${gone} /></div></div>
    ${newest && html`<${Origin} prompt=${newest} />`}
    <label class="field"><span>Compare with</span>
      <select value=${against} onChange=${(/** @type {any} */ event) => refine({ against: event.target.value })}>
        <option value="-">nothing</option>
        ${found
          .filter((each) => each.sha256 !== sha256)
          .map((each) => html`<option value=${each.sha256}>${nameOf(each)}</option>`)}</select></label>
    <${Compared} before=${against === "-" ? sha256 : against} after=${sha256} />`;
}

/** @param {Prompt} prompt */
const nameOf = ({ name, version }) => `${name}@${version}`;

/** @param {{prompt: Prompt}} props */
function Origin({ prompt: { origin, created_at: at, used_by: by } }) {
  const links = Object.entries(by).flatMap(([kind, ids]) => ids.map((id) => ({ kind, id })));
  return html`<p class="muted">Stored ${moment(at)} by ${label(origin.author)}.
    ${
      links.length > 0 &&
      html`${" "}Used by${" "}${links.slice(-_LINKS).map(
        ({ kind, id }, index) =>
          html`${index > 0 && ", "}<a href=${href(kind === "promotions" ? ["models"] : [kind, id])}>
              ${kind.slice(0, -1)} ${kind === "promotions" ? label(id) : idEnd(id)}</a>`,
      )}${links.length > _LINKS && ` and ${links.length - _LINKS} more`}.`
    }</p>`;
}
