// Imports conversations that exist already, and shows what they became and why the others were left out.

import { useState } from "../vendor/hooks.js";
import { request, url } from "../api.js";
import { counted, whole } from "../format.js";
import { Action } from "./action.js";
import { html } from "./html.js";
import { Table } from "./table.js";
import { label } from "./text.js";

/** @typedef {import("../api_types").ConversationsImported} Imported */
/** @typedef {import("../api_types").LeftOut} LeftOut */

const _LEFT_OUT = [
  { title: "Left out", isNumber: true, cell: (/** @type {LeftOut} */ each) => whole(each.count) },
  { title: "Why", cell: (/** @type {LeftOut} */ each) => label(each.reason, 300) },
  { title: "Lines", cell: (/** @type {LeftOut} */ each) => each.lines.join(", ") + (each.count > each.lines.length ? ", …" : "") },
];

/** Choose a file and how its opinions are understood, and import it. @param {{done: () => void}} props */
export function ImportConversations({ done }) {
  const [file, setFile] = useState(/** @type {File | undefined} */ (undefined));
  const [options, setOptions] = useState(/** @type {Record<string, string>} */ ({}));
  const [made, setMade] = useState(/** @type {Imported | undefined} */ (undefined));
  /** @param {string} key @param {string} title @param {string} type @param {string} help */
  const option = (key, title, type, help) => html`<label class="field"><span>${title}</span>
    <input type=${type} step="any" value=${options[key] ?? ""} onInput=${(/** @type {any} */ event) => setOptions({ ...options, [key]: event.target.value })} /><span class="help">${help}</span></label>`;
  async function act() {
    setMade(undefined);
    if (!file) throw new Error("Choose a file first.");
    const name = file.name.replace(/\.[^.]*$/, "").replace(/[^A-Za-z0-9_-]+/g, "-").replace(/^-+|-+$/g, "").toLowerCase().slice(0, 63) || "chats";
    const given = Object.fromEntries(Object.entries(options).filter(([, value]) => value !== ""));
    setMade(await request("POST", url("conversations", { name, ...given }), { raw: file }));
    done();
  }
  return html`<label class="field upload"><span>Import conversations</span>
      <input type="file" accept=".jsonl,.json,.ndjson,.txt" onChange=${(/** @type {any} */ event) => setFile(event.target.files?.[0])} />
      <span class="help">JSON Lines in OpenAI's or ShareGPT's form, or as Langfuse and Weave export them. What was liked becomes demonstrations, what was disliked becomes tasks.</span></label>
    <div class="filters">${option("opinion", "Field or score", "text", "Its name; empty: all that are known.")}
      ${option("threshold", "Liked from", "number", "The least number of a liked conversation; empty: thumbs.")}
      ${option("user", "Field of the user", "text", "Its name; empty: the usual ones.")}</div>
    <${Action} label="Import" act=${act} />
    ${made && html`<${Result} made=${made} />`}`;
}

/** @param {{made: Imported}} props */
function Result({ made }) {
  const { demonstrations, tasks } = made;
  return html`<div role="status"><p>${counted(made.conversations, "conversation")} of ${counted(made.users, "user")}${made.without_user > 0 && `, ${whole(made.without_user)} without a user`}: ${whole(made.liked)} liked, ${whole(made.disliked)} disliked, ${whole(made.unrated)} without a clear opinion.</p>
      ${demonstrations && html`<p>${counted(demonstrations.count, "demonstration")} as ${label(demonstrations.name)}, version ${demonstrations.version}.</p>`}
      ${tasks && html`<p>${counted(tasks.count, "task")} as ${label(tasks.name)}, version ${tasks.version}: ${whole(tasks.train)} for training, ${whole(tasks.validation)} for validation, ${whole(tasks.test)} for the test. The judge that fits is ${label(tasks.judge)}.</p>`}</div>
    ${made.left_out.length > 0 && html`<${Table} caption="Conversations that were left out" rows=${made.left_out} keyOf=${(/** @type {LeftOut} */ each) => each.reason} columns=${_LEFT_OUT} />`}`;
}
