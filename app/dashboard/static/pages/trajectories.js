// The trajectories of a run: one iteration's by group, or all in one list.

import { useMemo } from "../vendor/hooks.js";
import { all, get, path } from "../api.js";
import { compact, counted, ending, number, whole } from "../format.js";
import { html } from "../parts/html.js";
import { Signed, Spread } from "../parts/reward.js";
import { Empty, Loaded, Loading, useLoaded } from "../parts/states.js";
import { LongTable } from "../parts/table.js";
import { label, Text, visible } from "../parts/text.js";
import { href, refine } from "../router.js";
import { ENDED } from "../run_data.js";
import { useAllPages } from "./all_pages.js";
import { FinishedRollouts } from "./finished_rollouts.js";
import { filtersOf, OutcomeCharts, RolloutFilters } from "./outcomes.js";

/** @typedef {import("../api_types").TrajectoryBrief} Brief */

const _KINDS = /** @type {Record<string, string>} */ ({
  train: "training rollouts",
  evaluation: "held-out evaluations",
  showcase: "sample emails",
  ask: "asked questions",
});

/** @param {import("./run.js").PartProps} props */
export function RunTrajectories({ data, run, query }) {
  const kind = query.get("kind") ?? "train";
  const done = data.iterations.value.at(-1)?.iteration ?? 0;
  const chosen = query.get("iteration") ?? (kind === "train" ? String(done) : "all");
  const filters = filtersOf(query);
  const change = (/** @type {Record<string, string>} */ more) =>
    refine({ kind, iteration: chosen, ...filters, ...more });
  const outcomes = useLoaded(
    (aborted) => get(path`runs/${run.run_id}/outcomes`, { kind }, aborted),
    [run.run_id, kind, done],
  );
  if (run.pruned.trajectories)
    return html`<${Empty} title="The trajectories were deleted"><p>This service keeps them for some days only.</p><//>`;
  const isFiltered = Object.keys(filters).length > 0;
  const isGrouped = kind === "train" && chosen !== "all" && !isFiltered;
  return html`
    <h2 class="unseen">Trajectories</h2>
    <div class="filters">
      <label class="field"><span>Made for</span>
        <select value=${kind} onChange=${(/** @type {any} */ event) => refine({ kind: event.target.value })}>
          ${Object.entries(_KINDS).map(
            ([name, title]) => html`<option value=${name} selected=${name === kind}>${title}</option>`,
          )}
        </select></label>
      ${
        kind !== "ask" &&
        html`<${IterationChoice} chosen=${chosen} last=${done} first=${kind === "train" ? 1 : 0} change=${change} />`
      }
    </div>
    <${RolloutFilters} filters=${filters} outcomes=${outcomes.data} change=${change}
      clear=${() => refine({ kind, iteration: chosen })} />
    ${!isFiltered && outcomes.data && html`<${OutcomeCharts} outcomes=${outcomes.data} />`}
    ${!ENDED.has(run.status) && html`<${FinishedRollouts} runId=${run.run_id} />`}
    ${
      isGrouped
        ? done === 0 && chosen === "0"
          ? html`<${Empty} title="No training rollouts yet">
            <p>The untrained model is being evaluated first. Its rollouts are above as they finish.</p><//>`
          : html`<${Groups} runId=${run.run_id} iteration=${Number(chosen)} />`
        : html`<${AllOf} runId=${run.run_id} kind=${kind}
          iteration=${chosen === "all" ? null : Number(chosen)} filters=${filters} />`
    }`;
}

/** @param {{chosen: string, first: number, last: number, change: (more: Record<string, string>) => void}} props */
function IterationChoice({ chosen, first, last, change }) {
  const number = chosen === "all" ? last : Number(chosen);
  const to = (/** @type {number} */ next) => change({ iteration: String(Math.min(last, Math.max(first, next))) });
  return html`<div class="field"><label for="iteration">Iteration</label>
    <div class="stepper">
      <button aria-label="Previous iteration" disabled=${number <= first || chosen === "all"}
        onClick=${() => to(number - 1)}>‹</button>
      <input id="iteration" type="number" min=${first} max=${last}
        value=${chosen === "all" ? "" : chosen} placeholder="all"
        onChange=${(/** @type {any} */ event) =>
          event.target.value === "" ? change({ iteration: "all" }) : to(Number(event.target.value))} />
      <button aria-label="Next iteration" disabled=${number >= last || chosen === "all"}
        onClick=${() => to(number + 1)}>›</button>
      <button class="quiet" aria-pressed=${chosen === "all"}
        onClick=${() => change({ iteration: chosen === "all" ? String(last) : "all" })}>All</button>
    </div></div>`;
}

/** The groups of an iteration. @param {{runId: string, iteration: number}} props */
function Groups({ runId, iteration }) {
  const query = { kind: "train", iteration };
  const state = useLoaded(
    (aborted) => all(path`runs/${runId}/trajectories`, query, { aborted, most: 5000 }),
    [runId, iteration],
  );
  return html`<${Loaded} state=${state} rows=${6}>${(/** @type {Brief[]} */ found) => {
    if (found.length === 0) return html`<${Empty} title="This iteration has no training rollouts" />`;
    const rewards = found.map((each) => each.reward).filter((reward) => reward !== null);
    const [low, high] = [Math.min(...rewards), Math.max(...rewards)];
    const groups = [...Map.groupBy(found, (each) => each.scenario_id)];
    return html`<p class="muted">${counted(groups.length, "group")} of${" "}
        ${counted(found.length / groups.length, "rollout")}. Within each group,
        what is above the mean is reinforced and what is below it is discouraged: that is the advantage.</p>
      <div class="groups">${groups.map(
        ([id, members]) => html`<${Group} key=${id} runId=${runId} members=${members} low=${low} high=${high} />`,
      )}</div>`;
  }}<//>`;
}

/** @param {{runId: string, members: Brief[], low: number, high: number}} props */
function Group({ runId, members, low, high }) {
  const [first] = members;
  const sorted = [...members].sort((one, other) => (other.reward ?? -Infinity) - (one.reward ?? -Infinity));
  const hasSignal = new Set(members.map((each) => each.reward)).size > 1;
  return html`<section class="card group">
    <h3><${Text} value=${taskOf(first)} limit=${240} /></h3>
    <div class="group-head">
      <${Spread} values=${members.map((each) => each.reward)} low=${low} high=${high} />
      <a href=${href(["runs", runId, "group"], {
        iteration: first.iteration,
        scenario: first.scenario_id,
      })}>Side by side</a>
    </div>
    ${!hasSignal && html`<p class="wrong-soft">All rewards are alike: this group taught nothing.</p>`}
    ${
      first.replaces &&
      html`<p class="muted">It replaces the group of <${Text} value=${first.replaces}
          limit=${80} />, which taught nothing. Figures of the iteration leave it out.</p>`
    }
    ${
      !first.replaces &&
      (first.inclusion ?? 1) < 1 &&
      html`<p class="muted">Drawn with a probability of ${number(first.inclusion)}. Figures of the iteration weigh
        it by the inverse.</p>`
    }
    <ul class="rollouts">${[...Map.groupBy(sorted, likeness).values()].map(
      ([each, ...others]) => html`<li key=${each.id}>
      <a href=${href(["runs", runId, "trajectories", each.id])}>
        <span class=${each.success ? "good" : "muted"}
          aria-label=${each.success ? "success" : "no success"}>${each.success ? "✓" : "✗"}</span>
        <span class="num">${number(each.reward)}</span>
        <${Signed} value=${each.advantage} />
        <span class="muted end">${
          others.length > 0 &&
          html`<strong title="rollouts with the same outcome and the same number of tokens">
            ${others.length + 1} ×</strong> `
        }${visible(ending(each))}, ${counted(each.turns, "turn")}</span>
      </a></li>`,
    )}</ul>
  </section>`;
}

/**
 * The same text for rollouts that are as good as the same; only their messages would say it for certain.
 * @param {Brief} rollout
 */
const likeness = ({ outcome, reward, advantage, error, prompt_tokens: read, completion_tokens: written }) =>
  JSON.stringify([outcome, reward, advantage, error, read, written]);

/** The agent's task in one line. @param {{scenario: Record<string, any>, scenario_id: string}} trajectory */
export function taskOf({ scenario, scenario_id: id }) {
  const task = scenario?.task ?? {};
  if (task.question) return task.question;
  if (task.prospect) return `Write to ${task.prospect} at ${task.company}: ${task.goal ?? ""}`;
  return Object.keys(task).length > 0 ? JSON.stringify(task) : id;
}

/** @param {{runId: string, kind: string, iteration: number | null, filters: import("./outcomes.js").Filters}} props */
function AllOf({ runId, kind, iteration, filters }) {
  const { items, isWhole, error } = useAllPages(path`runs/${runId}/trajectories`, { kind, iteration, ...filters });
  const rows = useMemo(
    () => [...items].sort((one, other) => (other.reward ?? -Infinity) - (one.reward ?? -Infinity)),
    [items],
  );
  if (error && items.length === 0)
    return html`<${Loaded} state=${{ data: undefined, error, reload: () => {} }}>${() => null}<//>`;
  if (items.length === 0)
    return isWhole
      ? html`<${Empty} title=${Object.keys(filters).length > 0 ? "No rollout is like that" : "None yet"} />`
      : html`<${Loading} rows=${6} />`;
  return html`<p class="muted" role="status">${
    rows.length === 1 ? "1 trajectory" : `${whole(rows.length)} trajectories`
  }, the best reward first${isWhole ? "" : " … loading more"}</p>
    <${LongTable} caption="Trajectories, the best reward first" rows=${rows}
      keyOf="id" height=${620} columns=${columns(runId)} />`;
}

/** @param {string} runId @returns {import("../parts/table.js").Column[]} */
const columns = (runId) => [
  { title: "Reward", by: "reward", isNumber: true, cell: (each) => number(each.reward), width: 100 },
  {
    title: "Task",
    by: taskOf,
    cell: (each) => html`<a href=${href(["runs", runId, "trajectories", each.id])}>${label(taskOf(each), 120)}</a>`,
    width: 340,
  },
  {
    title: "Success",
    by: "success",
    cell: (each) => (each.success === null ? "" : each.success ? html`<span class="good">✓ yes</span>` : "✗ no"),
    width: 104,
  },
  { title: "Advantage", by: "advantage", isNumber: true, cell: (each) => number(each.advantage), width: 124 },
  { title: "Iteration", by: "iteration", isNumber: true, cell: (each) => each.iteration, width: 112 },
  { title: "Split", by: "split", cell: (each) => `${each.split}, ${each.mode}`, width: 140 },
  { title: "Ended", by: "outcome.finish", cell: (each) => visible(ending(/** @type {Brief} */ (each))), width: 120 },
  { title: "Turns", by: "turns", isNumber: true, cell: (each) => each.turns, width: 90 },
  {
    title: "Tokens",
    by: (each) => each.prompt_tokens + each.completion_tokens,
    isNumber: true,
    cell: (each) => compact(each.prompt_tokens + each.completion_tokens),
    width: 100,
  },
];
