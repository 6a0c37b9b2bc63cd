// Questions about an inbox: made from templates or uploaded. Without questions, no agent can learn from the inbox.

import { get, path, post } from "../api.js";
import { counted } from "../format.js";
import { Action } from "./action.js";
import { html } from "./html.js";
import { useLoaded } from "./states.js";
import { label } from "./text.js";
import { Upload } from "./upload.js";

/** @typedef {import("../api_types").InboxOut} Inbox */
/** @typedef {import("../api_types").ScenarioSetOut} ScenarioSet */

/** The newest questions about an inbox. @param {Inbox} inbox @param {ScenarioSet[]} sets newest first */
export const questionsOf = (inbox, sets) =>
  sets.find((each) => each.name === inbox.name && each.inbox_sha256 === inbox.sha256);

/** @param {{inbox: string, done: () => void}} props */
export function MakeQuestions({ inbox, done }) {
  const make = async () => (await post(path`inboxes/${inbox}/questions`), done());
  return html`<${Action} label="Make questions" act=${make} />`;
}

/** What making questions needs. */
export const HOW_MADE = html`“Make questions” asks who sent an email, on which day, and for values in its${" "}
  sentences. It needs no model and no key.
  A language model writes freer ones: <code>learnloop data prepare --questions llm</code> on this machine.`;

/** The next step, if the chosen inbox has no questions. @param {{inbox: string}} props */
export function QuestionsNeeded({ inbox }) {
  const state = useLoaded(
    async (aborted) => {
      const [inboxes, sets] = await Promise.all([
        get("inboxes", { name: inbox, limit: 1 }, aborted),
        get("scenarios", { name: inbox }, aborted),
      ]);
      return { newest: inboxes.items[0], sets: sets.items };
    },
    [inbox],
  );
  if (!state.data?.newest) return null;
  const made = questionsOf(state.data.newest, state.data.sets);
  if (made)
    return html`<p class="muted" role="status">
      The agent learns from ${counted(made.count, "question")} about this inbox.</p>`;
  return html`<section class="notice warn">
    <p><strong>${label(inbox)} has no questions yet.</strong> The agent learns by${" "}
      answering questions about the mail.</p>
    <p><${MakeQuestions} inbox=${inbox} done=${state.reload} /></p>
    <p class="muted">${HOW_MADE}</p>
    <${Upload} kind=${questionsAbout(inbox)} done=${state.reload} />
  </section>`;
}

/** @param {string} inbox @returns {import("./upload.js").Kind} */
export const questionsAbout = (inbox) => ({
  ...scenariosFor("email_search", inbox),
  label: "Upload questions",
  help: 'JSON, or JSON Lines with one question per line: {"question": …, "answer": …, "source_ids": [Message-IDs]}.',
  count: (stored) => counted(stored.count, "question"),
});

/**
 * Scenarios for an environment, about an inbox if one is given.
 * @param {string} environment @param {string} [inbox] @returns {import("./upload.js").Kind}
 */
export function scenariosFor(environment, inbox) {
  return {
    where: "scenarios",
    label: "Upload scenarios",
    help: "A JSON list of scenarios, or JSON Lines with one scenario per line.",
    accept: ".json,.jsonl,.txt",
    count: (stored) => counted(stored.count, "scenario"),
    send: async (file, name) =>
      post("scenarios", {
        environment,
        name: inbox ?? name,
        scenarios: read(await file.text()),
        ...(inbox ? { inbox } : {}),
      }),
  };
}

/** The scenarios of a file. @param {string} text @returns {unknown[]} */
function read(text) {
  const lines = text.split("\n").filter((line) => line.trim());
  try {
    const whole = JSON.parse(text);
    return Array.isArray(whole) ? whole : (whole.scenarios ?? [whole]);
  } catch {
    return lines.map((line, index) => parsed(line, index + 1));
  }
}

/** @param {string} line @param {number} number */
function parsed(line, number) {
  try {
    return JSON.parse(line);
  } catch {
    throw new Error(`Line ${number} is not JSON: ${label(line, 60)}`);
  }
}
