// Files that are loaded when they are first needed.

const _MAIN = /** @type {HTMLScriptElement} */ (document.querySelector("script[type=module]")).src;

/** The URL of a file of the dashboard. @param {string} name */
export const address = (name) => new URL(name, _MAIN).href;

/** The module of a script. @param {string} name */
export const imported = (name) =>
  import(address(name)).catch(() => {
    throw new Error("A part of the dashboard cannot be loaded. If the service was updated, load the page again.");
  });
