// The name of a stored prompt, as a link.

import { href } from "../router.js";
import { html } from "./html.js";
import { label } from "./text.js";

/** @param {{prompt: import("../api_types").PromptUsed}} props */
export const PromptLink = ({ prompt: { sha256, name, version } }) =>
  html`<a href=${href(["prompts", sha256])}>${name ? label(`${name}@${version}`) : sha256.slice(0, 12)}</a>`;
