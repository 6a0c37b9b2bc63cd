// A recorded conversation: the agent's input, its replies and tool calls, and their results.

import { html } from "./html.js";
import { label, Text } from "./text.js";
import { Tokens } from "./tokens.js";

/**
 * @typedef {object} Message in OpenAI's format
 * @property {string} role
 * @property {string | null} [content]
 * @property {{id?: string, function: {name: string, arguments: string}}[]} [tool_calls]
 */
/** @typedef {import("../api_types").SampledTurn} Turn */

const _WHO = /** @type {Record<string, string>} */ ({
  system: "Instructions",
  user: "Task",
  assistant: "Agent",
  tool: "Result",
});

/**
 * @param {{messages: Message[], turns?: Turn[], atReply?: (place: number) => any}} props `turns`: show these tokens
 *   instead
 *   of the text parsed from them; `atReply`: what is shown in addition at a reply of the agent, by its place
 */
export function Conversation({ messages, turns, atReply }) {
  return html`<ol class="conversation">
    ${messages.map((message, place) => {
      const turn = turns?.find((each) => each.message === place);
      return html`<li key=${place} class=${`message ${_WHO[message.role] ? message.role : ""}`}>
        <${MessageBody} message=${message} turn=${turn} />
        ${message.role === "assistant" && atReply?.(place)}
      </li>`;
    })}
  </ol>`;
}

/** @param {{message: Message, turn?: Turn}} props */
function MessageBody({ message, turn }) {
  const who = _WHO[message.role] ?? label(message.role, 40);
  if (message.role === "system")
    return html`<details><summary>${who}</summary><${Text} as="p" value=${message.content} /></details>`;
  return html`<h3 class="who">${who}</h3>${
    turn ? html`<${Tokens} turn=${turn} />` : html`<${Said} message=${message} />`
  }`;
}

/** @param {{message: Message}} props */
export function Said({ message }) {
  return html`
    ${message.content && html`<${Text} as="p" value=${message.content} />`}
    ${(message.tool_calls ?? []).map(
      (call) => html`<${Call} name=${call.function?.name} given=${call.function?.arguments} />`,
    )}`;
}

/** A tool call, written like a function call. @param {{name: string, given: string}} props */
function Call({ name, given }) {
  return html`<p class="call"><strong>${label(name, 120)}</strong>(
    <${Text} value=${inner(given)} limit=${2000} />)</p>`;
}

/** @param {string} given the arguments as JSON */
function inner(given) {
  try {
    const value = JSON.parse(given);
    if (value === null || typeof value !== "object" || Array.isArray(value)) return given;
    return Object.entries(value)
      .map(([name, each]) => `${name}: ${JSON.stringify(each)}`)
      .join(", ");
  } catch {
    return String(given ?? "");
  }
}
