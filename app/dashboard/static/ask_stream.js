// Asks an agent: streams its messages, then returns the answer.

import { ApiError, needsKey, url } from "./api.js";

/** @typedef {import("./parts/conversation.js").Message} Message */
/** @typedef {import("./api_types").AskOut} Answer */

/**
 * @param {Record<string, unknown>} task
 * @param {(message: Message) => void} said
 * @param {AbortSignal} aborted
 * @returns {Promise<Answer>}
 */
export async function ask(task, said, aborted) {
  const headers = { Accept: "text/event-stream", "Content-Type": "application/json" };
  const response = await fetch(url("ask"), { method: "POST", headers, body: JSON.stringify(task), signal: aborted });
  if (!response.ok || !response.body) {
    if (response.status === 401) needsKey.value = true;
    const problem = await response.json().catch(() => ({}));
    const where = (problem.errors ?? []).map((/** @type {any} */ each) => each.msg).join("; ");
    throw new ApiError(response.status, where || problem.detail || response.statusText, problem.errors);
  }
  for await (const { event, data } of eventsOf(response.body)) {
    if (event === "message") said(data);
    if (event === "answer") return data;
    if (event === "error") throw new ApiError(data.status, data.detail);
  }
  throw new ApiError(0, "The connection was lost before there was an answer.");
}

/** @param {ReadableStream<Uint8Array>} body */
async function* eventsOf(body) {
  const reader = body.pipeThrough(/** @type {any} */ (new TextDecoderStream())).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop() ?? "";
    for (const block of blocks) {
      const lines = Object.fromEntries(block.split("\n").map((line) => line.split(/: (.*)/s, 2)));
      if (lines.data) yield { event: lines.event, data: JSON.parse(lines.data) };
    }
  }
}
