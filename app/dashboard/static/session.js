// The browser's sign-in. The key is never kept here; a cookie that scripts cannot read identifies the sign-in.

import { signal } from "./vendor/signals.js";
import { get, needsKey, remove, request, url } from "./api.js";

/** @typedef {import("./api_types").SessionOut} Session */

export const session = signal(/** @type {Session | undefined} */ (undefined));

/** Read who is signed in. If that is required and missing, the page asks for a key. */
export async function readSession() {
  session.value = await get("session").catch(() => undefined);
}

/** Sign in with a key. @param {string} key */
export async function signIn(key) {
  session.value = await request("POST", url("session"), { headers: { Authorization: `Bearer ${key}` } });
  needsKey.value = false;
}

export async function signOut() {
  await remove("session");
  session.value = undefined;
  needsKey.value = true;
}

/** Whether the user has a scope; true until it is known. @param {"read" | "write" | "operator"} scope */
export const may = (scope) => session.value?.scopes.includes(scope) ?? true;
