// The request that started a run, with all defaults filled in, and how to start it again.

import { useEffect, useState } from "../vendor/hooks.js";
import { AsCode } from "../parts/as_code.js";
import { html } from "../parts/html.js";
import { PromptLink } from "../parts/prompt.js";
import { JsonText, label, Text } from "../parts/text.js";

/** Number of characters of the model's name that the new model's name keeps. */
const _MOST_KEPT = 40;

/**
 * A run's request as it was sent: without what the service found out about its demonstrations.
 * @param {Record<string, any>} stored
 */
export function sent(stored) {
  const { first_scenario: _first, ...more } = stored;
  const request = { ...more, ...(more.prompt && { prompt: more.prompt.sha256 }) };
  if (!request.warm_start) return request;
  const { iterations: _iterations, ...start } = request.warm_start;
  const { name, version, sha256 } = start.demonstrations;
  return {
    ...request,
    warm_start: { ...start, demonstrations: sha256 ? { dataset: `${name}@${version}` } : start.demonstrations },
  };
}

/** @param {import("./run.js").PartProps} props */
export function RunRequest({ run, data }) {
  useEffect(data.readAll, [data]);
  const [again] = useState(() => `${run.model.name.slice(0, _MOST_KEPT)}-${Date.now().toString(36)}`);
  const start = data.iterations.value.find((each) => each.iteration === 0)?.step ?? 0;
  // A run whose model had been trained before began at one of that model's checkpoints.
  const model = {
    ...run.request.model,
    name: again,
    ...(start > 0 && { base_model: `${run.model.project}/${run.model.name}@${start}` }),
  };
  return html`<section class="card">
      <h2>Settings</h2>
      <p>Environment <${Text} value=${run.environment} limit=${80} />, judge${" "}
        <${Text} value=${run.judge} limit=${80} />, backend
        ${" "}<${Text} value=${run.backend} limit=${80} />, base model${" "}
        <${Text} value=${run.model.base_model} limit=${120} />${
          run.request.prompt && html`, prompt <${PromptLink} prompt=${run.request.prompt} />`
        }.</p>
      <${JsonText} value=${run.request} limit=${20_000} />
      ${
        run.reproducible !== null &&
        html`<p>${
          run.reproducible
            ? "The same seed gives the same weights on this machine. "
            : "The same seed may give other weights. "
        }
        <span class="muted"><${Text} value=${run.reproducible_reason} limit=${400} /></span></p>`
      }
    </section>
    <section class="card"><h2>Start it again</h2>
      <p>This begins the new model <code>${label(again)}</code> where this run began. Under the name of a model${" "}
        that exists, a run continues that model.</p>
      <${AsCode} body=${{ ...sent(run.request), model }} /></section>`;
}
