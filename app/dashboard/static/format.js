// Numbers, times and durations in readable form.

/** Placeholder for a missing value. */
export const NONE = "–";

// Formatters are created once, because creating one takes longer than a hundred uses.
const _MOMENT = new Intl.DateTimeFormat([], { dateStyle: "medium", timeStyle: "short" });
const _EXACT = new Intl.DateTimeFormat([], { dateStyle: "medium", timeStyle: "medium" });
/** @type {Map<number, (value: number) => string>} */
const _DIGITS = new Map();

/** @param {Intl.NumberFormatOptions} options @returns {(value: number) => string} */
function formatter(options) {
  // A minus sign is as wide as a plus sign, which a hyphen is not. What is rounded to 0 has no sign. The command line
  // and the service's sentences round halves to even, too.
  const made = new Intl.NumberFormat("en", { signDisplay: "negative", roundingMode: "halfEven", ...options });
  return (value) => made.format(value).replace("-", "\u2212");
}

/** @param {number} digits */
function withDigits(digits) {
  const known = _DIGITS.get(digits);
  if (known) return known;
  const made = formatter({ maximumFractionDigits: digits, minimumFractionDigits: digits });
  _DIGITS.set(digits, made);
  return made;
}

/**
 * Some function of a number, or the placeholder.
 * @template T @param {T | null | undefined} value @param {(value: T) => string} shown
 */
const known = (value, shown) => (value === null || value === undefined || Number.isNaN(value) ? NONE : shown(value));

const _TINY = formatter({ maximumSignificantDigits: 2 });
/** Number of digits from which a figure is so fine that 0 must mean 0. */
const _FINE = 3;

/** @param {number | null | undefined} value @param {number} [digits] */
export function number(value, digits = 2) {
  return known(value, (given) =>
    (digits >= _FINE && given !== 0 && Math.abs(given) < 10 ** -digits ? _TINY : withDigits(digits))(given),
  );
}

/** A number with its sign, such as `+0.25`. @param {number | null | undefined} value @param {number} [digits] */
export function signed(value, digits = 2) {
  const shown = number(value, digits);
  return value && value > 0 && /[1-9]/.test(shown) ? `+${shown}` : shown;
}

const _WHOLE = formatter({ maximumFractionDigits: 0 });
/** @param {number | null | undefined} value */
export const whole = (value) => known(value, _WHOLE);

const _COMPACT = formatter({ notation: "compact", maximumFractionDigits: 1 });
/** @param {number | null | undefined} value */
export const compact = (value) => known(value, _COMPACT);

const _PERCENT = formatter({ style: "percent", maximumFractionDigits: 0 });
/** @param {number | null | undefined} share from 0 to 1 */
export const percent = (share) => known(share, _PERCENT);

const _FINE_PERCENT = formatter({ style: "percent", maximumSignificantDigits: 3 });
/** For shares that can be as small as 0.5%. @param {number | null | undefined} share from 0 to 1 */
export const finePercent = (share) => known(share, _FINE_PERCENT);

/** @param {number | null | undefined} value */
export const dollars = (value) => known(value, (given) => `$${withDigits(given !== 0 && given < 0.1 ? 4 : 2)(given)}`);

/** Such as `4.2 s`, `42 s`, `2 min 5 s` or `1 h 2 min`. @param {number | null | undefined} seconds */
export function duration(seconds) {
  return known(seconds, (given) => {
    if (given < 9.95) return `${withDigits(1)(given)} s`;
    const all = Math.round(given);
    if (all < 60) return `${all} s`;
    if (all < 3600) return `${Math.floor(all / 60)} min${all % 60 ? ` ${all % 60} s` : ""}`;
    const minutes = Math.round(all / 60);
    return `${whole(Math.floor(minutes / 60))} h${minutes % 60 ? ` ${minutes % 60} min` : ""}`;
  });
}

/** @param {string | null | undefined} time ISO 8601 */
export const moment = (time) => (time ? _MOMENT.format(new Date(time)) : NONE);

/** The same with seconds, for what happens several times a minute. @param {string | null | undefined} time ISO 8601 */
export const exactMoment = (time) => (time ? _EXACT.format(new Date(time)) : NONE);

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

/** A name of the API as words: `gave up` for `gave_up`. @param {string} name */
export const inWords = (name) => name.replaceAll("_", " ");

/** How a rollout ended, in words. @param {{error?: string | null, outcome?: Record<string, any> | null}} rollout */
export const ending = ({ error, outcome }) => (error ? "failed" : inWords(String(outcome?.finish ?? "").slice(0, 24)));

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
