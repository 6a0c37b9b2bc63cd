// What a run is called: by its owner, or else by its model.

import { label } from "./text.js";

/** @param {{name: string | null, model: {project: string, name: string}}} run @param {number} [most] */
export const nameOf = ({ name, model }, most = 60) => label(name ?? `${model.project}/${model.name}`, most);
