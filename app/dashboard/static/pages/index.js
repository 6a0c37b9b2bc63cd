// Which page belongs to which address.

import { html } from "../parts/html.js";
import { Empty } from "../parts/states.js";
import { href } from "../router.js";
import { GroupPage } from "./group.js";
import { RunPage } from "./run.js";
import { Runs } from "./runs.js";
import { Start } from "./start.js";
import { TrajectoryPage } from "./trajectory.js";

/** @typedef {{title: string, page: () => any, key: string}} Shown */

/** @param {import("../router.js").Route} route @returns {Shown} */
export function pageOf({ names, query }) {
  const [place = "", id, part = "", inner] = names;
  switch (place) {
    case "":
      return shown("Runs", () => html`<${Runs} query=${query} />`, "");
    case "start":
      return shown("Start a run", () => html`<${Start} query=${query} />`, "start");
    case "runs":
      if (!id) return shown("Runs", () => html`<${Runs} query=${query} />`, "");
      if (part === "trajectories" && inner)
        return shown(`Trajectory ${inner}`, () => html`<${TrajectoryPage} id=${inner} runId=${id} />`, `trajectories/${inner}`);
      if (part === "group") return shown("Group", () => html`<${GroupPage} runId=${id} query=${query} />`, `group/${id}`);
      return shown(`Run ${id}`, () => html`<${RunPage} id=${id} part=${part} inner=${inner} query=${query} />`, `runs/${id}`);
    case "trajectories":
      return shown(`Trajectory ${id}`, () => html`<${TrajectoryPage} id=${id} />`, `trajectories/${id}`);
    default:
      return shown("Not found", () => html`<${NotFound} />`, "lost");
  }
}

/** @param {string} title @param {() => any} page @param {string} key @returns {Shown} */
const shown = (title, page, key) => ({ title, page, key });

function NotFound() {
  return html`<${Empty} title="There is no such page"><p>Go to the <a href=${href([])}>list of runs</a>.</p><//>`;
}
