// Imports a file: shows its first rows and what it would become, lets columns be chosen, and says what was left out.

import { useState } from "../vendor/hooks.js";
import { request, url } from "../api.js";
import { counted, whole } from "../format.js";
import { href } from "../router.js";
import { Action } from "./action.js";
import { html } from "./html.js";
import { Table } from "./table.js";
import { label } from "./text.js";

/** @typedef {import("../api_types").FileImported} Imported */
/** @typedef {import("../api_types").ImportedQuestions} Questions */
/** @typedef {import("../api_types").LeftOut} LeftOut */

/** @type {import("./table.js").Column<LeftOut>[]} */
const _LEFT_OUT = [
  { title: "Left out", isNumber: true, cell: (each) => whole(each.count) },
  { title: "Why", cell: (each) => label(each.reason, 300) },
  { title: "Lines", cell: (each) => each.lines.join(", ") + (each.count > each.lines.length ? ", …" : "") },
];
const _HEADER = { true: "names the columns", false: "is data" };
const _PARTS = { question: "Column of the questions", answer: "Column of the answers", facts: "Column of the facts" };

/** Choose or drop a file, look at what it would become, and import it. @param {{done: () => void}} props */
export function ImportFile({ done }) {
  const [file, setFile] = useState(/** @type {File | undefined} */ (undefined));
  const [options, setOptions] = useState(/** @type {Record<string, string>} */ ({}));
  const [found, setFound] = useState(/** @type {Imported | undefined} */ (undefined));
  const [error, setError] = useState(/** @type {Error | undefined} */ (undefined));
  /** @param {File} content @param {Record<string, string>} how @param {boolean} preview */
  async function send(content, how, preview) {
    const name =
      content.name
        .replace(/\.[^.]*$/, "")
        .replace(/[^A-Za-z0-9_-]+/g, "-")
        .replace(/^[-_]+|[-_]+$/g, "")
        .toLowerCase()
        .slice(0, 63) || "data";
    const given = Object.fromEntries(Object.entries(how).filter(([, value]) => value !== ""));
    setFound(
      await request("POST", url("imports", { name, ...given, ...(preview ? { preview } : {}) }), { raw: content }),
    );
  }
  /** @param {File | undefined} content @param {Record<string, string>} how */
  async function look(content, how) {
    setOptions(how);
    setFile(content);
    setError(undefined);
    if (!content) return setFound(undefined);
    try {
      await send(content, how, true);
    } catch (wrong) {
      setError(/** @type {Error} */ (wrong));
    }
  }
  const act = async () => (file && (await send(file, options, false)), done());
  /** @param {string} key @param {string} title @param {string} type @param {string} help */
  const option = (key, title, type, help) => html`<label class="field"><span>${title}</span>
    <input type=${type} step="any" value=${options[key] ?? ""}
      onChange=${(/** @type {any} */ event) => look(file, { ...options, [key]: event.target.value })} />
      <span class="help">${help}</span></label>`;
  /**
   * @param {string} key @param {string} title @param {string[]} choices @param {string} chosen
   * @param {Record<string, string>} [titles] of the choices
   */
  const choice = (
    key,
    title,
    choices,
    chosen,
    titles = { "": "none" },
  ) => html`<label class="field"><span>${title}</span>
    <select onChange=${(/** @type {any} */ event) => look(file, { ...options, [key]: event.target.value })}>
      ${choices.map(
        (name) => html`<option value=${name} selected=${name === chosen}>${label(titles[name] ?? name, 60)}
          </option>`,
      )}
      </select></label>`;
  const questions = found?.questions;
  const isStored = found?.tasks?.version || found?.demonstrations?.version;
  return html`<label class="field upload" onDragOver=${(/** @type {DragEvent} */ event) => event.preventDefault()}
      onDrop=${(/** @type {DragEvent} */ event) => (event.preventDefault(), look(event.dataTransfer?.files[0], {}))}>
      <span>Import a file</span>
      <input type="file" accept=".csv,.tsv,.xlsx,.jsonl,.json,.ndjson,.txt"
        onChange=${(/** @type {any} */ event) => look(event.target.files?.[0], {})} />
      <span class="help">Choose it or drop it here: questions with expected answers as CSV, TSV, XLSX or JSON, or${" "}
        conversations with thumbs as JSON Lines.</span></label>
    ${
      questions &&
      html`<div class="filters">${Object.entries(_PARTS).map(([part, title]) =>
        choice(part, title, ["", ...questions.columns], /** @type {any} */ (questions)[part] ?? ""),
      )}
      ${choice("header", "The first row", Object.keys(_HEADER), options.header ?? "true", _HEADER)}
      ${option("encoding", "Encoding", "text", "Such as gb18030; empty: by the content.")}</div>`
    }
    ${
      (found?.conversations || (error && file)) &&
      html`<div class="filters">${option("opinion", "Field or score", "text", "Its name; empty: all that are known.")}
      ${option("threshold", "Liked from", "number", "The least number of a liked conversation; empty: thumbs.")}
      ${option("user", "Field of the user", "text", "Its name; empty: the usual ones.")}</div>`
    }
    ${error && html`<p class="wrong" role="alert">${label(error.message, 400)}</p>`}
    ${found && !error && html`<${Result} made=${found} />`}
    ${found && !error && !isStored && html`<${Action} label="Import" act=${act} />`}
    ${found?.tasks?.version && html`<p><${StartOn} tasks=${found.tasks} /></p>`}`;
}

/** Leads to a run on the stored tasks. @param {{tasks: NonNullable<Imported["tasks"]>}} props */
const StartOn = ({ tasks: { environment, name, judge } }) =>
  html`<a class="button primary" href=${href(["start"], { environment, scenarios: name, judge })}>
    Start a run on them</a>`;

/** @param {{made: Imported}} props */
function Result({ made }) {
  const { demonstrations, tasks, conversations, questions } = made;
  const version = (/** @type {{version: number | null}} */ each) =>
    each.version ? `, version ${each.version}` : " (preview)";
  return html`<div role="status">
      ${
        conversations &&
        html`<p>${counted(conversations.conversations, "conversation")} of ${counted(conversations.users, "user")}${
          conversations.without_user > 0 && `, ${whole(conversations.without_user)} without a user`
        }: ${whole(conversations.liked)} liked, ${whole(conversations.disliked)} disliked,${" "}
        ${whole(conversations.unrated)} without a clear opinion.</p>`
      }
      ${
        questions &&
        html`<p>${counted(made.lines, "row")} (${label(questions.form, 100)}).${
          tasks &&
          ` ${whole(questions.different)} different questions, ${whole(questions.near_duplicates)} nearly the same ` +
            `as another, which are in one split; ${whole(questions.answers)} different answers.`
        }</p>`
      }
      ${made.problem && html`<p class="wrong">${label(made.problem, 400)}</p>`}
      ${
        demonstrations &&
        html`<p>${counted(demonstrations.count, "demonstration")} as${" "}
          ${label(demonstrations.name)}${version(demonstrations)}.</p>`
      }
      ${
        tasks &&
        html`<p>${counted(tasks.count, "task")} as ${label(tasks.name)}${version(tasks)}: ${whole(tasks.train)}${" "}
          for training, ${whole(tasks.validation)} for validation, ${whole(tasks.test)} for the test. The judge${" "}
          that fits is ${label(tasks.judge)}.</p>`
      }
      ${questions && html`<p class="muted">${label(questions.base, 400)}</p>`}</div>
    ${
      questions &&
      html`<${Table} caption="First rows" rows=${questions.rows}
        keyOf=${(/** @type {{line: number}} */ row) => String(row.line)} columns=${columnsOf(questions)} />`
    }
    ${
      made.left_out.length > 0 &&
      html`<${Table} caption="What was left out" rows=${made.left_out}
        keyOf="reason" columns=${_LEFT_OUT} />`
    }`;
}

/** @param {Questions} questions @returns {import("./table.js").Column[]} */
const columnsOf = (questions) => [
  { title: "Row", isNumber: true, cell: (/** @type {{line: number}} */ row) => whole(row.line) },
  ...questions.columns.map((title, place) => ({
    title: label(title, 60),
    cell: (/** @type {{cells: string[]}} */ row) => label(row.cells[place] ?? "", 120),
  })),
];
