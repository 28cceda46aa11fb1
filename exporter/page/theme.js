// Sets the theme that was chosen before anything is painted: no module, so that
// it comes before the page does. auto is what the system says.
(() => {
  const themes = ["auto", "light", "dark"];
  const key = "gpusteward-theme";
  let theme = "auto";
  try {
    theme = localStorage.getItem(key);
  } catch {
    // a browser that keeps nothing starts with auto each time
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
        // forgotten with the page
      }
      apply();
    });
  });
  dark.addEventListener("change", apply);
})();
