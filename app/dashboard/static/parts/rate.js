// Rating an answer or an email: it becomes feedback on its trajectory.

import { useState } from "../vendor/hooks.js";
import { post } from "../api.js";
import { html } from "./html.js";
import { label } from "./text.js";

/** An id of our own, so that a repetition counts once. */
function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return `dashboard-${[...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("")}`;
}

/** @param {{trajectoryId: string}} props */
export function Rate({ trajectoryId }) {
  const [state, setState] = useState(/** @type {{said?: string, error?: Error, isBusy?: boolean}} */ ({}));
  /** @param {"thumbs_up" | "thumbs_down"} type */
  async function rate(type) {
    setState({ isBusy: true });
    try {
      const taken = await post("feedback", { event_id: newId(), type, trajectory_id: trajectoryId });
      if (taken.rejected?.length > 0) throw new Error(taken.rejected[0].detail);
      setState({ said: type === "thumbs_up" ? "Rated good" : "Rated bad" });
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
