// The parts of a prompt, with what differs from another one's.

import { get, path } from "../api.js";
import { html } from "./html.js";
import { Loaded, useLoaded } from "./states.js";
import { label, Text, visible } from "./text.js";

/** @typedef {{before: string[], after: string[], isSame: boolean}} Block lines or words of two texts */

/** The texts of a prompt by part; none for `-`. @param {string} sha256 @param {AbortSignal} aborted */
const partsOf = async (sha256, aborted) =>
  sha256 === "-" ? {} : (await get(path`prompts/${sha256}`, {}, aborted)).prompt.parts;

/** Largest product of two lengths that are compared item by item. */
const _MOST = 4_000_000;
const _WORDS = /\s+|[\p{L}\p{N}_]+|[^\s\p{L}\p{N}_]/gu;

/**
 * What two lists have in common and what not, in order: a longest common subsequence.
 * @param {string[]} one @param {string[]} other @returns {Block[]}
 */
function blocksOf(one, other) {
  const blocks = /** @type {Block[]} */ ([]);
  /** @param {string[]} before @param {string[]} after */
  function add(before, after, isSame = false) {
    if (before.length + after.length === 0) return;
    if (blocks.at(-1)?.isSame !== isSame) blocks.push({ before: [], after: [], isSame });
    blocks.at(-1)?.before.push(...before);
    blocks.at(-1)?.after.push(...after);
  }
  const width = other.length + 1;
  let [row, column] = [0, 0];
  if (one.length * other.length <= _MOST) {
    const common = new Uint16Array((one.length + 1) * width);
    for (let line = one.length - 1; line >= 0; line--)
      for (let place = other.length - 1; place >= 0; place--) {
        const at = line * width + place;
        common[at] =
          one[line] === other[place] ? common[at + width + 1] + 1 : Math.max(common[at + width], common[at + 1]);
      }
    while (row < one.length && column < other.length) {
      const at = row * width + column;
      if (one[row] === other[column]) add([one[row++]], [other[column++]], true);
      else if (common[at + width] >= common[at + 1]) add([one[row++]], []);
      else add([], [other[column++]]);
    }
  }
  add(one.slice(row), other.slice(column));
  return blocks;
}

/**
 * A line, in which the words that the other one lacks are marked.
 * @param {Block[]} blocks @param {"before" | "after"} side
 */
const marked = (blocks, side) =>
  blocks.map(({ [side]: words, isSame }) => {
    const text = visible(words.join(""));
    if (isSame || text === "") return text;
    return side === "before" ? html`<del>${text}</del>` : html`<ins>${text}</ins>`;
  });

/** @param {string | undefined} line */
const wordsOf = (line) => line?.match(_WORDS) ?? [];

/** Two texts next to each other, line by line; one column on a phone. @param {{before: string, after: string}} props */
function Diff({ before, after }) {
  const lines = blocksOf(before.split("\n"), after.split("\n")).flatMap(({ before, after, isSame }) =>
    Array.from({ length: Math.max(before.length, after.length) }, (_, index) =>
      isSame ? same(before[index]) : changed(before[index], after[index]),
    ),
  );
  return html`<div class="diff text" dir="auto">${lines}</div>`;
}

/** @param {string} line */
const same = (line) =>
  html`<div>${visible(line) || "\n"}</div><div class="again" aria-hidden="true">${visible(line) || "\n"}</div>`;

/** @param {string | undefined} before @param {string | undefined} after */
function changed(before, after) {
  const blocks = blocksOf(wordsOf(before), wordsOf(after));
  return html`<div class=${before === undefined ? "" : "removed"}>${marked(blocks, "before")}</div>
    <div class=${after === undefined ? "" : "added"}>${marked(blocks, "after")}</div>`;
}

/** The parts of a prompt, and how they differ from another one's. @param {{before: string, after: string}} props */
export function Compared({ before, after }) {
  const hashes = [before, after];
  const state = useLoaded((aborted) => Promise.all(hashes.map((each) => partsOf(each, aborted))), hashes);
  return html`<${Loaded} state=${state}>${(/** @type {Record<string, string>[]} */ [old, texts]) =>
    html`<${PromptParts} before=${old} after=${texts} />`}<//>`;
}

/** @param {{before: Record<string, string>, after: Record<string, string>}} props texts by part */
const PromptParts = ({ before, after }) =>
  Object.keys({ ...before, ...after }).map((name) => {
    const [old, text] = [before[name], after[name]];
    const news = old === undefined ? "new" : text === undefined ? "no longer replaced" : old === text ? "" : "changed";
    return html`<section class="card" key=${name}>
      <h2><code>${label(name, 140)}</code> <span class="muted">${news}</span></h2>
      ${
        news === "changed"
          ? html`<${Diff} before=${old} after=${text} />`
          : html`<${Text} as="pre" class="code" value=${text ?? old} limit=${20_000} />`
      }</section>`;
  });
