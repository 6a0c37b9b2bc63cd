// Whether the service is ready, checked periodically.

import { useEffect, useState } from "../vendor/hooks.js";
import { url } from "../api.js";
import { html } from "./html.js";

const _EVERY_MS = 15_000;

/** Read the readiness. A status such as 503 means that the service is not ready, and is not an error here. */
async function readiness() {
  const response = await fetch(url("health/ready")).catch(() => null);
  return response ? /** @type {import("../api_types").Readiness} */ (await response.json()) : null;
}

export function ServiceState() {
  const [state, setState] = useState(/** @type {Awaited<ReturnType<typeof readiness>> | undefined} */ (undefined));
  useEffect(() => {
    const look = () => void readiness().then(setState, () => setState(null));
    look();
    const timer = setInterval(look, _EVERY_MS);
    return () => clearInterval(timer);
  }, []);
  if (state === undefined) return null;
  const tone = state === null ? "bad" : state.status === "ready" ? "good" : "warn";
  const said = state === null ? "not reachable" : state.status === "ready" ? "ready" : `${state.status} (engine ${state.engine})`;
  return html`<span class=${`service ${tone}`} role="status">Service ${said}</span>`;
}
