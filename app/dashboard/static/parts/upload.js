// Uploads a file as data, and shows what was stored or what is wrong with the file.

import { useState } from "../vendor/hooks.js";
import { get, request, url } from "../api.js";
import { counted } from "../format.js";
import { html } from "./html.js";
import { label } from "./text.js";

/**
 * @typedef {object} Kind
 * @property {string} where path of its list in the API
 * @property {string} label
 * @property {string} help
 * @property {string} accept
 * @property {(stored: any) => string} count describes what was stored
 * @property {(file: File, name: string) => Promise<any>} [send] stores the file, if its content alone is not the body
 */

/**
 * What an installed package stores at that path of the API, if there is one.
 * @param {string} where @param {AbortSignal} aborted @returns {Promise<Kind | undefined>}
 */
export async function uploadTo(where, aborted) {
  const { items } = await get("uploads", {}, aborted);
  const found = /** @type {import("../api_types").UploadOut[]} */ (items).find((each) => each.path === `/${where}`);
  return (
    found && {
      where,
      label: found.label,
      help: found.help,
      accept: found.accept,
      count: (stored) => counted(stored[`${found.noun}s`], found.noun),
    }
  );
}
/** @type {Kind} */
export const DEMONSTRATIONS = {
  where: "demonstrations",
  label: "Upload demonstrations",
  help: "JSON Lines in OpenAI's form for fine-tuning: a conversation a line, with its tools.",
  accept: ".jsonl,.json,.txt",
  count: (stored) => counted(stored.count, "demonstration"),
};

/**
 * Upload a file as a new version of the data set with its name.
 * @param {{kind: Kind, done: (name: string) => void}} props
 */
export function Upload({ kind, done }) {
  const [state, setState] = useState(/** @type {{isBusy?: boolean, error?: Error, said?: string}} */ ({}));
  /** @param {Event & {currentTarget: HTMLInputElement}} event */
  async function chosen(event) {
    const file = event.currentTarget.files?.[0];
    if (!file) return;
    const name =
      file.name
        .replace(/\.[^.]*$/, "")
        .replace(/[^A-Za-z0-9_-]+/g, "-")
        .replace(/^-+|-+$/g, "")
        .toLowerCase() || "data";
    setState({ isBusy: true });
    try {
      const stored = await (kind.send?.(file, name) ?? request("POST", url(kind.where, { name }), { raw: file }));
      setState({ said: `Stored ${kind.count(stored)} as ${stored.name}, version ${stored.version}.` });
      done(stored.name);
    } catch (error) {
      setState({ error: /** @type {Error} */ (error) });
    }
  }
  return html`<label class="field upload"><span>${kind.label}</span>
    <input type="file" accept=${kind.accept} disabled=${state.isBusy} onChange=${chosen} />
    <span class="help">${kind.help}</span>
    ${state.isBusy && html`<span role="status">Uploading …</span>`}
    ${state.said && html`<span role="status">${label(state.said, 200)}</span>`}
    ${state.error && html`<span class="wrong" role="alert">${label(state.error.message, 400)}</span>`}
  </label>`;
}
