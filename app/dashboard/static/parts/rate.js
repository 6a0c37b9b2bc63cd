// Buttons to rate an answer, an email or a session; the rating is sent as feedback.

import { useState } from "../vendor/hooks.js";
import { post } from "../api.js";
import { html } from "./html.js";
import { label } from "./text.js";

/** A new event id, so that a repeated request counts once. */
function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return `dashboard-${[...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("")}`;
}

/**
 * @param {{about: {trajectory_id: string} | {session_id: string}, comment?: string, rated?: () => void}} props
 *   `rated` is called once the rating is stored
 */
export function Rate({ about, comment, rated }) {
  const [state, setState] = useState(/** @type {{said?: string, error?: Error, isBusy?: boolean}} */ ({}));
  /** @param {"thumbs_up" | "thumbs_down"} type */
  async function rate(type) {
    setState({ isBusy: true });
    try {
      const taken = await post("feedback", { event_id: newId(), type, ...about, ...(comment?.trim() && { comment }) });
      if (taken.rejected?.length > 0) throw new Error(taken.rejected[0].detail);
      setState({ said: type === "thumbs_up" ? "Rated good" : "Rated bad" });
      rated?.();
    } catch (error) {
      setState({ error: /** @type {Error} */ (error) });
    }
  }
  return html`<div class="rate" role="group" aria-label="Rate it">
    <button disabled=${state.isBusy} onClick=${() => rate("thumbs_up")}>Good</button>
    <button disabled=${state.isBusy} onClick=${() => rate("thumbs_down")}>Bad</button>
    <span role="status">${state.said && `${state.said}: kept as feedback.`}</span>
    ${state.error && html`<span class="wrong" role="alert">${label(state.error.message, 300)}</span>`}
  </div>`;
}
