// What a run learned: its held-out scenarios over the evaluated checkpoints, and what the agent does differently since.

import { useEffect, useRef } from "../vendor/hooks.js";
import { get, path } from "../api.js";
import { counted, percent, signed, whole } from "../format.js";
import { html } from "../parts/html.js";
import { Empty, Loaded, useLoaded } from "../parts/states.js";
import { Sideways } from "../parts/strip.js";
import { label } from "../parts/text.js";
import { described, evaluationsOf, HeldOutSwitch, kindOf } from "../parts/verdict.js";
import { href, refine } from "../router.js";
import { Player } from "./film_player.js";
import { taskOf } from "./trajectories.js";

/** @typedef {import("../api_types").FilmOut} Film */
/** @typedef {Film["checkpoints"][number]} Checkpoint */
/** @typedef {Film["scenarios"][number]} Scenario */
/** @typedef {Scenario["trend"]} Trend */
/** @typedef {import("../api_types").RunOut} Run */
/** @typedef {import("../parts/verdict.js").Kind} Kind */
/**
 * @typedef {object} View
 * @property {Run} run
 * @property {Kind} kind
 * @property {Film} film
 * @property {Scenario[]} shown
 * @property {Scenario | undefined} scenario
 * @property {number} at index of the checkpoint
 * @property {string | null} trend
 */

/** Height of the table's head and foot, which stay in place. */
const _EDGE_PX = 30;
/** @type {{trend: Trend, title: string}[]} */
const _TRENDS = [
  { trend: "known", title: "Right before and after" },
  { trend: "learned", title: "Learned" },
  { trend: "lost", title: "Learned and lost" },
  { trend: "changed", title: "Changed" },
  { trend: "got_worse", title: "Got worse" },
  { trend: "never", title: "Never right" },
];

/** In the address, the scenarios that the best checkpoint does not always answer right. */
const _FAILING = "failing";

/**
 * Whether a rollout of the best checkpoint, or of the last one if the best is not among them, was wrong.
 * @param {Run} run @param {Film} film @param {Scenario} scenario
 */
function isFailing({ best_checkpoint: best }, { checkpoints }, { right, rollouts }) {
  const index = checkpoints.findLastIndex((checkpoint) => checkpoint.step === best?.step);
  const at = index === -1 ? checkpoints.length - 1 : index;
  return right[at] < rollouts[at];
}

/** @param {import("./run.js").PartProps} props */
export function HeldOut({ run, query }) {
  const kind = kindOf(run, query);
  const evaluated = evaluationsOf(run, kind).length;
  const state = useLoaded(
    (aborted) => get(path`runs/${run.run_id}/film`, { split: kind.split, mode: kind.mode }, aborted),
    [run.run_id, kind.name, evaluated],
  );
  return html`<${HeldOutSwitch} run=${run} query=${query} />
    <${Loaded} state=${state} rows=${6}>${(/** @type {Film} */ film) => {
      if (film.checkpoints.length === 0)
        return html`<${Empty} title="No held-out evaluation yet"><p>The baseline comes first.</p><//>`;
      if (film.scenarios.length === 0)
        return html`<${Empty} title="No rollouts to watch">
          <p>${
            run.pruned.trajectories
              ? "They were deleted: this service keeps them for some days only."
              : "None of these evaluations is kept."
          }</p><//>`;
      return html`<${Behaviours} film=${film} /><${FilmOf} ...${viewOf(run, kind, film, query)} />`;
    }}<//>`;
}

/**
 * What the address shows of a film.
 * @param {Run} run @param {Kind} kind @param {Film} film @param {URLSearchParams} query @returns {View}
 */
function viewOf(run, kind, film, query) {
  const trend = query.get("trend");
  const shown = film.scenarios.filter(
    (scenario) => !trend || (trend === _FAILING ? isFailing(run, film, scenario) : scenario.trend === trend),
  );
  const named = shown.find((each) => each.scenario_id === query.get("scenario"));
  const last = film.checkpoints.length - 1;
  const at = film.checkpoints.findIndex((each) => String(each.step) === query.get("step"));
  return {
    run,
    kind,
    film,
    shown,
    scenario: named ?? shown.find((each) => each.trend === "learned") ?? shown[0],
    at: at === -1 ? last : at,
    trend,
  };
}

/** @param {View} view @param {{scenario?: Scenario, at?: number, trend?: string | null}} change */
function show(view, { scenario = view.scenario, at = view.at, trend = view.trend }) {
  refine({ held: view.kind.name, trend, scenario: scenario?.scenario_id, step: view.film.checkpoints[at].step });
}

/** @param {{film: Film}} props */
function Behaviours({ film: { behaviours, behaviours_compared: compared, checkpoints } }) {
  if (checkpoints.length < 2) return null;
  return html`<section class="card behaviours"><h2>What it does differently</h2>
    ${
      behaviours.length === 0
        ? html`<p class="muted">Nothing that chance could not explain: ${counted(compared, "feature")} of its tool${" "}
          calls and of how rollouts end ${compared === 1 ? "was" : "were"} compared between${" "}
          the first and the last evaluation.</p>`
        : html`<ul>${behaviours.map(
            (
              each,
            ) => html`<li><strong>${percent(each.before)} <span aria-label="to">→</span> ${percent(each.after)}</strong>
            <span><${Named} text=${each.what} /> <span class="muted">
                ${signed(each.points.mean, 0)} points, 95% interval ${signed(each.points.low, 0)} to${" "}
                ${signed(each.points.high, 0)}</span></span></li>`,
          )}</ul>
        <p class="muted small">Shares of rollouts in the first and in the last evaluation, paired by scenario:${" "}
          what changed most of ${counted(compared, "feature")} of tool calls and endings.</p>`
    }
  </section>`;
}

/** A text in which the names of tools stand in backticks. @param {{text: string}} props */
const Named = ({ text }) =>
  html`${text.split("`").map((part, index) => (index % 2 ? html`<code>${label(part, 60)}</code>` : label(part, 200)))}`;

/** @param {View} view */
function FilmOf(view) {
  const { film, shown, scenario, at } = view;
  const keyed = (/** @type {KeyboardEvent} */ event) => {
    const [target, step] = [/** @type {HTMLElement} */ (event.target), _KEYS[event.key]];
    if (
      !step ||
      event.altKey ||
      event.ctrlKey ||
      event.metaKey ||
      target.closest("input, select, textarea, .side-by-side")
    )
      return;
    event.preventDefault();
    const [along, down] = step;
    const row = scenario ? shown.indexOf(scenario) : 0;
    show(view, {
      at: bounded(at + along, film.checkpoints.length),
      scenario: shown[bounded(row + down, shown.length)],
    });
  };
  return html`<div class="film" onKeyDown=${keyed}>
    <section class="card"><h2>${filmTitle(view)}</h2>
      <${Trends} ...${view} />
      ${shown.length === 0 ? html`<p class="muted">No scenario is of this kind.</p>` : html`<${Matrix} ...${view} />`}
      <p class="muted small">The agent never trains on them. A bar is the share of a checkpoint's rollouts that${" "}
        were right. Choose one to watch it; ← and → go through the checkpoints, ↑ and ↓ through the scenarios.</p>
    </section>
    ${
      scenario &&
      html`<${Player} run=${view.run} kind=${view.kind} film=${film} scenario=${scenario}
        title=${taskOf(asTrajectory(scenario))} at=${at} go=${(/** @type {number} */ to) => show(view, { at: to })} />`
    }
  </div>`;
}

/** @type {Record<string, [number, number]>} */
const _KEYS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

/** @param {number} index @param {number} count */
const bounded = (index, count) => Math.max(0, Math.min(count - 1, index));

/** @param {View} view */
function filmTitle({ film, kind }) {
  const { checkpoints, checkpoints_total: evaluated, scenarios, scenarios_total: total } = film;
  const some = scenarios.length < total ? `${whole(scenarios.length)} of ` : "";
  const made =
    checkpoints.length < evaluated
      ? `${checkpoints.length} of ${counted(evaluated, "checkpoint")}`
      : counted(evaluated, "checkpoint");
  return html`${some}${described(kind, total)} <span class="muted">by ${made}, sorted by when they were learned</span>`;
}

/** Shows one trend only. @param {View} view */
function Trends(view) {
  const counts = Map.groupBy(view.film.scenarios, (each) => each.trend);
  const failing = view.film.scenarios.filter((scenario) => isFailing(view.run, view.film, scenario)).length;
  const shows = (/** @type {string | null} */ trend) => show(view, { trend, scenario: undefined });
  return html`<div class="switch" role="group" aria-label="Scenarios to show">
    <button aria-pressed=${!view.trend} onClick=${() => shows(null)}>All ${whole(view.film.scenarios.length)}</button>
    ${_TRENDS
      .filter(({ trend }) => counts.has(trend) || trend === view.trend)
      .map(
        ({ trend, title }) =>
          html`<button key=${trend} aria-pressed=${view.trend === trend} onClick=${() => shows(trend)}>${title}${" "}
            ${whole(counts.get(trend)?.length ?? 0)}</button>`,
      )}
    <button aria-pressed=${view.trend === _FAILING} onClick=${() => shows(_FAILING)}
      title="Scenarios with a wrong rollout of the best checkpoint">Still wrong ${whole(failing)}</button>
  </div>`;
}

/** @param {View} view */
function Matrix(view) {
  const { run, film, shown, scenario, at } = view;
  const chosen = useRef(/** @type {HTMLTableRowElement | null} */ (null));
  useEffect(() => {
    const [row, box] = [
      chosen.current,
      /** @type {HTMLElement | null | undefined} */ (chosen.current?.closest(".film-box")),
    ];
    if (!row || !box) return;
    // An arrow key leads on from there.
    if (box.contains(document.activeElement)) row.querySelector("a")?.focus({ preventScroll: true });
    const [shown, edges] = [row.getBoundingClientRect(), box.getBoundingClientRect()];
    const isCut = shown.top < edges.top + _EDGE_PX || shown.bottom > edges.bottom - _EDGE_PX;
    if (isCut) box.scrollTop += shown.top - edges.top - edges.height / 2; // only the table scrolls, not the page
  }, [scenario?.scenario_id, view.trend]);
  const place = (/** @type {Scenario} */ each) =>
    href(["runs", run.run_id, "held-out"], {
      held: view.kind.name,
      trend: view.trend,
      scenario: each.scenario_id,
      step: film.checkpoints[at].step,
    });
  const groups = _TRENDS
    .map(({ trend, title }) => ({ title, rows: shown.filter((each) => each.trend === trend) }))
    .filter(({ rows }) => rows.length > 0);
  return html`<${Sideways} class="film-box" label="Scenarios by checkpoints"><table class="matrix">
    <thead><tr><th scope="col">Scenario</th>${film.checkpoints.map(
      (each, index) => html`<th scope="col" class=${index === at ? "now" : ""}>${headOf(each, run)}</th>`,
    )}</tr></thead>
    ${groups.map(
      ({ title, rows }) => html`<tbody key=${title}>
      <tr class="trend"><th scope="rowgroup" colspan=${film.checkpoints.length + 1}>${title}</th></tr>
      ${rows.map(
        (each) => html`<tr key=${each.scenario_id} ref=${each === scenario ? chosen : undefined}
          class=${each === scenario ? "chosen" : ""}>
        <th scope="row"><a href=${place(each)} aria-current=${each === scenario ? "true" : undefined}
            onClick=${(/** @type {MouseEvent} */ event) => chose(event, view, { scenario: each })}>
            ${label(taskOf(asTrajectory(each)), 160)}</a></th>
        ${each.rollouts.map(
          (made, index) =>
            html`<td class=${index === at ? "now" : ""}
              onClick=${(/** @type {MouseEvent} */ event) => chose(event, view, { scenario: each, at: index })}>
              <${Share} right=${each.right[index]} made=${made} /></td>`,
        )}
      </tr>`,
      )}
    </tbody>`,
    )}
    <tfoot><tr><th scope="row">All</th>${film.checkpoints.map(
      (each) => html`<td>${percent(each.success)}</td>`,
    )}</tr></tfoot>
  </table><//>`;
}

/** @param {MouseEvent} event @param {View} view @param {{scenario?: Scenario, at?: number}} change */
function chose(event, view, change) {
  if (event.metaKey || event.ctrlKey || event.shiftKey) return; // opened elsewhere
  event.preventDefault();
  show(view, change);
}

/** @param {Scenario} scenario */
const asTrajectory = ({ scenario_id: id, task }) => ({ scenario_id: id, scenario: { task } });

/** @param {Checkpoint} checkpoint @param {Run} run */
const headOf = ({ iteration, step }, run) =>
  html`${iteration === 0 ? "Before" : step}${
    step === run.best_checkpoint?.step && html`<span title="best checkpoint" aria-label=", the best">★</span>`
  }`;

/** @param {{right: number, made: number}} props */
function Share({ right, made }) {
  if (made === 0) return html`<span class="muted">–</span>`;
  return html`<span class="cell" role="img" aria-label=${`${right} of ${made} right`}
      title=${`${right} of ${made} right`} style=${{ "--share": right / made }}></span>`;
}
