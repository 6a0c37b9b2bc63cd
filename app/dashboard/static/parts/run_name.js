// What a run is called: by its name, or else by its model.

import { label } from "./text.js";

/** @typedef {{name: string | null, model: {project: string, name: string}}} Named */

/** @param {Named} run @param {number} [most] */
export const nameOf = ({ name, model }, most = 60) => label(name ?? `${model.project}/${model.name}`, most);

/**
 * The name without the project. Of one that was made from the run's id it has the end, in which such names differ.
 * @param {Named} run @param {number} [most]
 */
export const shortNameOf = ({ name, model }, most = 60) =>
  label(name ?? model.name.replace(/^run-[0-9a-z]{20}([0-9a-z]{6})$/, "run …$1"), most);

/** The end of a run's id, in which ids differ. @param {string} id */
export const idEnd = (id) => `…${id.slice(-6)}`;

/**
 * Names of runs by their ids, with the end of the id where several have the same name.
 * @param {(Named & {run_id: string})[]} runs @param {number} [most] @returns {Map<string, string>}
 */
export function namesOf(runs, most) {
  const names = runs.map((run) => nameOf(run, most));
  return new Map(
    runs.map(({ run_id: id }, index) => [
      id,
      names.indexOf(names[index]) === names.lastIndexOf(names[index]) ? names[index] : `${names[index]} ${idEnd(id)}`,
    ]),
  );
}
