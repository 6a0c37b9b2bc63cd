// Data for runs: inboxes, sets of scenarios, demonstrations, and graphs.

import { useState } from "../vendor/hooks.js";
import { all, get, path, remove } from "../api.js";
import { compact, counted, moment, whole } from "../format.js";
import { Action } from "../parts/action.js";
import { marked } from "../parts/field.js";
import { html } from "../parts/html.js";
import { ImportFile } from "../parts/imports.js";
import { HOW_MADE, MakeQuestions, questionsAbout, questionsOf, scenariosFor } from "../parts/questions.js";
import { Empty, Loaded, useLoaded } from "../parts/states.js";
import { Table } from "../parts/table.js";
import { JsonText, label } from "../parts/text.js";
import { DEMONSTRATIONS, Upload, uploadTo } from "../parts/upload.js";
import { href } from "../router.js";

/** @typedef {import("../api_types").InboxOut} Inbox */
/** @typedef {import("../api_types").ScenarioSetOut} ScenarioSet */
/** @typedef {import("../api_types").DemonstrationsOut} Demonstrations */
/** @typedef {import("../api_types").GraphListed} Graph */

const _MAIL = "email_search";

/**
 * @param {ScenarioSet[] | undefined} sets @param {() => void} made @param {() => void} reload
 * @returns {import("../parts/table.js").Column<Inbox>[]}
 */
const inboxColumns = (sets, made, reload) => [
  {
    title: "Inbox",
    by: "name",
    cell: (each) => html`<strong>${label(each.name)}</strong> <span class="muted">version ${each.version}</span>`,
  },
  { title: "Emails", by: "emails", isNumber: true, cell: (each) => whole(each.emails) },
  {
    title: "Questions",
    cell: (each) => sets && html`<${Questions} inbox=${each} found=${questionsOf(each, sets)} done=${made} />`,
  },
  { title: "From", cell: (each) => origin(each.origin) },
  { title: "Stored", by: "created_at", cell: (each) => moment(each.created_at) },
  {
    title: "",
    cell: (each) => deletion(path`inboxes/${each.name}`, `all versions of the inbox ${label(each.name)}`, reload),
  },
];
/** @param {() => void} reload @returns {import("../parts/table.js").Column<ScenarioSet>[]} */
const setColumns = (reload) => [
  {
    title: "Set",
    by: "name",
    cell: (each) =>
      html`<a href=${href(["data", "scenarios", each.sha256])}><strong>${label(each.name)}</strong></a>
        ${" "}<span class="muted">version ${each.version}</span>`,
  },
  { title: "Scenarios", by: "count", isNumber: true, cell: (each) => whole(each.count) },
  { title: "For", by: "environment", cell: (each) => label(each.environment) },
  { title: "From", cell: (each) => origin(each.origin) },
  { title: "Stored", by: "created_at", cell: (each) => moment(each.created_at) },
  {
    title: "",
    cell: (each) => deletion(path`scenarios/${each.sha256}`, `the scenarios of ${label(each.name)}`, reload),
  },
];
/** @param {() => void} reload @returns {import("../parts/table.js").Column<Demonstrations>[]} */
const demonstrationsColumns = (reload) => [
  {
    title: "Demonstrations",
    by: "name",
    cell: (each) =>
      html`<a href=${href(["data", "demonstrations", each.sha256])}><strong>${label(each.name)}</strong></a>
        ${" "}<span class="muted">version ${each.version}</span>`,
  },
  { title: "Conversations", by: "count", isNumber: true, cell: (each) => whole(each.count) },
  { title: "From", cell: (each) => origin(each.origin) },
  { title: "Stored", by: "created_at", cell: (each) => moment(each.created_at) },
  {
    title: "",
    cell: (each) => deletion(path`demonstrations/${each.sha256}`, `the demonstrations of ${label(each.name)}`, reload),
  },
];
/** @type {import("../parts/table.js").Column<Graph>[]} */
const graphColumns = [
  {
    title: "Graph",
    cell: (each) => html`<a href=${href(["data", "graphs", each.sha256])}><code>${each.sha256.slice(0, 16)}</code></a>`,
  },
  { title: "Bytes", by: "bytes", isNumber: true, cell: (each) => compact(each.bytes) },
  { title: "Stored", by: "created_at", cell: (each) => moment(each.created_at) },
];

/**
 * The questions about a version of an inbox, or a button that makes some.
 * @param {{inbox: Inbox, found: ScenarioSet | undefined, done: () => void}} props
 */
function Questions({ inbox, found, done }) {
  if (found) return html`<a href=${href(["data", "scenarios", found.sha256])}>${counted(found.count, "question")}</a>`;
  return html`<span class="muted">none yet </span><${MakeQuestions} inbox=${inbox.name} done=${done} />`;
}

/** Uploads a set of scenarios for a chosen environment. @param {{inboxes: Inbox[], done: () => void}} props */
function UploadScenarios({ inboxes, done }) {
  const environments = useLoaded((aborted) => get("environments", {}, aborted), []);
  const [environment, setEnvironment] = useState(_MAIL);
  const [inbox, setInbox] = useState("");
  const names = [...new Set(inboxes.map((each) => each.name))];
  const about = names.includes(inbox) ? inbox : names[0];
  const isMail = environment === _MAIL;
  return html`<div class="filters">
      <label class="field"><span>Environment</span>
        <select value=${environment} onChange=${(/** @type {any} */ event) => setEnvironment(event.target.value)}>
        ${(environments.data?.items ?? []).map((/** @type {{name: string}} */ { name }) => option(name, environment))}
        </select></label>
      ${
        isMail &&
        names.length > 0 &&
        html`<label class="field"><span>About the inbox</span>
        <select value=${about} onChange=${(/** @type {any} */ event) => setInbox(event.target.value)}>
        ${names.map((name) => option(name, about))}</select></label>`
      }
    </div>
    ${
      isMail && names.length === 0
        ? html`<p class="muted">Questions are about an inbox: upload one first.</p>`
        : html`<${Upload} kind=${isMail ? questionsAbout(about) : scenariosFor(environment)} done=${done} />`
    }`;
}

/** @param {string} name @param {string} chosen */
const option = (name, chosen) => html`<option value=${name} selected=${name === chosen}>${label(name)}</option>`;

/**
 * A button to delete data; the service refuses if a run still needs it.
 * @param {string} where @param {string} what @param {() => void} reload
 */
function deletion(where, what, reload) {
  return html`<${Action} label="Delete" kind="danger" confirm=${`Delete ${what}?`}
    act=${async () => (await remove(where), reload())} />`;
}

/** @param {Record<string, any>} from */
function origin(from) {
  return html`<details><summary>${label(from.source ?? "unknown", 40)}</summary>
    <${JsonText} value=${from} limit=${3000} /></details>`;
}

const _NO_SET = "No named set yet: environments make scenarios of their own.";
const _NO_DEMONSTRATIONS = "None yet: runs learn by reinforcement alone, or from an environment's own oracle.";

/** @param {{name: string, version: number}} stored */
const versionOf = ({ name, version }) => `${name}@${version}`;

export function Data() {
  const inboxes = useLoaded((aborted) => all("inboxes", {}, { aborted, most: 1000 }), []);
  const inboxUpload = useLoaded((aborted) => uploadTo("inboxes", aborted), []);
  const sets = useLoaded((aborted) => all("scenarios", {}, { aborted, most: 1000 }), []);
  const demonstrations = useLoaded((aborted) => all("demonstrations", {}, { aborted, most: 1000 }), []);
  const graphs = useLoaded((aborted) => graphsOf(aborted), []);
  const named = /** @type {ScenarioSet[] | undefined} */ (sets.data);
  const ofInboxes = inboxColumns(named, sets.reload, inboxes.reload);
  const ofDemonstrations = demonstrationsColumns(demonstrations.reload);
  return html`<h1>Data</h1>
    <section class="card"><h2>Inboxes</h2>
      ${inboxUpload.data && html`<${Upload} kind=${inboxUpload.data} done=${inboxes.reload} />`}
      <${Loaded} state=${inboxes}>${(/** @type {Inbox[]} */ found) =>
        listed("Inboxes", found, ofInboxes, versionOf, "No inbox yet: runs search synthetic ones.")}<//>
      ${(inboxes.data?.length ?? 0) > 0 && html`<p class="muted">${HOW_MADE}</p>`}</section>
    <section class="card"><h2>Sets of scenarios</h2>
      <${UploadScenarios} inboxes=${/** @type {Inbox[]} */ (inboxes.data ?? [])} done=${sets.reload} />
      <${Loaded} state=${sets}>${(/** @type {ScenarioSet[]} */ found) =>
        listed("Sets of scenarios", found, setColumns(sets.reload), versionOf, _NO_SET)}<//></section>
    <section class="card"><h2>Your own files</h2>
      <${ImportFile} done=${() => (demonstrations.reload(), sets.reload())} /></section>
    <section class="card"><h2>Demonstrations</h2><${Upload} kind=${DEMONSTRATIONS} done=${demonstrations.reload} />
      <${Loaded} state=${demonstrations}>${(/** @type {Demonstrations[]} */ found) =>
        listed("Demonstrations", found, ofDemonstrations, versionOf, _NO_DEMONSTRATIONS)}<//></section>
    <${Loaded} state=${graphs}>${(/** @type {Graphs | null} */ found) =>
      found &&
      html`<section class="card"><h2>${found.title}s</h2>
      <p class="muted">For ${label(found.environment)}. ${marked(label(found.description, 600))}</p>
      ${listed(`${found.title}s`, found.items, graphColumns, (each) => each.sha256, "None yet.")}</section>`}<//>`;
}

/** @typedef {{title: string, description: string, environment: string, items: Graph[]}} Graphs */

/**
 * The stored graphs; null if no environment takes one.
 * @param {AbortSignal} aborted @returns {Promise<Graphs | null>}
 */
async function graphsOf(aborted) {
  const [{ items: environments }, { items }] = await Promise.all([
    get("environments", {}, aborted),
    get("graphs", {}, aborted),
  ]);
  for (const { name: environment, documents } of /** @type {import("../api_types").EnvironmentOut[]} */ (
    environments
  )) {
    const graph = documents.find(({ setting }) => setting === "graph");
    if (graph) return { ...graph, environment, items };
  }
  return null;
}

/**
 * @param {string} caption @param {any[]} rows @param {import("../parts/table.js").Column[]} columns
 * @param {(row: any) => string} keyOf @param {string} none
 */
function listed(caption, rows, columns, keyOf, none) {
  return rows.length === 0
    ? html`<p class="muted">${none}</p>`
    : html`<${Table} caption=${caption} rows=${rows} keyOf=${keyOf} columns=${columns} />`;
}

const _DOCUMENTS = /** @type {Record<string, {title: string, of: string}>} */ ({
  graphs: { title: "Graph", of: "node" },
  scenarios: { title: "Scenarios", of: "scenario" },
  demonstrations: { title: "Demonstrations", of: "conversation" },
});

/** A stored document. @param {{kind: string, sha256: string}} props */
export function DocumentPage({ kind, sha256 }) {
  const state = useLoaded((aborted) => get(path`${kind}/${sha256}`, {}, aborted), [kind, sha256]);
  const { title, of } = _DOCUMENTS[kind] ?? { title: "Data", of: "item" };
  return html`<p class="crumbs"><a href=${href(["data"])}>Data</a></p><h1>${title}</h1>
    <p class="muted"><code>${label(sha256)}</code></p>
    <${Loaded} state=${state}>${(/** @type {any} */ found) => {
      const items = found.graph ?? found.scenarios ?? found.demonstrations ?? [];
      return items.length === 0
        ? html`<${Empty} title="It is empty" />`
        : html`<section class="card"><h2>${counted(items.length, of)}</h2>
          <${JsonText} value=${items} limit=${20_000} /></section>`;
    }}<//>`;
}
