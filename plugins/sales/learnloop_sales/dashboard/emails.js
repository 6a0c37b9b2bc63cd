// The sales agent: its sample email after each iteration, next to the knowledge graph with its node scores.

import { useEffect, useMemo, useRef, useState } from "learnloop/vendor/hooks.js";
import { get, path } from "learnloop/api.js";
import { number } from "learnloop/format.js";
import { KnowledgeGraph } from "./graph.js";
import { html } from "learnloop/parts/html.js";
import { Rate } from "learnloop/parts/rate.js";
import { Empty, Loaded, useLoaded } from "learnloop/parts/states.js";
import { label, Text, visible } from "learnloop/parts/text.js";
import { href, refine } from "learnloop/router.js";

/** @typedef {import("./graph.js").GraphNode} GraphNode */
/** @typedef {import("learnloop/api_types").ShowcaseEmail} Email */

const _SHOWN = 4000;
const _KIND = /^(customer job|product feature|fact):/i;

/** @param {import("learnloop/pages/run.js").PartProps} props */
export function Page({ data, run, query }) {
  const [chosen, setChosen] = useState(/** @type {string | undefined} */ (undefined));
  const emails = data.iterations.value.flatMap((each) => (each.email ? [each.email] : []));
  const graph = useLoaded((aborted) => readGraph(run.run_id, aborted), [run.run_id, emails.length > 0]);
  if (emails.length === 0)
    return html`<${Empty} title="No sample email yet">
      <p>After the baseline and after every iteration, the agent writes one for the same prospect.</p><//>`;
  const last = emails.at(-1)?.iteration ?? 0;
  const iteration = Math.min(last, Number(query.get("iteration") ?? last));
  const email = emails.findLast((each) => each.iteration <= iteration) ?? emails[0];
  const cited = (graph.data ?? []).filter((/** @type {GraphNode} */ node) => email.citations.includes(node.id));
  return html`
    <section class="card"><label class="field">
        <span>After iteration ${iteration} of ${last}${iteration === 0 ? " (before training)" : ""}</span>
      <input type="range" min="0" max=${last} value=${iteration} aria-valuetext=${`iteration ${iteration}`}
        onInput=${(/** @type {any} */ event) => refine({ iteration: event.target.value })} /></label></section>
    <div class="columns">
      <${Written} run=${run} email=${email} cited=${cited} choose=${setChosen} />
      <${Loaded} state=${graph} rows=${8}>${(/** @type {GraphNode[]} */ nodes) =>
        html`<${Scored} runId=${run.run_id} nodes=${nodes} iteration=${iteration} email=${email}
          chosen=${chosen} choose=${setChosen} />`}<//>
    </div>`;
}

/** @param {string} runId @param {AbortSignal} aborted @returns {Promise<GraphNode[]>} */
async function readGraph(runId, aborted) {
  const { graph } = await get(path`runs/${runId}/graph`, {}, aborted);
  return graph.map((/** @type {any} */ node) => ({
    id: node.id,
    kind: node.kind,
    content: node.content,
    edges: (node.edge ?? node.edges ?? []).map((/** @type {any} */ edge) => ({
      target: edge.target_id ?? edge.target,
      label: edge.relationship ?? edge.label ?? "",
    })),
  }));
}

/**
 * @param {{run: import("learnloop/api_types").RunOut, email: Email, cited: GraphNode[], choose: (id: string) => void}}
 *   props
 */
function Written({ run, email, cited, choose }) {
  const task = /** @type {Record<string, any>} */ (email.scenario.task);
  return html`<section class="card email">
    <h2>The email <span class="muted">to ${label(task.prospect, 80)}, ${label(task.role ?? "", 60)} at${" "}
        ${label(task.company, 80)}</span></h2>
    ${
      email.email_written
        ? html`<p class="subject"><${Text} value=${email.subject} limit=${300} /></p>
          <${Grounded} body=${email.body} cited=${cited} />`
        : html`<p class="muted">The agent wrote no email.</p>`
    }
    <p>${
      email.success === null
        ? ""
        : email.success
          ? html`<strong class="good">✓ grounded</strong>`
          : html`<span class="bad-ink">✗ not grounded</span>`
    }
      ${" "}<span class="muted">reward ${number(email.reward)}</span></p>
    <h3>What it rests on</h3>
    <ul class="citations">${email.citations.map(
      (id) => html`<li key=${id}><button class="citation" onClick=${() => choose(id)}>${label(id, 120)}</button></li>`,
    )}</ul>
    <p><a href=${href(["runs", run.run_id, "trajectories", email.trajectory_id])}>How the agent came to it</a></p>
    <${Rate} key=${email.trajectory_id} about=${{ trajectory_id: email.trajectory_id }} />
  </section>`;
}

/** The email, with words taken from cited nodes highlighted. @param {{body: string, cited: GraphNode[]}} props */
function Grounded({ body, cited }) {
  if (body.length > _SHOWN) return html`<${Text} as="p" value=${body} limit=${_SHOWN} />`;
  /** @type {{text: string, id?: string}[]} */
  let parts = [{ text: body }];
  for (const { id, content } of cited) {
    const said = content.replace(_KIND, "").trim();
    if (said) parts = parts.flatMap((part) => (part.id === undefined ? marked(part.text, said, id) : [part]));
  }
  return html`<p class="text" dir="auto">${parts.map(({ text, id }) =>
    id === undefined ? visible(text) : html`<mark title=${`From ${label(id)}`}>${visible(text)}</mark>`,
  )}</p>`;
}

/** @param {string} text @param {string} said @param {string} id @returns {{text: string, id?: string}[]} */
function marked(text, said, id) {
  return text
    .split(said)
    .flatMap((part, index) => (index === 0 ? [{ text: part }] : [{ text: said, id }, { text: part }]));
}

/**
 * @param {{runId: string, nodes: GraphNode[], iteration: number, email: Email, chosen?: string,
 *   choose: (id: string) => void}} props
 */
function Scored({ runId, nodes, iteration, email, chosen, choose }) {
  const scores = useScores(runId, iteration);
  const cited = useMemo(() => new Set(email.citations), [email]);
  const node = nodes.find((each) => each.id === chosen);
  return html`<section class="card"><h2>The knowledge graph${" "}
      <span class="muted">larger: higher score; ringed: cited; grey: customer job; green: product</span></h2>
    <${KnowledgeGraph} nodes=${nodes} scores=${scores} cited=${cited} chosen=${chosen} choose=${choose} />
    ${
      node
        ? html`<div class="chosen"><h3><${Text} value=${node.id} limit=${200} /> <span class="muted">
            score ${number(scores[node.id], 3)}</span></h3><${Text} as="p" value=${node.content} limit=${1500} /></div>`
        : html`<p class="muted">Choose a node to read it.</p>`
    }
    <details><summary>Nodes by score</summary><ol class="ranked">${[...nodes]
      .sort((one, other) => (scores[other.id] ?? 0) - (scores[one.id] ?? 0))
      .slice(0, 100)
      .map(
        (each) =>
          html`<li key=${each.id}><${Text} value=${each.id} limit=${120} />${" "}
            <span class="muted">${number(scores[each.id], 3)}${cited.has(each.id) ? ", cited" : ""}</span></li>`,
      )}</ol></details>
  </section>`;
}

/**
 * The node scores after an iteration. The previous ones are shown until they have loaded.
 * @param {string} runId @param {number} iteration
 */
function useScores(runId, iteration) {
  const kept = useRef(/** @type {Map<number, Record<string, number>>} */ (new Map()));
  const [scores, setScores] = useState(/** @type {Record<string, number>} */ ({}));
  useEffect(() => {
    const controller = new AbortController();
    const known = kept.current.get(iteration);
    if (known) setScores(known);
    else
      get(path`runs/${runId}/node-scores`, { iteration }, controller.signal).then(
        (found) => {
          kept.current.set(iteration, found.node_scores);
          setScores(found.node_scores);
        },
        () => {},
      );
    return () => controller.abort();
  }, [runId, iteration]);
  return scores;
}
