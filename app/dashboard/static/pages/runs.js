// All runs: what each one trains, its progress, and whether it learns.

import { useEffect, useState } from "../vendor/hooks.js";
import { get } from "../api.js";
import { ago, compact, counted, dollars } from "../format.js";
import { html } from "../parts/html.js";
import { Sparkline } from "../parts/sparkline.js";
import { Empty, Failed, Loading } from "../parts/states.js";
import { Progress, Status } from "../parts/status.js";
import { label } from "../parts/text.js";
import { Headline, Verdict } from "../parts/verdict.js";
import { go, href, refine } from "../router.js";

const _STATUSES = ["queued", "running", "paused", "completed", "failed", "cancelled"];
const _EVERY_MS = 4000;
const _COMPARED = 6;

/** @typedef {import("../api_types").RunListed} Run */

/** @param {{query: URLSearchParams}} props */
export function Runs({ query }) {
  const status = query.get("status") ?? "";
  const search = query.get("search") ?? "";
  const list = useRuns(status, search);
  const [chosen, setChosen] = useState(/** @type {Set<string>} */ (new Set()));
  /** @param {string} id */
  function choose(id) {
    const next = new Set(chosen);
    if (!next.delete(id)) next.add(id);
    setChosen(next);
  }
  return html`
    <div class="title-row"><h1>Runs</h1><a class="button primary" href=${href(["start"])}>Start a run</a></div>
    <div class="filters" role="search">
      <label class="field"><span>Search</span>
        <input type="search" value=${search} placeholder="model, environment, judge or id"
          onInput=${(/** @type {any} */ event) => refine({ status, search: event.target.value })} /></label>
      <label class="field"><span>Status</span>
        <select value=${status} onChange=${(/** @type {any} */ event) => refine({ search, status: event.target.value })}>
          <option value="">all</option>
          ${_STATUSES.map((each) => html`<option value=${each}>${each}</option>`)}
        </select></label>
      <button disabled=${chosen.size < 2 || chosen.size > _COMPARED} onClick=${() => go(["compare"], { runs: [...chosen].join(",") })}>
        Compare ${chosen.size > 0 ? counted(chosen.size, "run") : "runs"}
      </button>
      <span class="muted" role="status">${comparable(chosen.size)}</span>
    </div>
    ${body(list, chosen, choose, Boolean(status || search))}`;
}

/** Why the marked runs cannot be compared. @param {number} marked */
function comparable(marked) {
  if (marked === 1) return "Mark another run to compare it with.";
  return marked > _COMPARED ? `At most ${_COMPARED} runs can be compared: unmark ${marked - _COMPARED}.` : "";
}

/**
 * The newest runs, refreshed while the page is open, and older ones on request.
 * @param {string} status
 * @param {string} search
 */
function useRuns(status, search) {
  const [state, setState] = useState(/** @type {{runs?: Run[], next?: string | null, error?: Error}} */ ({}));
  const query = { status, search: search.trim(), curve: 32, limit: 50 };
  useEffect(() => {
    const controller = new AbortController();
    async function read() {
      try {
        const page = await get("runs", query, controller.signal);
        setState(({ runs = [], next }) => {
          const last = page.items.at(-1)?.run_id ?? "";
          const older = page.next_cursor ? runs.filter((run) => run.run_id < last) : [];
          return { runs: [...page.items, ...older], next: older.length > 0 ? next : page.next_cursor };
        });
      } catch (error) {
        if (!controller.signal.aborted) setState((before) => ({ ...before, error: /** @type {Error} */ (error) }));
      }
    }
    setState({});
    read();
    const timer = setInterval(() => document.hidden || read(), _EVERY_MS);
    return () => {
      controller.abort();
      clearInterval(timer);
    };
  }, [status, search]);
  async function more() {
    const page = await get("runs", { ...query, cursor: state.next });
    setState(({ runs = [] }) => ({ runs: [...runs, ...page.items], next: page.next_cursor }));
  }
  return { ...state, more };
}

/**
 * @param {ReturnType<typeof useRuns>} list
 * @param {Set<string>} chosen
 * @param {(id: string) => void} choose
 * @param {boolean} isFiltered
 */
function body({ runs, next, error, more }, chosen, choose, isFiltered) {
  if (!runs) return error ? html`<${Failed} error=${error} />` : html`<${Loading} rows=${6} />`;
  if (runs.length === 0) return isFiltered ? html`<${Empty} title="No run fits these filters" />` : html`<${Welcome} />`;
  return html`
    ${error && html`<${Failed} error=${error} />`}
    <ul class="runs" aria-label="Runs, newest first">
      ${runs.map((run) => html`<${Row} key=${run.run_id} run=${run} isChosen=${chosen.has(run.run_id)} choose=${choose} />`)}
    </ul>
    ${next && html`<p class="more"><button onClick=${more}>Show older runs</button></p>`}`;
}

/** @param {{run: Run, isChosen: boolean, choose: (id: string) => void}} props */
function Row({ run, isChosen, choose }) {
  const { progress, model } = run;
  const tokens = run.tokens.prompt + run.tokens.completion;
  const name = `${model.project}/${model.name}`;
  return html`<li class="run">
    <input type="checkbox" aria-label=${`Compare ${label(name)}`} checked=${isChosen} onChange=${() => choose(run.run_id)} />
    <a class="run-name" href=${href(["runs", run.run_id])}>
      <strong title=${label(name)}>${label(name)}</strong>
      <span class="muted">${label(run.environment)} · ${label(run.judge)} · ${ago(run.created_at)}</span>
    </a>
    <${Status} status=${run.status} />
    <span class="run-progress">
      <${Progress} done=${progress.iterations_done} total=${progress.iterations_total} label="Iterations" />
      <span class="muted">${progress.iterations_done} of ${counted(progress.iterations_total, "iteration")}</span>
    </span>
    <span class="run-curve"><span class="unseen">Mean reward </span><${Sparkline} values=${run.curve ?? []} /></span>
    <span class="run-figure"><strong><${Headline} verdict=${run.verdict} /></strong>
      <span class="muted">held-out success</span></span>
    <span class="run-figure">
      <strong>${tokens > 0 ? compact(tokens) : "–"}</strong>
      <span class="muted">tokens${run.judge_usd > 0 && html` · ${dollars(run.judge_usd)}`}</span>
    </span>
    <${Verdict} verdict=${run.verdict} as="span" />
    ${run.error && html`<span class="run-error wrong">${label(run.error, 200)}</span>`}
  </li>`;
}

function Welcome() {
  return html`<${Empty} title="No runs yet">
    <p>
      A run makes an agent better at its job: it attempts tasks many times, a judge compares the rollouts of each task, and
      the model is trained to do more of what went better. Everything runs on this machine.
    </p>
    <p><a class="button primary" href=${href(["start"])}>Start a run</a></p>
  <//>`;
}
