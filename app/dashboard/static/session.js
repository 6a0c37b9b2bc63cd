// Who is signed in. The key itself is in a cookie that no script can read; nothing here keeps it.

import { signal } from "./vendor/signals.js";
import { get, needsKey, remove, request, url } from "./api.js";

/** @typedef {import("./api_types").SessionOut} Session */

export const session = signal(/** @type {Session | undefined} */ (undefined));

/** Ask who is signed in; where nobody is and somebody must be, the page asks for a key. */
export async function readSession() {
  session.value = await get("session").catch(() => undefined);
}

/** Exchange a key for a session. @param {string} key */
export async function signIn(key) {
  session.value = await request("POST", url("session"), { headers: { Authorization: `Bearer ${key}` } });
  needsKey.value = false;
}

export async function signOut() {
  await remove("session");
  session.value = undefined;
  needsKey.value = true;
}

/** Whether the caller may do something; true while it is not known. @param {"read" | "write" | "operator"} scope */
export const may = (scope) => session.value?.scopes.includes(scope) ?? true;
