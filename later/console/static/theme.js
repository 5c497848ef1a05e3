// The chosen theme, set before the first paint. A plain script, because modules run only after it.
try {
  const theme = localStorage.getItem("later.theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // Storage is refused to this page: the system's theme stays.
}
