// What the owner of a run says about it: its star, its tags, whether it is the baseline, and a form for all but the
// star.

import { useState } from "../vendor/hooks.js";
import { all, patch, path } from "../api.js";
import { may } from "../session.js";
import { TAG, unpinOthers } from "./baseline.js";
import { Dialog } from "./dialog.js";
import { html } from "./html.js";
import { Refusal } from "./refusal.js";
import { nameOf } from "./run_name.js";
import { label } from "./text.js";

/**
 * @typedef {Pick<import("../api_types").RunListed, "run_id" | "environment" | "name" | "model" | "tags" | "notes" |
 *   "starred">} Edited
 */

/** @param {{run: Edited, changed: () => unknown}} props */
export function Star({ run, changed }) {
  const star = async () => (await patch(path`runs/${run.run_id}`, { starred: !run.starred }), changed());
  const title = run.starred ? "Starred" : "Star it";
  return html`<button class="star quiet" aria-pressed=${run.starred} aria-label=${`Star ${nameOf(run)}`} title=${title}
    disabled=${!may("write")} onClick=${star}>${run.starred ? "★" : "☆"}</button>`;
}

/**
 * Stars all runs of the same settings, or none if all are.
 * @param {{run: import("../api_types").RunListed, changed: () => unknown}} props
 */
export function StarAll({ run: { settings_hash, same_settings: same, ...newest }, changed }) {
  const isStarred = same !== null && same.starred === same.runs;
  async function star() {
    const runs = await all("runs", { settings_hash });
    await Promise.all(runs.map((each) => patch(path`runs/${each.run_id}`, { starred: !isStarred })));
    changed();
  }
  return html`<button class="star quiet" aria-pressed=${isStarred} aria-label=${`Star all like ${nameOf(newest)}`}
      title=${isStarred ? "All are starred" : "Star all of them"}
    disabled=${!may("write")} onClick=${star}>${isStarred ? "★" : "☆"}</button>`;
}

/** @param {{tags: string[]}} props */
export const Tags = ({ tags }) =>
  html`${tags.map((tag) => html`<span class="tag" key=${tag}>${label(tag, 40)}</span>`)}`;

/** A button that opens the form. @param {{run: Edited, changed: () => unknown, children?: any}} props */
export function EditRun({ run, changed, children = "✎" }) {
  const [isOpen, setOpen] = useState(false);
  if (!may("write")) return null;
  return html`<button class="quiet" aria-label=${`Edit ${nameOf(run)}`} title="Name, tags and notes"
      onClick=${() => setOpen(true)}>${children}</button>
    ${isOpen && html`<${Form} run=${run} changed=${changed} close=${() => setOpen(false)} />`}`;
}

/** @param {{run: Edited, changed: () => unknown, close: () => void}} props */
function Form({ run, changed, close }) {
  const [state, setState] = useState(/** @type {{isBusy?: boolean, error?: Error}} */ ({}));
  /** @param {any} event @param {() => void} leave */
  async function submit(event, leave) {
    event.preventDefault();
    const given = new FormData(event.currentTarget);
    const [name, tags, notes] = ["name", "tags", "notes"].map((field) => String(given.get(field)).trim());
    const words = new Set(tags.split(/[\s,]+/).filter(Boolean));
    if (given.has("baseline")) words.add(TAG);
    setState({ isBusy: true });
    try {
      await patch(path`runs/${run.run_id}`, { name: name || null, tags: [...words], notes });
      if (words.has(TAG)) await unpinOthers(run);
      await changed();
      leave();
    } catch (error) {
      setState({ error: /** @type {Error} */ (error) });
    }
  }
  return html`<${Dialog} title="Name, tags and notes" close=${close}>${(/** @type {() => void} */ leave) => html`
    <form onSubmit=${(/** @type {any} */ event) => submit(event, leave)}>
      <label class="field"><span>Name</span>
        <input name="name" defaultValue=${run.name ?? ""} maxlength="100" autocomplete="off"
          placeholder=${nameOf({ ...run, name: null })} /></label>
      <label class="field"><span>Tags</span>
        <input name="tags" defaultValue=${run.tags.filter((tag) => tag !== TAG).join(" ")} autocomplete="off"
          placeholder="separated by spaces" /></label>
      <label class="field"><span>Notes</span><textarea name="notes" maxlength="10000">${run.notes}</textarea></label>
      <label class="check"><input type="checkbox" name="baseline"
          defaultChecked=${run.tags.includes(TAG)} /> Baseline: a thin line in the charts of other runs</label>
      ${state.error && html`<${Refusal} error=${state.error} />`}
      <div class="answers"><button type="button" onClick=${leave}>Cancel</button>
        <button class="primary" disabled=${state.isBusy}>Save</button></div>
    </form>`}<//>`;
}
