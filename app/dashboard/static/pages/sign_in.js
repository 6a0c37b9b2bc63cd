// Asks for an API key if the service requires one, and exchanges it for a cookie that scripts cannot read.

import { useState } from "../vendor/hooks.js";
import { html } from "../parts/html.js";
import { signIn } from "../session.js";

export function SignIn() {
  const [state, setState] = useState(/** @type {{isBusy?: boolean, error?: string}} */ ({}));
  /** @param {SubmitEvent} event */
  async function submit(event) {
    event.preventDefault();
    const form = /** @type {HTMLFormElement} */ (event.currentTarget);
    setState({ isBusy: true });
    try {
      await signIn(String(new FormData(form).get("key")).trim());
    } catch (error) {
      setState({ error: /** @type {Error} */ (error).message });
    }
  }
  return html`<section class="card narrow">
    <h1>Sign in</h1>
    <p>This service requires an API key. <code>learnloop keys create</code> makes one.</p>
    <form onSubmit=${submit}>
      <label class="field"><span>API key</span>
        <input name="key" type="password" autocomplete="off" required spellcheck=${false} placeholder="ll_…" /></label>
      ${state.error && html`<p class="wrong" role="alert">${state.error}</p>`}
      <button class="primary" disabled=${state.isBusy}>Sign in</button>
    </form>
    <p class="muted">The key is kept in a cookie of this site that scripts cannot read, and never in an address.</p>
  </section>`;
}
