// All runs as a table: what each one trains, its progress, and whether it learned.

import { useEffect, useRef, useState } from "../vendor/hooks.js";
import { get } from "../api.js";
import { counted, dollars } from "../format.js";
import { html } from "../parts/html.js";
import { Menu } from "../parts/menu.js";
import { Empty, Failed, Loading } from "../parts/states.js";
import { Table } from "../parts/table.js";
import { go, href, refine } from "../router.js";
import { may } from "../session.js";
import { COLUMNS, columnsOf, DIFFERING, pathsOf, settingsIn, shownColumns, titleOf } from "./run_columns.js";

/** Since when runs were requested, by the number of days in the address. */
const _PERIODS = [
  { days: "", title: "any time" },
  { days: "1", title: "last day" },
  { days: "7", title: "last week" },
];
const _DAY_MS = 86_400_000;
const _STATUSES = ["queued", "running", "paused", "completed", "failed", "cancelled"];
const _EVERY_MS = 4000;
const _COMPARED = 6;
const _PAGE = 50;
const _MOST = 200;
const _APART = "apart";
const _FILTERS = /** @type {const} */ (["search", "status", "tag", "started_by", "days", "starred"]);
const _QUERY = /** @type {const} */ ([..._FILTERS, "sort", "ascending", "seeds"]);

/** @typedef {import("./run_columns.js").Run} Run */
/** @typedef {typeof _QUERY[number]} QueryName */
/** @typedef {Record<QueryName, string>} Asked */

/** What the address asks for. @param {URLSearchParams} query @returns {Asked} */
function asked(query) {
  return /** @type {Asked} */ (Object.fromEntries(_QUERY.map((name) => [name, query.get(name) ?? ""])));
}

/** @param {{query: URLSearchParams}} props */
export function Runs({ query }) {
  const wanted = asked(query);
  const [unfolded, setUnfolded] = useState(/** @type {Set<string>} */ (new Set()));
  const [chosen, setChosen] = useState(/** @type {Set<string>} */ (new Set()));
  const list = useRuns(wanted, unfolded);
  const shown = shownColumns(
    query.get("columns"),
    (list.runs ?? []).some((run) => run.cost_usd !== null),
  );
  const columns = columnsOf(
    {
      chosen,
      choose: (id) => setChosen(toggled(chosen, id)),
      unfolded,
      fold: (hash) => setUnfolded(toggled(unfolded, hash)),
      changed: list.reload,
    },
    shown,
    list.runs ?? [],
  );
  return html`
    <div class="title-row"><h1>Runs</h1><a class="button primary" href=${href(["start"])}>Start a run</a></div>
    <${Filters} query=${query} wanted=${wanted} runs=${list.runs ?? []} shown=${shown}>
      <button disabled=${chosen.size < 2 || chosen.size > _COMPARED}
        onClick=${() => go(["compare"], { runs: [...chosen].join(",") })}>
        Compare ${
          chosen.size > 0
            ? counted(chosen.size, [...chosen].some((key) => key.startsWith("same:")) ? "row" : "run")
            : "runs"
        }
      </button>
      <span class="muted" role="status">${comparable(chosen.size)}</span>
    <//>
    <${Body} list=${list} columns=${columns} query=${query} wanted=${wanted} />`;
}

/** @param {Set<string>} all @param {string} one */
function toggled(all, one) {
  const next = new Set(all);
  if (!next.delete(one)) next.add(one);
  return next;
}

/** Why the marked runs cannot be compared. @param {number} marked */
function comparable(marked) {
  if (marked === 1) return "Mark another run to compare it with.";
  return marked > _COMPARED ? `At most ${_COMPARED} runs can be compared: unmark ${marked - _COMPARED}.` : "";
}

/** Change a part of the address. @param {URLSearchParams} query @param {Record<string, string>} change */
const ask = (query, change) => refine({ ...Object.fromEntries(query), ...change });

/** @param {{query: URLSearchParams, wanted: Asked, runs: Run[], shown: Set<string>, children?: any}} props */
function Filters({ query, wanted, runs, shown, children }) {
  const tags = [...new Set(runs.flatMap((run) => run.tags))].sort();
  const [isStarred, isApart] = [wanted.starred === "true", wanted.seeds === _APART];
  return html`<div class="filters" role="search">
    <label class="field"><span>Search</span>
      <input type="search" aria-keyshortcuts="/" value=${wanted.search}
        placeholder="name, model, tag, environment, judge or id"
        onInput=${(/** @type {any} */ event) => ask(query, { search: event.target.value })} /></label>
    <label class="field"><span>Status</span>
      <select value=${wanted.status}
        onChange=${(/** @type {any} */ event) => ask(query, { status: event.target.value })}>
        <option value="">all</option>
        ${_STATUSES.map((each) => html`<option value=${each}>${each}</option>`)}
      </select></label>
    <label class="field"><span>Tag</span>
      <input class="short" list="run-tags" value=${wanted.tag} placeholder="all" autocomplete="off"
        onChange=${(/** @type {any} */ event) => ask(query, { tag: event.target.value.trim() })} />
      <datalist id="run-tags">${tags.map((tag) => html`<option value=${tag}></option>`)}</datalist></label>
    <label class="field"><span>Started by</span>
      <input class="short" value=${wanted.started_by} placeholder="any key" autocomplete="off"
        onChange=${(/** @type {any} */ event) => ask(query, { started_by: event.target.value.trim() })} /></label>
    <label class="field"><span>Requested</span>
      <select value=${wanted.days} onChange=${(/** @type {any} */ event) => ask(query, { days: event.target.value })}>
        ${_PERIODS.map(({ days, title }) => html`<option value=${days}>${title}</option>`)}
      </select></label>
    <button aria-pressed=${isStarred}
      onClick=${() => ask(query, { starred: isStarred ? "" : "true" })}>★ Starred</button>
    <button aria-pressed=${!isApart} title="Runs that differ only in their seed as one row"
      onClick=${() => ask(query, { seeds: isApart ? "" : _APART })}>Seeds together</button>
    <${Columns} query=${query} runs=${runs} shown=${shown} />
    ${children}
  </div>`;
}

/**
 * Which columns there are: figures, and any settings.
 * @param {{query: URLSearchParams, runs: Run[], shown: Set<string>}} props
 */
function Columns({ query, runs, shown }) {
  const paths = pathsOf(runs);
  const toggle = (/** @type {string} */ name) =>
    ask(query, { columns: [...toggled(shown, name)].filter((each) => each !== "none").join(",") || "none" });
  const settings = settingsIn(shown);
  const offered = [
    { name: DIFFERING, title: "Settings that differ" },
    ...COLUMNS,
    ...settings.map((name) => ({ name, title: titleOf(name) })),
  ];
  /** @param {any} event */
  function add({ target }) {
    if (!paths.includes(target.value) || shown.has(target.value)) return;
    toggle(target.value);
    target.value = "";
  }
  return html`<${Menu} title="Columns">
    ${offered.map(
      ({ name, title }) =>
        html`<label class="check" key=${name}><input type="checkbox" checked=${shown.has(name)}
            onChange=${() => toggle(name)} /> ${title}</label>`,
    )}
    <label class="field"><span>Another setting</span>
      <input list="run-settings" placeholder="such as max_turns" autocomplete="off" onChange=${add} />
      <datalist id="run-settings">${paths.map((name) => html`<option value=${name}></option>`)}</datalist></label>
  <//>`;
}

/**
 * The runs that are asked for, read again while the page is open, with those of the unfolded entries after them.
 * @param {Asked} wanted
 * @param {Set<string>} unfolded
 */
function useRuns({ search, status, tag, started_by, days, starred, sort, ascending, seeds }, unfolded) {
  const [state, setState] = useState(
    /** @type {{runs?: Run[], isWhole?: boolean, error?: Error, asked?: string}} */ ({}),
  );
  const [most, setMost] = useState(_PAGE);
  const reload = useRef(async () => {});
  const filters = { search: search.trim(), status, tag, started_by, starred, curve: 32, settings: "true" };
  const order = { sort, ascending, fold: seeds === _APART ? "" : "true" };
  const asked = JSON.stringify([filters, order, days]);
  useEffect(() => setMost(_PAGE), [asked]);
  useEffect(() => {
    const controller = new AbortController();
    reload.current = async () => {
      try {
        const period = { ...filters, since: sinceOf(days) };
        const { runs, isWhole } = await readRuns({ ...period, ...order }, most, controller.signal);
        const members = await Promise.all(
          runs
            .filter((run) => run.same_settings && unfolded.has(run.settings_hash))
            .map((run) =>
              get("runs", { ...period, settings_hash: run.settings_hash, limit: _MOST }, controller.signal),
            ),
        );
        const found = new Map(members.map(({ items }) => [items[0]?.settings_hash, items]));
        const within = (/** @type {Run} */ run) =>
          (found.get(run.settings_hash) ?? []).map((/** @type {Run} */ each) => ({ ...each, isMember: true }));
        setState({ runs: runs.flatMap((run) => [run, ...within(run)]), isWhole, asked });
      } catch (error) {
        if (!controller.signal.aborted) setState((before) => ({ ...before, error: /** @type {Error} */ (error) }));
      }
    };
    reload.current();
    const timer = setInterval(() => document.hidden || reload.current(), _EVERY_MS);
    return () => {
      controller.abort();
      clearInterval(timer);
    };
  }, [asked, most, unfolded]);
  // The rows before are shown meanwhile, so that the focus stays.
  const isLoading = state.asked !== asked && !state.error;
  return { ...state, isLoading, more: () => setMost(most + _PAGE), reload: () => reload.current() };
}

/** The time that lies a number of days ago; empty without a number. @param {string} days */
const sinceOf = (days) => (Number(days) > 0 ? new Date(Date.now() - Number(days) * _DAY_MS).toISOString() : "");

/**
 * The first runs of a list.
 * @param {Record<string, string | number>} query @param {number} most @param {AbortSignal} aborted
 * @returns {Promise<{runs: Run[], isWhole: boolean}>}
 */
async function readRuns(query, most, aborted) {
  /** @type {Run[]} */
  const runs = [];
  for (let cursor; ; ) {
    const page = await get("runs", { ...query, cursor, limit: Math.min(_MOST, most - runs.length) }, aborted);
    runs.push(...page.items);
    cursor = page.next_cursor;
    if (!cursor || runs.length >= most) return { runs, isWhole: !cursor };
  }
}

/**
 * @param {{list: ReturnType<typeof useRuns>, columns: import("../parts/table.js").Column[], query: URLSearchParams,
 *   wanted: Asked}} props
 */
function Body({ list: { runs, isWhole, isLoading, error, more }, columns, query, wanted }) {
  if (!runs || (runs.length === 0 && isLoading))
    return error ? html`<${Failed} error=${error} />` : html`<${Loading} rows=${6} />`;
  const isFiltered = _FILTERS.some((name) => wanted[name]);
  if (runs.length === 0)
    return isFiltered ? html`<${Empty} title="No run fits these filters" />` : html`<${Welcome} />`;
  const sorted = columns.find((column) => column.by === wanted.sort);
  const order = sorted && { title: sorted.title, isDown: wanted.ascending !== "true" };
  /** @param {import("../parts/table.js").Order | undefined} next */
  function sort(next) {
    const by = columns.find((column) => column.title === next?.title)?.by;
    ask(query, { sort: typeof by === "string" ? by : "", ascending: next && !next.isDown ? "true" : "" });
  }
  return html`
    ${error && html`<${Failed} error=${error} />`}
    <${Table} caption="Runs" class="runs" columns=${columns} rows=${runs} order=${order} sort=${sort}
      keyOf=${(/** @type {Run} */ run) => run.run_id + (run.same_settings ? "+" : "")}
      toneOf=${(/** @type {Run} */ run) => (run.same_settings ? "run several" : run.isMember ? "run member" : "run")} />
    ${isWhole && html`<${Sum} runs=${runs} />`}
    ${!isWhole && html`<p class="more"><button onClick=${more}>Show more runs</button></p>`}`;
}

/** What all listed runs have cost. @param {{runs: Run[]}} props */
function Sum({ runs }) {
  const entries = runs.filter((run) => !run.isMember);
  const costs = entries
    .map((run) => (run.same_settings ? run.same_settings.cost_usd : run.cost_usd))
    .filter((cost) => cost !== null);
  const count = entries.reduce((sum, run) => sum + (run.same_settings?.runs ?? 1), 0);
  const total = costs.reduce((sum, cost) => sum + cost, 0);
  return (
    costs.length > 0 && html`<p class="sum">${counted(count, "run")}, <strong>${dollars(total)}</strong> in all</p>`
  );
}

function Welcome() {
  return html`<${Empty} title="No runs yet">
    <p>
      A run makes an agent better at its job: it attempts tasks many times, a judge${" "}
      compares the rollouts of each task, and
      the model is trained to do more of what went better. Everything runs on this machine.
    </p>
    <p><a class="button primary" href=${href(["start"])}>Start a run</a></p>
    ${
      may("operator") &&
      html`<p class="muted">Say in the <a href=${href(["settings"])}>settings</a>${" "}
        what an hour of this machine costs, and
        runs show what they cost.</p>`
    }
  <//>`;
}
