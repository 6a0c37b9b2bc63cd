// The name of a stored prompt, as a link.

import { href } from "../router.js";
import { html } from "./html.js";
import { label, promptName } from "./text.js";

/** @param {{prompt: import("../api_types").PromptUsed}} props */
export const PromptLink = ({ prompt }) =>
  html`<a href=${href(["prompts", prompt.sha256])}>${label(promptName(prompt))}</a>`;
