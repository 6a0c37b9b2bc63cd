// What the service runs with, and the price of its machine, which can be changed here.

import { useState } from "../vendor/hooks.js";
import { ApiError, get, patch } from "../api.js";
import { dollars } from "../format.js";
import { Field } from "../parts/field.js";
import { html } from "../parts/html.js";
import { Empty, Failed, Loaded, useLoaded } from "../parts/states.js";
import { label, visible } from "../parts/text.js";
import { may } from "../session.js";

/** @typedef {import("../api_types").SettingsOut} Settings */
/** @typedef {import("../api_types").SettingOut} Setting */

const _NAME = "machine_price_per_hour";
const _PRICE = {
  name: _NAME,
  label: "US dollars an hour",
  type: "number",
  placeholder: "no price",
  help: "Empty for no price.",
};

export function SettingsPage() {
  const isAllowed = may("operator");
  const state = useLoaded((aborted) => (isAllowed ? get("settings", {}, aborted) : Promise.resolve()), [isAllowed]);
  if (!isAllowed)
    return html`<h1>Settings</h1>
      <${Empty} title="Your key may not see this">
        <p>Settings need a key with the scope <code>operator</code>, for all projects.</p>
      <//>`;
  return html`<h1>Settings</h1>
    <${Loaded} state=${state}>
      ${(/** @type {Settings} */ settings) => html`<${Price} settings=${settings} changed=${state.set} />
        <${AtStart} settings=${settings} />`}
    <//>`;
}

/** @param {{settings: Settings, changed: (settings: Settings) => void}} props */
function Price({ settings, changed }) {
  const [price, setPrice] = useState(String(settings.machine_price_per_hour ?? ""));
  const [state, setState] = useState(/** @type {{error?: Error, isSaved?: boolean}} */ ({}));
  const faults = state.error instanceof ApiError ? state.error.errors : [];
  /** @param {SubmitEvent} event */
  async function save(event) {
    event.preventDefault();
    try {
      changed(await patch("settings", { [_NAME]: price.trim() ? Number(price) : null }));
      setState({ isSaved: true });
    } catch (error) {
      setState({ error: /** @type {Error} */ (error) });
    }
  }
  return html`<section class="card"><h2>Price of the machine</h2>
    <p class="muted">With a price, runs, lists and reports say what the time of the machine cost. It holds for runs that
      begin from now on: a run keeps its price. Runs that ran before there was one get the first.</p>
    <form onSubmit=${save} novalidate>
      <div class="fields"><${Field} field=${_PRICE} value=${price} set=${setPrice} faults=${faults} /></div>
      ${state.error && faults.length === 0 && html`<${Failed} error=${state.error} />`}
      <button class="primary">Save</button>
      ${state.isSaved && html`<p role="status">${confirmation(settings)}</p>`}
    </form>
    ${
      settings.machine_price_at_start !== null &&
      html`<p class="muted small">The service was started with ${dollars(settings.machine_price_at_start)} an hour, and
        begins with that again (<code>LEARNLOOP_MACHINE_PRICE_PER_HOUR</code>).</p>`
    }
  </section>`;
}

/** @param {Settings} settings */
const confirmation = ({ machine_price_per_hour: price }) =>
  price === null ? "Runs that begin now have no price." : `Runs that begin now cost ${dollars(price)} an hour.`;

/** The line of a file `.env`; a comment for a setting without a value. @param {Setting} setting */
const line = ({ variable, value }) => (value === null ? `# ${variable} is not set` : `${variable}=${value}`);

/** @param {{settings: Settings}} props */
function AtStart({ settings: { version, groups } }) {
  return html`<section class="card"><h2>Read at the start</h2>
    <p class="muted">Learnloop ${label(version)}. These are environment variables, or lines of a file${" "}
      <code>.env</code>, and need a restart to change. Secrets are not shown.</p>
    ${groups.map(
      (group) => html`<h3>${label(group.title)}</h3>
      <pre class="text">${group.items.map((each) => visible(line(each))).join("\n")}</pre>`,
    )}
  </section>`;
}
