// A request to start a run, as a shell command and as Python, for copying.

import { useState } from "../vendor/hooks.js";
import { url } from "../api.js";
import { session } from "../session.js";
import { Copy } from "./action.js";
import { html } from "./html.js";
import { Text } from "./text.js";

/** @param {{body: unknown, target?: string}} props `target` is the path to post to */
export function AsCode({ body, target = "learn-loop" }) {
  const [form, setForm] = useState("curl");
  const keyed = session.value?.key_required ?? false;
  const text = (form === "curl" ? curl : python)(body, url(target), keyed);
  return html`<div class="as-code">
    <div class="tab-buttons" role="group" aria-label="As">
      ${["curl", "Python"].map(
        (each) =>
          html`<button class="quiet" aria-pressed=${form === each} onClick=${() => setForm(each)}>${each}</button>`,
      )}
      <${Copy} text=${text} />
    </div>
    <${Text} as="pre" class="code" value=${text} limit=${8000} />
  </div>`;
}

/** A request as a shell command, for copying. @param {{body: unknown, target: string}} props */
export function AsCurl({ body, target }) {
  const text = curl(body, url(target), session.value?.key_required ?? false);
  return html`<div class="as-code"><${Copy} text=${text} />
    <${Text} as="pre" class="code" value=${text} limit=${2000} /></div>`;
}

/** @param {unknown} body @param {string} address @param {boolean} keyed whether the service requires a key */
function curl(body, address, keyed) {
  const quoted = JSON.stringify(body, null, 2).replaceAll("'", `'\\''`);
  const key = keyed ? `  -H "Authorization: Bearer $LEARNLOOP_API_KEY" \\\n` : "";
  return `curl ${address} \\\n${key}  -H "Content-Type: application/json" \\\n  -d '${quoted}'`;
}

/** @param {unknown} body @param {string} address @param {boolean} keyed */
function python(body, address, keyed) {
  const key = keyed ? `, headers={"Authorization": f"Bearer {os.environ['LEARNLOOP_API_KEY']}"}` : "";
  const send = `reply = httpx.post("${address}", json=body${key})`;
  const imports = `${keyed ? "import os\n\n" : ""}import httpx`;
  return `${imports}\n\nbody = ${literal(body)}\n${send}\nprint(reply.raise_for_status().json()["run_id"])`;
}

/** A JSON value as a Python literal. @param {unknown} value @param {string} [indent] @returns {string} */
function literal(value, indent = "") {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const deeper = `${indent}    `;
  const parts = Array.isArray(value)
    ? value.map((each) => literal(each, deeper))
    : Object.entries(value).map(([name, each]) => `${JSON.stringify(name)}: ${literal(each, deeper)}`);
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  return parts.length === 0 ? open + close : `${open}\n${deeper}${parts.join(`,\n${deeper}`)},\n${indent}${close}`;
}
