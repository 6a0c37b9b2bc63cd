// What is wider than its place scrolls; it fades out at an edge where more is to come.

import { useEffect, useRef } from "../vendor/hooks.js";
import { html } from "./html.js";

const _PIXEL = 1; // positions are rounded

/** Keep the attribute `data-more` of an element that scrolls: at which edges there is more. */
export function useOverflowHint() {
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  useEffect(() => {
    const element = /** @type {HTMLElement} */ (box.current);
    const look = () => {
      const right = element.scrollWidth - element.clientWidth - element.scrollLeft;
      element.dataset.more = [element.scrollLeft > _PIXEL && "left", right > _PIXEL && "right"]
        .filter(Boolean)
        .join(" ");
    };
    const resized = new ResizeObserver(look);
    for (const each of [element, ...element.children]) resized.observe(each);
    element.addEventListener("scroll", look, { passive: true });
    look();
    return () => {
      resized.disconnect();
      element.removeEventListener("scroll", look);
    };
  }, []);
  return box;
}

/**
 * What scrolls sideways where it is too wide, such as a table.
 * @param {{label: string, class?: string, children?: any}} props
 */
export function Sideways({ label, class: name = "", children }) {
  return html`<div ref=${useOverflowHint()} class=${`scroll ${name}`} tabindex="0" role="region"
      aria-label=${label}>${children}</div>`;
}

/** A row of links, scrolled to the current one. @param {{label: string, class?: string, children?: any}} props */
export function Strip({ label, class: name = "", children }) {
  const box = useOverflowHint();
  useEffect(() => {
    const [element, current] = [box.current, box.current?.querySelector("[aria-current]")];
    if (!element || !current) return;
    const [whole, part] = [element.getBoundingClientRect(), current.getBoundingClientRect()];
    element.scrollLeft += part.left + part.width / 2 - whole.left - whole.width / 2;
  });
  return html`<nav ref=${box} class=${`strip ${name}`} aria-label=${label}>${children}</nav>`;
}
