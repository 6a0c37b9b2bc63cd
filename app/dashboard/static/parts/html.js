// Templates: html`<p>${text}</p>` makes elements of Preact. What is put in becomes text, never markup.

import htm from "../vendor/htm.js";
import { h } from "../vendor/preact.js";

/** @type {(strings: TemplateStringsArray, ...values: any[]) => any} */
export const html = htm.bind(h);
