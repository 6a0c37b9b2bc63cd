// Scales of charts: where a value is drawn, which values the axes name, and which points of a long series are drawn.

/**
 * @typedef {object} Scale
 * @property {number} from lowest value
 * @property {number} to
 * @property {number} start its pixel
 * @property {number} end
 * @property {(value: number) => number} at
 * @property {(place: number) => number} back
 */

/**
 * Map values from `from` to `to` onto pixels from `start` to `end`.
 * @param {[number, number]} values
 * @param {[number, number]} pixels
 * @param {boolean} [isLog] whether equal ratios are equally wide; then the values are above 0
 * @returns {Scale}
 */
export function scale([from, to], [start, end], isLog = false) {
  const [into, out] = isLog ? [Math.log10, (/** @type {number} */ power) => 10 ** power] : [Number, Number];
  const low = into(from);
  const width = into(to) - low || 1;
  return {
    from,
    to,
    start,
    end,
    at: (value) => start + ((into(value) - low) / width) * (end - start),
    back: (place) => out(low + ((place - start) / (end - start || 1)) * width),
  };
}

/**
 * About `count` round values between two values: multiples of 1, 2, 2.5 or 5 times a power of ten.
 * @param {number} from
 * @param {number} to
 * @param {number} count
 * @param {number} [least] smallest distance, for example 1 for whole numbers
 */
export function ticks(from, to, count, least = 0) {
  if (!(to > from)) return [from];
  const rough = (to - from) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const round = least > 0 ? [1, 2, 5, 10] : [1, 2, 2.5, 5, 10];
  const step = Math.max(least, power * (round.find((each) => each * power >= rough * 0.999) ?? 10));
  const first = Math.ceil(from / step - 1e-9);
  const last = Math.floor(to / step + 1e-9);
  return Array.from({ length: last - first + 1 }, (_, index) => Number(((first + index) * step).toPrecision(12)));
}

/**
 * At most about `count` round values between two values whose labels differ: halves of what is counted would not.
 * @param {number} from
 * @param {number} to
 * @param {number} count
 * @param {(value: number) => string} format
 * @returns {number[]}
 */
export function labelled(from, to, count, format) {
  const values = ticks(from, to, count);
  const isClear = count <= 1 || new Set(values.map(format)).size === values.length;
  return isClear ? values : labelled(from, to, count - 1, format);
}

/**
 * About `count` values of a logarithmic axis: powers of ten, in a narrow range also their double and their fivefold,
 * and in one without two of these round values.
 * @param {number} from above 0
 * @param {number} to
 * @param {number} count
 * @param {(value: number) => string} format
 * @returns {number[]}
 */
export function logTicks(from, to, count, format) {
  const [low, high] = [Math.floor(Math.log10(from)), Math.ceil(Math.log10(to))];
  const powers = Array.from({ length: high - low + 1 }, (_, index) => low + index);
  const within = (/** @type {number[]} */ digits) =>
    powers
      .flatMap((power) => digits.map((digit) => Number((digit * 10 ** power).toPrecision(12))))
      .filter((value) => value >= from && value <= to);
  const decades = within([1]);
  if (decades.length > count) {
    const every = Math.ceil(decades.length / count);
    return decades.filter((_, index) => index % every === 0);
  }
  const finer = decades.length >= 2 ? decades : within([1, 2, 5]);
  return finer.length >= 2 ? finer : labelled(from, to, count, format);
}

/**
 * The range of a logarithmic axis that shows all values above 0.
 * @param {(number | null | undefined)[]} values
 * @returns {[number, number]}
 */
export function logRangeOf(values) {
  const powers = values.map((value) => (value != null && value > 0 ? Math.log10(value) : null));
  const [low, high] = rangeOf(powers, false);
  return [10 ** low, 10 ** high];
}

/**
 * The range of an axis that shows all values, a little wider so that no line lies on the edge.
 * @param {(number | null | undefined)[]} values
 * @param {boolean} fromZero whether the range begins at 0
 * @returns {[number, number]}
 */
export function rangeOf(values, fromZero) {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    if (value === null || value === undefined || !Number.isFinite(value)) continue;
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  if (low > high) return [0, 1];
  if (fromZero) low = Math.min(0, low);
  const margin = (high - low || Math.abs(high) || 1) * 0.06;
  return [fromZero && low === 0 ? 0 : low - margin, high + margin];
}

/**
 * Indices of at most `most` points that keep a long line's shape: the lowest and the highest of each part of it.
 * @param {(number | null)[]} values
 * @param {number} most
 */
export function thinned(values, most) {
  if (values.length <= most) return values.map((_, index) => index);
  const parts = Math.floor(most / 2);
  const kept = [];
  for (let part = 0; part < parts; part++) {
    const [start, end] = [Math.floor((part * values.length) / parts), Math.floor(((part + 1) * values.length) / parts)];
    let [low, high] = [start, start];
    for (let index = start; index < end; index++) {
      const value = values[index] ?? NaN;
      if (!(value >= (values[low] ?? Infinity))) low = Number.isNaN(value) ? low : index;
      if (!(value <= (values[high] ?? -Infinity))) high = Number.isNaN(value) ? high : index;
    }
    kept.push(...(low === high ? [low] : [Math.min(low, high), Math.max(low, high)]));
  }
  return kept;
}
