// What the engine of the service is doing now, in one line: device, memory, tokens a second, queue.

import { useEffect, useState } from "../vendor/hooks.js";
import { get } from "../api.js";
import { compact, NONE, percent, whole } from "../format.js";
import { html } from "./html.js";
import { label } from "./text.js";

/** @typedef {import("../api_types").EngineOut} Engine */

const _EVERY_MS = 2000;
/** Rates are of about the last ten seconds. */
const _KEPT = 6;

/** The latest answers of the engine since it started, oldest first. */
function useEngine() {
  const [answers, setAnswers] = useState(/** @type {Engine[]} */ ([]));
  useEffect(() => {
    const controller = new AbortController();
    async function read() {
      const found = /** @type {Engine} */ (await get("engine", {}, controller.signal));
      setAnswers((before) => {
        const same = before.filter(
          (each) => each.uptime_s !== null && found.uptime_s !== null && each.uptime_s < found.uptime_s,
        );
        return [...same, found].slice(-_KEPT);
      });
    }
    const look = () => document.hidden || read().catch(() => {}); // the service's state is shown elsewhere
    look();
    const timer = setInterval(look, _EVERY_MS);
    return () => {
      controller.abort();
      clearInterval(timer);
    };
  }, []);
  return answers;
}

export function EngineStrip() {
  const answers = useEngine();
  const [first, now] = [answers[0], answers.at(-1)];
  if (!now) return html`<div class="engine"></div>`; // keeps the place
  /**
   * How much a counter grew in a second.
   * @param {"sampled_tokens" | "prefilled_tokens" | "sampling_s" | "training_s"} name
   */
  const rate = (name) => {
    const [before, after, seconds] = [first[name], now[name], (now.uptime_s ?? 0) - (first.uptime_s ?? 0)];
    return before === null || after === null || seconds <= 0 ? null : (after - before) / seconds;
  };
  const [sampling, training] = [rate("sampling_s"), rate("training_s")];
  const busy =
    sampling === null || training === null
      ? NONE
      : `${percent(Math.min(1, sampling))} sampling, ${percent(Math.min(1, training))} training`;
  return html`<dl class="engine" aria-label="Engine">
    ${now.devices.map((each) => html`<div><dt>${label(each.name, 40)}</dt><dd>${memoryOf(each)}</dd></div>`)}
    <div><dt>Sampled</dt><dd>${compact(rate("sampled_tokens"))} tokens/s</dd></div>
    <div><dt>Prompts</dt><dd>${compact(rate("prefilled_tokens"))} tokens/s</dd></div>
    <div><dt>Batch</dt><dd>${whole(now.batch_size)}${" "}
        <span class="muted">+ ${whole(now.requests_waiting)} waiting</span></dd></div>
    <div><dt>Busy</dt><dd>${busy}</dd></div>
    ${!["ready", "shared"].includes(now.state) && html`<div><dt>Engine</dt><dd>${now.state}</dd></div>`}
  </dl>`;
}

/** @param {Engine["devices"][number]} device */
function memoryOf({ memory_used_bytes: used, memory_total_bytes: total }) {
  if (used === null || total === null) return "memory not known";
  return html`${gigabytes(used)} <span class="muted">of ${gigabytes(total)} GB</span>`;
}

/** @param {number} bytes */
const gigabytes = (bytes) => (bytes / 1e9).toFixed(bytes < 1e10 ? 1 : 0);
