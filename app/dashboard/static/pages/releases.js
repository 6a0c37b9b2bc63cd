// The newest releases, also those that have ended.

import { all } from "../api.js";
import { ago, finePercent } from "../format.js";
import { html } from "../parts/html.js";
import { isLive, ReleaseState } from "../parts/release.js";
import { Loaded, useLoaded, useReload } from "../parts/states.js";
import { Table } from "../parts/table.js";
import { label, served } from "../parts/text.js";
import { href } from "../router.js";

/** @typedef {import("../api_types").ReleaseBrief} Brief */

const _MOST = 50;

export function Releases() {
  const state = useLoaded((aborted) => all("releases", { limit: _MOST }, { aborted, most: _MOST }), []);
  useReload(state, Boolean(state.data?.some(isLive)));
  return html`<${Loaded} state=${state}>${(/** @type {Brief[]} */ found) =>
    found.length > 0 &&
    html`<section class="card"><h2>Releases</h2>
      <p class="muted">A candidate meets a share of a promoted name’s users, and is taken back if it does harm.</p>
      <${Table} caption="Releases, newest first" class="stacked" rows=${found}
        keyOf="release_id" columns=${columns} /></section>`}<//>`;
}

/** @type {import("../parts/table.js").Column<Brief>[]} */
const columns = [
  {
    title: "Candidate",
    by: "candidate",
    isHead: true,
    cell: (each) =>
      html`<a href=${href(["releases", each.release_id])}>${served(each.candidate, each.candidate_prompt)}</a>`,
  },
  { title: "For", by: "name", cell: (each) => label(each.name, 120) },
  { title: "Against", by: "stable", cell: (each) => served(each.stable, each.stable_prompt) },
  { title: "State", by: "state", cell: (each) => html`<${ReleaseState} release=${each} />` },
  { title: "Share", by: "share", isNumber: true, cell: (each) => finePercent(each.share) },
  {
    title: "Started",
    by: "created_at",
    cell: (each) => html`${ago(each.created_at)} <span class="muted">by ${label(each.actor)}</span>`,
  },
];
