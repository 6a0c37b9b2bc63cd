// Light or dark, before anything is drawn. A classic script, because modules run after the first paint.
"use strict";
try {
  const chosen = localStorage.getItem("learnloop.theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch {
  // A browser that keeps nothing: the page looks as the system does.
}
