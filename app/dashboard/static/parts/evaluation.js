// What pages of evaluations share: reading one until it has ended, its commands and progress, and figures with
// intervals.

import { get, path, post, remove } from "../api.js";
import { percent } from "../format.js";
import { Action } from "./action.js";
import { html } from "./html.js";
import { useLoaded, useReload } from "./states.js";
import { Progress, Status } from "./status.js";
import { Text } from "./text.js";

/** @typedef {import("../api_types").EvaluationOut} Evaluation */
/** @typedef {import("../api_types").IntervalOut} Interval */

const _OPEN = new Set(["queued", "running"]);

/** Whether an evaluation has not ended. @param {{status: string}} evaluation */
export const isOpen = ({ status }) => _OPEN.has(status);

/** An evaluation, read again until it has ended. @param {string} id */
export function useEvaluation(id) {
  const state = useLoaded(
    (aborted) => /** @type {Promise<Evaluation>} */ (get(path`evaluations/${id}`, {}, aborted)),
    [id],
  );
  useReload(state, state.data !== undefined && isOpen(state.data));
  return state;
}

/**
 * Its title, status, commands and progress, and why it waits or has failed.
 * @param {{evaluation: Evaluation, title: any, unit: string, question: string, reload: () => void, gone: () => void,
 *   children?: any}} props
 *   `unit`: what is counted; `question`: asked before it is deleted; `gone` is called once it was; `children`: further
 *   commands
 */
export function EvaluationHead({ evaluation, title, unit, question, reload, gone, children }) {
  const { evaluation_id: id, status, done, total } = evaluation;
  /** @param {string} verb */
  const command = (verb) => async () => (await post(`${path`evaluations/${id}`}/${verb}`), reload());
  return html`<div class="title-row"><h1>${title} <${Status} status=${status} /></h1>
      <div class="actions">
        ${isOpen(evaluation) && html`<${Action} label="Cancel" act=${command("cancel")} />`}
        ${
          ["failed", "cancelled"].includes(status) &&
          html`<${Action} label="Resume" kind="primary" act=${command("resume")} />`
        }
        ${children}
        ${
          !isOpen(evaluation) &&
          html`<${Action} label="Delete" kind="danger" confirm=${question}
            act=${async () => (await remove(path`evaluations/${id}`), gone())} />`
        }
      </div></div>
    ${
      isOpen(evaluation) &&
      html`<${Progress} done=${done} total=${total} label="Progress" />
      <p class="muted" role="status">${done} of ${total} ${unit}</p>`
    }
    ${
      evaluation.wait_reason &&
      html`<section class="notice warn"><${Text} as="p" value=${evaluation.wait_reason} limit=${400} /></section>`
    }
    ${
      evaluation.error &&
      html`<section class="notice bad" role="alert"><${Text} as="p" value=${evaluation.error} limit=${800} /></section>`
    }`;
}

/**
 * A share with its confidence interval as a bar.
 * @param {{interval: Interval | null, of?: number}} props `of`: the sample size
 */
export function Share({ interval, of }) {
  if (!interval) return html`<span class="muted">–</span>`;
  const at = (/** @type {number} */ share) => `${Math.max(0, Math.min(1, share)) * 100}%`;
  return html`<span class="share"><span class="track" aria-hidden="true">
      <span class="range" style=${{ left: at(interval.low), right: at(1 - interval.high) }}></span>
      <span class="mean" style=${{ left: at(interval.mean) }}></span></span>
    <span>${percent(interval.mean)} <span class="muted">
        ${percent(interval.low)} to ${percent(interval.high)}${of !== undefined && ` of ${of}`}</span></span></span>`;
}

/** @param {Interval | null} interval @param {(value: number) => string} format */
export function ranged(interval, format) {
  return interval
    ? html`${format(interval.mean)} <span class="muted">${format(interval.low)} to ${format(interval.high)}</span>`
    : html`<span class="muted">–</span>`;
}
