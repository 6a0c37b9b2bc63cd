// The frame of every page: navigation, the page itself, and the sign-in if the service requires a key.

import { Component, render } from "./vendor/preact.js";
import { useEffect, useRef } from "./vendor/hooks.js";
import { needsKey } from "./api.js";
import { Others, pageOf } from "./pages/index.js";
import { SignIn } from "./pages/sign_in.js";
import { html } from "./parts/html.js";
import { KeyHelp } from "./parts/key_help.js";
import { Failed } from "./parts/states.js";
import { Strip } from "./parts/strip.js";
import { ThemeSwitch } from "./parts/theme_switch.js";
import { ServiceState } from "./parts/service_state.js";
import { href, route } from "./router.js";
import { toTop } from "./scroll_position.js";
import { readSession, session, signOut } from "./session.js";

/** @type {[string, [string, string[]][]][]} */
const _PLACES = [
  [
    "Learn",
    [
      ["Runs", []],
      ["Start a run", ["start"]],
      ["Evaluations", ["evaluations"]],
      ["Improvements", ["improvements"]],
      ["Schedules", ["schedules"]],
    ],
  ],
  [
    "Use",
    [
      ["Ask", ["ask"]],
      ["Sessions", ["sessions"]],
      ["Models", ["models"]],
    ],
  ],
  [
    "Manage",
    [
      ["Data", ["data"]],
      ["Prompts", ["prompts"]],
      ["Webhooks", ["webhooks"]],
      ["Keys", ["keys"]],
      ["Settings", ["settings"]],
    ],
  ],
];

/** Places whose pages belong to another one. @type {Record<string, string>} */
const _WITHIN = { runs: "", compare: "", trajectories: "", releases: "models" };

function Navigation() {
  const here = route.value.names[0] ?? "";
  return html`<${Strip} label="Main">
    ${_PLACES.map(
      ([title, links]) => html`<div class="places">
        <span class="places-title">${title}</span>
        ${links.map(([label, names]) => {
          const isHere = (names[0] ?? "") === (_WITHIN[here] ?? here);
          return html`<a href=${href(names)} aria-current=${isHere ? "page" : undefined}>${label}</a>`;
        })}
      </div>`,
    )}
  <//>`;
}

/** Shows an error that a page throws while rendering, instead of a blank page. */
class Guard extends Component {
  /** @param {Error} error */
  componentDidCatch(error) {
    this.setState({ error });
  }

  render() {
    const { error } = /** @type {{error?: Error}} */ (this.state);
    const retry = () => this.setState({ error: undefined });
    return error ? html`<${Failed} error=${error} retry=${retry} />` : this.props.children;
  }
}

function Page() {
  const shown = pageOf(route.value);
  const main = useRef(/** @type {HTMLElement | null} */ (null));
  const isFirst = useRef(true);
  useEffect(() => {
    if (!shown) return;
    document.title = `${shown.title} · Learnloop`;
    if (!isFirst.current) main.current?.focus({ preventScroll: true });
    if (!isFirst.current) toTop();
    isFirst.current = false;
  }, [shown?.key]);
  return html`<main id="main" ref=${main} tabindex="-1">
    <${Guard} key=${shown?.key}>${shown ? shown.page() : html`<${Others} />`}<//></main>`;
}

function SignedIn() {
  const who = session.value;
  if (!who?.key_required) return null;
  return html`<span>${who.actor} <button class="quiet" onClick=${signOut}>Sign out</button></span>`;
}

function App() {
  return html`<a class="skip" href="#main" onClick=${skip}>Skip to the page</a>
    <header class="side">
      <a class="brand" href=${href([])}><span class="mark" aria-hidden="true"></span>Learnloop</a>
      <${Navigation} />
      <div class="side-end">
        <${ServiceState} /><${SignedIn} /><a href="docs">API reference</a><${KeyHelp} /><${ThemeSwitch} />
      </div>
    </header>
    ${needsKey.value ? html`<main id="main" tabindex="-1"><${SignIn} /></main>` : html`<${Page} />`}`;
}

/** @param {Event} event */
function skip(event) {
  event.preventDefault();
  document.getElementById("main")?.focus();
}

readSession();
render(html`<${App} />`, /** @type {HTMLElement} */ (document.getElementById("app")));
