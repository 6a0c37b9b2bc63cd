// Applies the light or dark theme before the first paint. It is a classic script because modules run later.
"use strict";
try {
  const chosen = localStorage.getItem("learnloop.theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch {
  // Without local storage the page follows the system's theme.
}
