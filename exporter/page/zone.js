// The time zone in which the page shows times: the browser's or UTC. The choice
// is remembered. A change is the document's event "zone".

const key = "gpusteward-zone";
let utc = false;
try {
  utc = localStorage.getItem(key) === "utc";
} catch {
  // a browser that stores nothing starts with the local time
}

// inUTC reports whether UTC is chosen.
export const inUTC = () => utc;

// zone is the name of the chosen zone, for Intl; undefined is the browser's.
export const zone = () => (utc ? "UTC" : undefined);

// label is the short name of the chosen zone: UTC, CET, GMT+9.
export function label() {
  if (utc) return "UTC";
  const parts = new Intl.DateTimeFormat("en", { timeZoneName: "short" }).formatToParts(new Date());
  return parts.find((part) => part.type === "timeZoneName")?.value ?? "local";
}

const button = document.getElementById("zone");

function say() {
  button.textContent = utc ? "Time: UTC" : "Time: local";
  button.title = `Times are in ${utc ? "UTC" : Intl.DateTimeFormat().resolvedOptions().timeZone}`;
}

say();
button.addEventListener("click", () => {
  utc = !utc;
  try {
    localStorage.setItem(key, utc ? "utc" : "local");
  } catch {
    // not stored
  }
  say();
  document.dispatchEvent(new Event("zone"));
});
