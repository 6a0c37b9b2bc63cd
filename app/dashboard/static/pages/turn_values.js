// Which turn decided a rollout: the value of the state before each turn, the search for the decisive one, and the
// rollout's what-ifs.

import { all, get, path, post } from "../api.js";
import { ago, counted, signed } from "../format.js";
import { Action } from "../parts/action.js";
import { isOpen, Share } from "../parts/evaluation.js";
import { html } from "../parts/html.js";
import { useLoaded, useReload } from "../parts/states.js";
import { Status } from "../parts/status.js";
import { visible } from "../parts/text.js";
import { href } from "../router.js";

/** @typedef {import("../api_types").TurnValues} Values */
/** @typedef {import("../api_types").WhatIfBrief} Brief */
/** @typedef {{values: Values, whatIfs: Brief[]}} Known */

/**
 * The what-ifs of a rollout and what they say of its turns, read again until all have ended.
 * @param {string} id of its trajectory
 */
export function useWhatIfs(id) {
  const state = useLoaded(
    async (aborted) => {
      const [values, whatIfs] = await Promise.all([
        get(path`trajectories/${id}/turn-values`, {}, aborted),
        all(path`trajectories/${id}/what-ifs`, {}, { aborted, most: 400 }),
      ]);
      return /** @type {Known} */ ({ values, whatIfs });
    },
    [id],
  );
  useReload(state, Boolean(state.data?.whatIfs.some(isOpen)));
  return state;
}

/** @param {{id: string, known: Known, reload: () => void}} props */
export function DecisiveTurn({ id, known: { values, whatIfs }, reload }) {
  /** @param {Record<string, unknown>} asked */
  const ask = async (asked) => (await post(path`trajectories/${id}/what-if`, asked), reload());
  const isSearching = whatIfs.some((each) => each.search && isOpen(each));
  return html`<section class="card" aria-labelledby="decisive"><h2 id="decisive">Which turn decided it?</h2>
    ${
      values.values.length > 0
        ? html`<p class=${values.decisive ? "decided" : ""}>${visible(values.text)}</p>
          <${MissingButton} values=${values} disabled=${whatIfs.some(isOpen)} ask=${ask} />
        <${Strip} values=${values} />`
        : html`<p class="muted">Continuations from before a turn show how likely success still was. Where that${" "}
          falls or rises, a turn decided the rollout.</p>`
    }
    <div class="actions"><${Action} label=${isSearching ? "Searching …" : "Find the decisive turn"}
        disabled=${isSearching} act=${() => ask({ search: "bisect" })} /></div>
    ${
      whatIfs.length > 0 &&
      html`<h3>What-ifs of this rollout</h3><ul class="what-ifs">
      ${whatIfs.map(
        (each) => html`<li key=${each.evaluation_id}>
          <a href=${href(["trajectories", id, "what-if", each.evaluation_id])}>${whatIfTitle(each)}</a>
        ${each.status !== "completed" && html`<${Status} status=${each.status} />`}
        <span class="muted small" title=${ago(each.created_at)}>
          ${isOpen(each) ? `${each.done} of ${each.total}` : counted(each.done, "continuation")}</span></li>`,
      )}
    </ul>`
    }
  </section>`;
}

/** Most continuations that one request makes from a turn. */
const _MOST = 64;

/**
 * Asks for the continuations that would tell whether a turn decided it, before each of its two states.
 * @param {{values: Values, disabled: boolean, ask: (asked: Record<string, unknown>) => Promise<void>}} props
 */
function MissingButton({ values: { missing, missing_before: turns }, disabled, ask }) {
  if (missing === null) return null;
  const samples = Math.min(missing, _MOST);
  async function askAll() {
    // Continuations of the default seed would be those that are counted already.
    for (const turn of turns) await ask({ turn, samples, seed: Math.floor(Math.random() * 2 ** 31) });
  }
  return html`<div class="actions">
    <${Action} label=${`Make ${counted(samples, "more continuation")}`} disabled=${disabled} act=${askAll} />
    <span class="muted small">from before turn ${turns.join(" and turn ")}</span></div>`;
}

/** What was asked. @param {{turns: number[], search: string | null, edited: boolean}} whatIf */
export function whatIfTitle({ turns, search, edited }) {
  if (search) return search === "all" ? "All turns" : "Search for the decisive turn";
  return `From turn ${turns[0]}${edited ? ", edited" : ""}`;
}

/** Success from the state before each turn, and the rollout's own result at the end. @param {{values: Values}} props */
export function Strip({ values: { values, turns, success, decisive, credits } }) {
  const rows = Array.from({ length: turns }, (_, index) => index + 1);
  return html`
    <table class="turn-values"><caption class="unseen">
        Share of continuations that succeed, by the turn that they begin with</caption>
    <thead><tr><th scope="col">Before</th><th scope="col">Success from there</th>
        <th scope="col" class="num">Credit</th></tr></thead>
    <tbody>${rows.map((turn) => {
      const value = values.find((each) => each.turn === turn);
      const credit = credits.find((each) => each.turn === turn);
      const isDecisive = decisive?.turn === turn;
      return html`<tr key=${turn} class=${isDecisive ? "decisive" : ""}>
        <th scope="row">turn ${turn}</th>
        <td>${
          value
            ? html`<${Share} interval=${value.success} of=${value.count} />`
            : html`<span class="muted">not continued</span>`
        }</td>
        <td class="num">${
          credit &&
          html`<span class=${tone(credit.points)}
            title=${`${points(credit.points.low)} to ${points(credit.points.high)} points`}>
            ${points(credit.points.mean)}</span>`
        }
          ${isDecisive && html`<span class="mark-here">decisive</span>`}</td>
      </tr>`;
    })}
      <tr><th scope="row">Result</th>
        <td colspan="2">${
          success === null ? "not known" : success ? html`<span class="good">✓ success</span>` : "✗ no success"
        }</td></tr>
    </tbody></table>
    <p class="muted small">Credit: by how many percentage points the turn changed the chance of success.</p>`;
}

/** @param {{low: number, high: number}} interval */
const tone = ({ low, high }) => (low > 0 ? "good" : high < 0 ? "bad-ink" : "muted");

/** @param {number} value percentage points */
const points = (value) => signed(value, 0);
