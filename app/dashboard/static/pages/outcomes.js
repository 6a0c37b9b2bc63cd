// How a run's rollouts end and what their rewards are made of, over the iterations; and the filters for its rollouts.

import { counted, inWords, number, percent } from "../format.js";
import { Chart } from "../parts/chart.js";
import { html } from "../parts/html.js";
import { label } from "../parts/text.js";

/** @typedef {import("../api_types").Outcomes} Outcomes */
/** @typedef {Partial<Record<"success" | "end" | "part" | "tool" | "text", string>>} Filters */

const _NAMES = /** @type {(keyof Filters)[]} */ (["success", "end", "part", "tool", "text"]);
const _COLORS = ["series-1", "series-2", "series-3", "series-4", "series-5", "series-6", "muted", "warn", "bad"];
const _HEIGHT = 150;
/** Where the charts do not push the rollouts off the screen. */
const _ROOM = "(min-width: 46rem)";
/** What the service calls rare names together. */
const _RARE = "other";

/** The filters that the address names. @param {URLSearchParams} query @returns {Filters} */
export const filtersOf = (query) =>
  Object.fromEntries(_NAMES.flatMap((name) => (query.get(name) ? [[name, query.get(name)]] : [])));

/** @param {{outcomes: Outcomes}} props */
export function OutcomeCharts({ outcomes: { every, iterations, ends, parts } }) {
  if (iterations.length < 2) return null;
  const made = iterations.map((_, index) => ends.reduce((sum, { counts }) => sum + counts[index], 0));
  const shared = every > 1 ? `; each point stands for ${counted(every, "iteration")}` : "";
  const span = /** @type {[number, number]} */ ([iterations[0], iterations[iterations.length - 1]]);
  const endLines = ends.map(({ end, counts }, index) => ({
    label: named(end),
    color: _COLORS[index],
    values: counts.map((count, at) => count / made[at]),
  }));
  const partLines = parts.map(({ part, means }, index) => ({
    label: named(part),
    color: _COLORS[index],
    values: means,
  }));
  return html`<details class="outcomes" open=${matchMedia(_ROOM).matches}>
    <summary>How rollouts end and what their rewards are made of, over the iterations</summary>
    <div class="charts two">
    <${Chart} title="How rollouts end" note=${`share of rollouts by how they ended${shared}`} x=${iterations}
      span=${span} range=${[0, 1]} format=${percent} height=${_HEIGHT} lines=${endLines} />
    <${Chart} title="What rewards are made of" note=${`mean of each part of the reward${shared}`} x=${iterations}
      span=${span} format=${number} height=${_HEIGHT} lines=${partLines} />
    </div></details>`;
}

/** @param {string} name */
const named = (name) => label(inWords(name || "not said"), 40);

/**
 * @param {{filters: Filters, outcomes: Outcomes | undefined, change: (more: Filters) => void, clear: () => void}} props
 */
export function RolloutFilters({ filters, outcomes, change, clear }) {
  /** @param {keyof Filters} name @param {string} title @param {string[][]} choices */
  const choice = (name, title, choices) => html`<label class="field"><span>${title}</span>
    <select onChange=${(/** @type {any} */ event) => change({ [name]: event.target.value })}>
      <option value="" selected=${!filters[name]}>any</option>
      ${withChosen(choices, filters[name]).map(
        ([value, text]) => html`<option value=${value} selected=${filters[name] === value}>${text}</option>`,
      )}
    </select></label>`;
  /**
   * @param {keyof Filters} name @param {string} title @param {string} placeholder
   * @param {string} type a search is where the key "/" leads
   */
  const text = (name, title, type, placeholder) => html`<label class="field"><span>${title}</span>
    <input type=${type} value=${filters[name] ?? ""} placeholder=${placeholder}
      onChange=${(/** @type {any} */ event) => change({ [name]: event.target.value.trim() })} /></label>`;
  const known = (/** @type {string[]} */ names) =>
    names.filter((each) => each && each !== _RARE).map((each) => [each, named(each)]);
  const isOpen = matchMedia(_ROOM).matches || Object.keys(filters).length > 0;
  return html`<details class="more-filters" open=${isOpen}><summary>Filters</summary>
  <div class="filters rollout-filters" role="group" aria-label="Rollouts to show">
    ${choice("success", "Success", [
      ["true", "✓ yes"],
      ["false", "✗ no"],
    ])}
    ${choice("end", "Ended", known(outcomes?.ends.map((each) => each.end) ?? []))}
    ${choice("part", "Reward part", known(outcomes?.parts.map((each) => each.part) ?? []))}
    ${text("tool", "Called tool", "text", "any")}
    ${text("text", "Text", "search", "in messages and calls")}
    ${Object.keys(filters).length > 0 && html`<button onClick=${clear}>Clear filters</button>`}
  </div></details>`;
}

/**
 * The choices, and what the address has chosen if it is none of them.
 * @param {string[][]} choices @param {string | undefined} chosen
 */
const withChosen = (choices, chosen) =>
  chosen && !choices.some(([value]) => value === chosen) ? [...choices, [chosen, named(chosen)]] : choices;
