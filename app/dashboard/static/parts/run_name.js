// What a run is called: by its owner, or else by its model.

import { label } from "./text.js";

/** @param {{name: string | null, model: {project: string, name: string}}} run @param {number} [most] */
export const nameOf = ({ name, model }, most = 60) => label(name ?? `${model.project}/${model.name}`, most);

/**
 * The name without the project. Of one that was made from the run's id it has the end, in which such names differ.
 * @param {Parameters<typeof nameOf>[0]} run @param {number} [most]
 */
export const shortNameOf = ({ name, model }, most = 60) => label(name ?? model.name.replace(/^run-[0-9a-z]{20}([0-9a-z]{6})$/, "run …$1"), most);
