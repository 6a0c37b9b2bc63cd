// Templates: html`<p>${text}</p>` creates Preact elements. Inserted values become text, never markup.

import htm from "../vendor/htm.js";
import { h } from "../vendor/preact.js";

/** @type {(strings: TemplateStringsArray, ...values: any[]) => any} */
export const html = htm.bind(h);
