// Series of figures for charts: smoothed, and those of a range.

/**
 * The exponential moving average of a series: each value is `weight` times the one before and the rest of the figure.
 * The first figures count fully, as if they had been so before. Where there is no figure there is no value.
 * @param {(number | null)[]} values
 * @param {number} weight from 0, which changes nothing, to below 1
 * @returns {(number | null)[]}
 */
export function smoothed(values, weight) {
  let [sum, share] = [0, 0];
  return values.map((value) => {
    if (value === null) return null;
    sum = weight * sum + (1 - weight) * value;
    share = weight * share + (1 - weight);
    return sum / share;
  });
}

/**
 * The x values of a range and the part of each series that belongs to them.
 * @param {number[]} x ascending
 * @param {(number | null)[][]} series
 * @param {[number, number]} range
 */
export function within(x, series, [from, to]) {
  const start = x.findIndex((value) => value >= from);
  const end = x.findLastIndex((value) => value <= to) + 1;
  const part = (/** @type {any[]} */ values) => (start < 0 ? [] : values.slice(start, end));
  return { x: part(x), series: series.map(part) };
}

/** @typedef {{mean: number, low: number, high: number}} Spread */

/**
 * The mean, the lowest and the highest figure of several series at each x value at which one of them has any.
 * @param {Map<number, number | null>[]} series figures by x value
 * @returns {Map<number, Spread>} in ascending order
 */
export function spreads(series) {
  /** @type {Map<number, Spread>} */
  const spread = new Map();
  for (const x of [...new Set(series.flatMap((each) => [...each.keys()]))].sort((one, other) => one - other)) {
    const values = series.map((each) => each.get(x) ?? null).filter((value) => value !== null);
    if (values.length > 0)
      spread.set(x, {
        mean: values.reduce((sum, value) => sum + value, 0) / values.length,
        low: Math.min(...values),
        high: Math.max(...values),
      });
  }
  return spread;
}
