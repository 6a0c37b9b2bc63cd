// Untrusted text: control and direction characters are made visible, and long text is cut.

import { useState } from "../vendor/hooks.js";
import { counted } from "../format.js";
import { html } from "./html.js";

// C0 without tab and newline, DEL, C1; characters that change the direction or have no width; lone surrogates.
const _UNSEEN = new RegExp(
  "[\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f\\u00ad\\u061c\\u180e" +
    "\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f\\ufeff\\ufff9-\\ufffb]" +
    "|[\\ud800-\\udbff](?![\\udc00-\\udfff])|(?<![\\ud800-\\udbff])[\\udc00-\\udfff]",
  "g",
);
const _SHOWN = 4000;

/** The text with invisible characters replaced by visible marks. @param {unknown} text */
export function visible(text) {
  return String(text ?? "").replace(_UNSEEN, (character) => {
    const code = character.charCodeAt(0);
    return code < 0x20 ? String.fromCharCode(0x2400 + code) : `⟨U+${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
  });
}

/** One line of at most `most` characters. @param {unknown} text @param {number} [most] */
export function label(text, most = 80) {
  const line = String(text ?? "").slice(0, most + 1);
  const shown = visible(line.length > most ? line.slice(0, most) : line).replace(/\s+/g, " ");
  return String(text ?? "").length > most ? `${shown}…` : shown;
}

/** Who started something. @param {Record<string, string | null> | null} by */
export const starter = (by) => label([by?.name && `key ${by.name}`, by?.order].filter(Boolean).join(" through "));

/** A stored prompt in a word. @param {{sha256: string, name: string | null, version: number | null}} prompt */
export const promptName = ({ sha256, name, version }) => (name ? `${name}@${version}` : sha256.slice(0, 12));

/**
 * A checkpoint and the prompt that it is served with.
 * @param {string} checkpoint @param {import("../api_types").PromptUsed | null | undefined} prompt
 */
export const served = (checkpoint, prompt) =>
  label(checkpoint, 120) + (prompt ? ` with ${label(promptName(prompt), 80)}` : "");

/**
 * Text of any length; if it was cut, a button shows the rest.
 * @param {{value: unknown, limit?: number, as?: string, class?: string}} props
 */
export function Text({ value, limit = _SHOWN, as = "span", class: name = "" }) {
  const [isWhole, setWhole] = useState(false);
  const text = String(value ?? "");
  const isCut = text.length > limit && !isWhole;
  return html`<${as} class=${`text ${name}`} dir="auto" tabindex=${as === "pre" ? 0 : undefined}>
    ${visible(isCut ? text.slice(0, limit) : text)}${isCut && "… "}
    ${
      isCut &&
      html`<button class="quiet" onClick=${() => setWhole(true)}>Show all ${counted(text.length, "character")}</button>`
    }
  <//>`;
}

/** A JSON value, indented. @param {{value: unknown, limit?: number}} props */
export function JsonText({ value, limit = _SHOWN }) {
  return html`<${Text} as="pre" class="code" value=${JSON.stringify(value, null, 2)} limit=${limit} />`;
}
