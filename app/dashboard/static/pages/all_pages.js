// Loads a list of any length. The first page is shown immediately, the others in growing portions to keep the page
// smooth.

import { useEffect, useState } from "../vendor/hooks.js";
import { all } from "../api.js";

/**
 * @param {string} where
 * @param {Record<string, any>} query
 * @returns {{items: any[], isWhole: boolean, error?: Error}}
 */
export function useAllPages(where, query) {
  const [state, setState] = useState(
    /** @type {{items: any[], isWhole: boolean, error?: Error}} */ ({ items: [], isWhole: false }),
  );
  useEffect(() => {
    const controller = new AbortController();
    let shown = 0;
    /** @param {any[]} items */
    function each(items) {
      const isDue = shown === 0 || items.length >= shown * 2; // showing every page would sort the whole list each time
      if (isDue) setState({ items: items.slice(0, (shown = items.length)), isWhole: false });
    }
    setState({ items: [], isWhole: false });
    all(where, query, { aborted: controller.signal, each }).then(
      (items) => setState({ items, isWhole: true }),
      (error) => controller.signal.aborted || setState((before) => ({ ...before, isWhole: true, error })),
    );
    return () => controller.abort();
  }, [where, JSON.stringify(query)]);
  return state;
}
