// Whether the service is ready, checked periodically, and more often while it is not.

import { useEffect } from "../vendor/hooks.js";
import { signal } from "../vendor/signals.js";
import { url } from "../api.js";
import { html } from "./html.js";

const _EVERY_MS = 15_000;
const _UNTIL_READY_MS = 5_000;

/** What the service last said of itself: undefined before the first reply, null while it is not reachable. */
export const readiness = signal(/** @type {import("../api_types").Readiness | null | undefined} */ (undefined));

/** Read the readiness. A status such as 503 means that the service is not ready, and is not an error here. */
async function look() {
  try {
    readiness.value = await (await fetch(url("health/ready"))).json();
  } catch {
    readiness.value = null;
  }
}

export function ServiceState() {
  const state = readiness.value;
  const isReady = state?.status === "ready";
  useEffect(() => {
    if (state === undefined) look();
    const timer = setInterval(look, isReady ? _EVERY_MS : _UNTIL_READY_MS);
    return () => clearInterval(timer);
  }, [isReady]);
  if (state === undefined) return null;
  const tone = state === null ? "bad" : state.status === "ready" ? "good" : "warn";
  const said =
    state === null ? "not reachable" : state.status === "ready" ? "ready" : `${state.status} (engine ${state.engine})`;
  return html`<span class=${`service ${tone}`} role="status">Service ${said}</span>`;
}
