// Sets the chosen theme before anything is painted. It is no module, so that it
// runs before the page is shown. auto follows the system.
(() => {
  const themes = ["auto", "light", "dark"];
  const key = "gpusteward-theme";
  let theme = "auto";
  try {
    theme = localStorage.getItem(key);
  } catch {
    // a browser that stores nothing starts with auto each time
  }
  if (!themes.includes(theme)) theme = "auto";

  const dark = matchMedia("(prefers-color-scheme: dark)");
  const apply = () => {
    document.documentElement.dataset.theme = theme === "auto" ? (dark.matches ? "dark" : "light") : theme;
    const button = document.getElementById("theme");
    if (button) button.textContent = `Theme: ${theme}`;
    document.dispatchEvent(new Event("theme"));
  };

  apply();
  document.addEventListener("DOMContentLoaded", () => {
    apply();
    document.getElementById("theme").addEventListener("click", () => {
      theme = themes[(themes.indexOf(theme) + 1) % themes.length];
      try {
        localStorage.setItem(key, theme);
      } catch {
        // not stored
      }
      apply();
    });
  });
  dark.addEventListener("change", apply);
})();
