// Keys for frequent moves: the search, from row to row, and from rollout to rollout. Never while something is typed.

import { signal } from "./vendor/signals.js";
import { go, route } from "./router.js";

/** What is moved between, on the pages that have rows. */
const _ROWS = "main a.run-name, main button.fold, main .rollouts a, main .long .body a";
const _OFF = "learnloop.keys";

/** What the dialog says of each key. @type {[string[], string][]} */
export const KEYS = [
  [["/"], "Search the runs"],
  [["j", "k"], "Next and previous row; on the page of a rollout, the next and the previous rollout of its scenario"],
  [["↓", "↑"], "The same from a row that has the focus"],
  [["←", "→"], "On the page of a rollout, the one with the better and with the worse reward"],
  [["Enter"], "Open the row"],
  [["?"], "Show these shortcuts"],
];

/** Whether the dialog with the keys is shown. */
export const isShown = signal(false);
export const isOn = signal(stored());

function stored() {
  try {
    return localStorage.getItem(_OFF) !== "off";
  } catch {
    return true;
  }
}

/** @param {boolean} wanted */
export function turnKeys(wanted) {
  isOn.value = wanted;
  try {
    localStorage.setItem(_OFF, wanted ? "on" : "off");
  } catch {
    // The choice only lasts for this visit.
  }
}

addEventListener("keydown", (event) => {
  if (!isOn.value || event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target))
    return;
  if (move(event.key)) event.preventDefault();
});

/** Whether a key belongs to a field, a menu or a dialog. @param {EventTarget | null} target */
function isTyping(target) {
  return (
    target instanceof Element &&
    target.closest(
      "input:not([type=checkbox], [type=radio]), textarea, select, [contenteditable], dialog, details.menu[open]",
    ) !== null
  );
}

/** Do what a key stands for, if anything, and say whether it did. @param {string} key */
function move(key) {
  const here = document.activeElement;
  const isAtRow = here?.matches(_ROWS) ?? false;
  const isNowhere = here === document.body || here?.id === "main";
  if (key === "?") return (isShown.value = true);
  if (key === "/") return search();
  if (key === "j" || (key === "ArrowDown" && isAtRow)) return step(1) || follow("next");
  if (key === "k" || (key === "ArrowUp" && isAtRow)) return step(-1) || follow("prev");
  if (key === "ArrowRight" && isNowhere) return follow("next");
  return key === "ArrowLeft" && isNowhere && follow("prev");
}

function search() {
  const box = () => /** @type {HTMLInputElement | null} */ (document.querySelector("main input[type=search]"));
  if (!box()) go([]);
  requestAnimationFrame(() => box()?.select());
  return true;
}

/** Move the focus to a row: from none to the first. Says whether there are rows. @param {number} by */
function step(by) {
  const rows = /** @type {HTMLElement[]} */ (
    [...document.querySelectorAll(_ROWS)].filter((each) => each.checkVisibility())
  );
  const place = rows.indexOf(/** @type {HTMLElement} */ (document.activeElement));
  rows[place < 0 ? 0 : Math.min(rows.length - 1, Math.max(0, place + by))]?.focus();
  return rows.length > 0;
}

/** Follow the page's link to the next or the previous one. @param {"next" | "prev"} where */
function follow(where) {
  const link = /** @type {HTMLElement | null} */ (document.querySelector(`main a[rel=${where}]`));
  link?.click();
  return link !== null;
}

route.subscribe(() => {
  isShown.value = false;
});
