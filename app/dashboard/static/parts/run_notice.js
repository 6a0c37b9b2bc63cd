// Shows how a run gets on while its page is not in sight: in the tab's title, and by a notice when it ends.

import { useEffect, useRef, useState } from "../vendor/hooks.js";
import { percent } from "../format.js";
import { ENDED } from "../run_data.js";
import { html } from "./html.js";
import { nameOf } from "./run_name.js";
import { visible } from "./text.js";

/** @typedef {import("../api_types").RunOut} Run */

/** Ids of the runs whose end the browser announces. @type {Set<string>} */
const _wanted = new Set();

/**
 * The tab's title, such as `73% · 9/14 · NAME` while a run is worked on: held-out success and iterations.
 * @param {Run} run
 */
function titleOf(run) {
  const { on } = run.verdict;
  const success = on && percent((on.latest ?? on.first).success);
  const { iterations_done: done, iterations_total: total } = run.progress;
  const state = ENDED.has(run.status)
    ? [run.status, success]
    : [success, `${done}/${total}`, run.status === "running" ? "" : run.status];
  return [...state, nameOf(run, 40)].filter(Boolean).join(" · ");
}

/** Keeps the title, and tells when the run ends. @param {Run} run */
export function useRunNotice(run) {
  const before = useRef(run.status);
  const title = titleOf(run);
  useEffect(() => {
    document.title = `${title} · Learnloop`;
  }, [title]);
  useEffect(() => {
    if (ENDED.has(run.status) && !ENDED.has(before.current) && _wanted.delete(run.run_id)) tell(run);
    before.current = run.status;
  }, [run.status]);
}

/** @param {Run} run */
function tell(run) {
  try {
    const notice = new Notification(`${nameOf(run)}: ${run.status}`, {
      body: visible(run.error ?? run.verdict.text).slice(0, 300),
      tag: run.run_id,
    });
    notice.onclick = () => window.focus();
  } catch {
    // Some browsers of phones have notices for service workers only; the title says it, too.
  }
}

/**
 * Asks for a notice when the run ends. The browser's permission is requested on a click only.
 * @param {{run: Run}} props
 */
export function NoticeSwitch({ run }) {
  const [isOn, setOn] = useState(_wanted.has(run.run_id));
  const [isBlocked, setBlocked] = useState(false);
  if (!("Notification" in window) || ENDED.has(run.status)) return null;
  async function toggle() {
    const isWanted = !isOn && (await Notification.requestPermission()) === "granted";
    setBlocked(!isOn && !isWanted);
    if (isWanted) _wanted.add(run.run_id);
    else _wanted.delete(run.run_id);
    setOn(isWanted);
  }
  return html`<button class="notify" aria-pressed=${isOn} onClick=${toggle}
      title="A notice of the browser when the run ends, as long as this page is open">Notify me</button>
    ${
      isBlocked &&
      html`<span class="wrong" role="alert">The browser blocks notices of this page. Its settings for this site allow
        them.</span>`
    }`;
}
