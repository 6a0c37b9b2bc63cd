// Numbers, times and durations in readable form.

/** Placeholder for a missing value. */
export const NONE = "–";

// Formatters are created once, because creating one takes longer than a hundred uses.
const _WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const _MOMENT = new Intl.DateTimeFormat([], { dateStyle: "medium", timeStyle: "short" });
/** @type {Map<number, Intl.NumberFormat>} */
const _DIGITS = new Map();

/** @param {number} digits */
function withDigits(digits) {
  const known = _DIGITS.get(digits);
  if (known) return known;
  const made = new Intl.NumberFormat("en", { maximumFractionDigits: digits, minimumFractionDigits: digits });
  _DIGITS.set(digits, made);
  return made;
}

/** @param {number | null | undefined} value @param {number} [digits] */
export function number(value, digits = 2) {
  if (value === null || value === undefined || Number.isNaN(value)) return NONE;
  if (value !== 0 && Math.abs(value) < 10 ** -digits) return value.toExponential(1);
  return withDigits(digits).format(value);
}

/** @param {number | null | undefined} value */
export const whole = (value) => (value === null || value === undefined ? NONE : _WHOLE.format(Math.round(value)));

const _COMPACT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
/** @param {number | null | undefined} value */
export const compact = (value) => (value === null || value === undefined ? NONE : _COMPACT.format(value));

/** @param {number | null | undefined} share from 0 to 1 */
export const percent = (share) => (share === null || share === undefined ? NONE : `${Math.round(share * 100)}%`);

/** @param {number | null | undefined} value */
export const dollars = (value) =>
  value === null || value === undefined ? NONE : `$${value.toFixed(value !== 0 && value < 0.1 ? 4 : 2)}`;

/** @param {number | null | undefined} seconds */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return NONE;
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  const minutes = Math.round(seconds / 60);
  return minutes < 60 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/** @param {string | null | undefined} time ISO 8601 */
export const moment = (time) => (time ? _MOMENT.format(new Date(time)) : NONE);

/** @param {string | null | undefined} time ISO 8601 */
export function ago(time) {
  if (!time) return NONE;
  const seconds = (Date.now() - Date.parse(time)) / 1000;
  if (seconds < 60) return "just now";
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  return seconds < 86_400 ? `${Math.floor(seconds / 3600)} h ago` : moment(time);
}

/** `1 rollout`, `2 rollouts`. @param {number} count @param {string} word */
export const counted = (count, word) => `${whole(count)} ${word}${count === 1 ? "" : "s"}`;

/**
 * The 95% interval of a share by Wilson's formula.
 * @param {number} share from 0 to 1
 * @param {number} of the sample size
 * @returns {[number, number]}
 */
export function wilson(share, of) {
  if (of === 0) return [0, 1];
  const z = 1.96;
  const centre = (share + (z * z) / (2 * of)) / (1 + (z * z) / of);
  const half = (z / (1 + (z * z) / of)) * Math.sqrt((share * (1 - share)) / of + (z * z) / (4 * of * of));
  return [Math.max(0, centre - half), Math.min(1, centre + half)];
}
