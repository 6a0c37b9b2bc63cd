// Where a page was scrolled to, for going back to it and for loading it again.

const _PATIENCE_MS = 10_000;
const _KEPT_EVERY_MS = 200;
let waiting = 0;
let isReturning = false;
let stop = () => {};

/** Remember the position in the history's current entry. */
function keep() {
  clearTimeout(waiting);
  waiting = 0;
  history.replaceState({ scrolled: scrollY }, "");
}

addEventListener("scroll", () => {
  waiting ||= setTimeout(keep, _KEPT_EVERY_MS);
});

/** Call before another page is visited. */
export function leave() {
  stop();
  keep();
  isReturning = false;
}

/** Scroll to the beginning of a page that is visited; a page that was returned to keeps its position. */
export function toTop() {
  if (!isReturning) scrollTo(0, 0);
}

/** Scroll to where the page of the history's current entry was left, once its data has arrived. */
export function restore() {
  stop();
  clearTimeout(waiting); // the position of the page before is not this one's
  waiting = 0;
  isReturning = true;
  const wanted = Number(history.state?.scrolled ?? 0);
  const observer = new ResizeObserver(() => {
    const isLoading = document.querySelector("main .loading") !== null;
    if (isLoading || document.documentElement.scrollHeight - innerHeight < wanted) return;
    scrollTo(0, wanted);
    stop();
  });
  const timer = setTimeout(() => stop(), _PATIENCE_MS);
  const hands = new AbortController(); // a reader who scrolls in the meantime keeps their place
  for (const type of ["wheel", "touchstart", "keydown", "pointerdown"])
    addEventListener(type, () => stop(), { signal: hands.signal });
  stop = () => {
    observer.disconnect();
    clearTimeout(timer);
    hands.abort();
    stop = () => {};
  };
  requestAnimationFrame(() => observer.observe(document.body));
}
