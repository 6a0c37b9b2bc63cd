// A knowledge graph laid out by d3-force. Node sizes show scores, edges are arrows, and every node is a button.

import { useMemo } from "learnloop/vendor/hooks.js";
import { forceCollide, forceLink, forceManyBody, forceSimulation, forceX, forceY } from "learnloop/vendor/d3-force.js";
import { number } from "learnloop/format.js";
import { html } from "learnloop/parts/html.js";
import { label } from "learnloop/parts/text.js";

/** @typedef {{id: string, kind?: string, content: string, edges: {target: string, label: string}[]}} GraphNode */
/** @typedef {{id: string, x: number, y: number}} Placed */

const [_WIDTH, _HEIGHT] = [560, 420];
const _RIM = 46;
const _NAMED = 20;
/** Smallest range of scores that fills the whole range of sizes. */
const _SPREAD = 0.05;
const _TICKS = 200;
/** Maximum number of nodes to draw, those with the highest scores. More would be unreadable and slow to lay out. */
const _DRAWN = 150;

/**
 * @param {{nodes: GraphNode[], scores: Record<string, number>, cited: Set<string>, chosen?: string,
 *   choose: (id: string) => void}} props
 */
export function KnowledgeGraph({ nodes, scores, cited, chosen, choose }) {
  const drawn = useMemo(() => picked(nodes, scores, cited), [nodes, nodes.length > _DRAWN ? scores : null]);
  const { places, links } = useMemo(() => layout(drawn), [drawn]);
  const [low, high] = useMemo(
    () => [Math.min(...Object.values(scores), 1), Math.max(...Object.values(scores), 0)],
    [scores],
  );
  const size = (/** @type {string} */ id) => 6 + 12 * (((scores[id] ?? low) - low) / Math.max(high - low, _SPREAD));
  return html`
    ${
      nodes.length > _DRAWN &&
      html`<p class="muted">The ${_DRAWN} of ${nodes.length} nodes with the highest scores.</p>`
    }
    <svg class="graph" viewBox=${`0 0 ${_WIDTH} ${_HEIGHT}`} role="group"
      aria-label=${`Knowledge graph of ${nodes.length} nodes`}>
      <defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6"
          orient="auto"><path d="M0 0 8 4 0 8z" /></marker></defs>
      ${links.map(
        ({ source, target }) =>
          html`<line class=${cited.has(source) && cited.has(target) ? "cited" : ""}
            ...${ends(places, source, target, size(target))} marker-end="url(#arrow)" />`,
      )}
      ${drawn.map((node) => {
        const place = /** @type {Placed} */ (places.get(node.id));
        const names = [cited.has(node.id) && "cited", node.id === chosen && "chosen", kindOf(node)]
          .filter(Boolean)
          .join(" ");
        const text = `${label(node.id)}, score ${number(scores[node.id], 3)}${cited.has(node.id) ? ", cited" : ""}`;
        return html`<g key=${node.id} class=${names}
            transform=${`translate(${place.x} ${place.y})`} role="button" tabindex="0"
            aria-pressed=${node.id === chosen} aria-label=${text}
            onClick=${() => choose(node.id)}
            onKeyDown=${(/** @type {KeyboardEvent} */ event) =>
              ["Enter", " "].includes(event.key) && ((event.preventDefault(), choose(node.id)))}>
          <circle r=${size(node.id)} />
        </g>`;
      })}
      <g aria-hidden="true">${drawn
        .filter((node) => cited.has(node.id) || node.id === chosen || drawn.length <= _NAMED)
        .map((node) => {
          const place = /** @type {Placed} */ (places.get(node.id));
          return html`<text key=${node.id} class=${cited.has(node.id) || node.id === chosen ? "strong" : ""}
              x=${place.x} y=${place.y + size(node.id) + 12}>${label(node.id, 14)}</text>`;
        })}</g>
    </svg>`;
}

/** @param {GraphNode} node */
function kindOf({ id, kind = "", content }) {
  const said = `${kind} ${content} ${id}`;
  if (/customer[ -]job/i.test(said)) return "job";
  return /product[ -]feature/i.test(said) ? "product" : "";
}

/** @param {GraphNode[]} nodes @param {Record<string, number>} scores @param {Set<string>} cited */
function picked(nodes, scores, cited) {
  if (nodes.length <= _DRAWN) return nodes;
  const rank = (/** @type {GraphNode} */ node) => (cited.has(node.id) ? 10 : 0) + (scores[node.id] ?? 0);
  return [...nodes].sort((one, other) => rank(other) - rank(one)).slice(0, _DRAWN);
}

/** @param {GraphNode[]} nodes */
function layout(nodes) {
  const points = nodes.map(({ id }) => ({ id, x: NaN, y: NaN }));
  const known = new Set(nodes.map((node) => node.id));
  const links = nodes.flatMap((node) =>
    node.edges.filter((edge) => known.has(edge.target)).map((edge) => ({ source: node.id, target: edge.target })),
  );
  forceSimulation(points)
    .force(
      "link",
      forceLink(links.map((link) => ({ ...link })))
        .id((/** @type {any} */ point) => point.id)
        .distance(60),
    )
    .force("charge", forceManyBody().strength(-260))
    .force("collide", forceCollide(26))
    .force("x", forceX(0).strength(0.04))
    .force("y", forceY(0).strength(0.08))
    .stop()
    .tick(_TICKS);
  const [across, down] = [
    fitted(
      points.map((point) => point.x),
      _WIDTH,
    ),
    fitted(
      points.map((point) => point.y),
      _HEIGHT,
    ),
  ];
  return { places: new Map(points.map(({ id, x, y }) => [id, { id, x: across(x), y: down(y) }])), links };
}

/** Scale coordinates to fit the picture. @param {number[]} values @param {number} size */
function fitted(values, size) {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  return (/** @type {number} */ value) =>
    high === low ? size / 2 : _RIM + ((value - low) / (high - low)) * (size - 2 * _RIM);
}

/**
 * The ends of a line between two nodes; it stops at the rim of its target.
 * @param {Map<string, Placed>} places @param {string} from @param {string} to @param {number} radius
 */
function ends(places, from, to, radius) {
  const [one, other] = [/** @type {Placed} */ (places.get(from)), /** @type {Placed} */ (places.get(to))];
  const length = Math.hypot(other.x - one.x, other.y - one.y) || 1;
  const share = Math.max(0, 1 - (radius + 3) / length);
  return { x1: one.x, y1: one.y, x2: one.x + (other.x - one.x) * share, y2: one.y + (other.y - one.y) * share };
}
