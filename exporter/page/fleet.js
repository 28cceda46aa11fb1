// Keeps the page of all hosts up to date, without a reload: what is open stays open, and the
// keyboard's place is not taken away.

import { attribute } from "./dom.js";

const every = 30_000; // milliseconds

async function renew() {
  const main = document.querySelector("main");
  if (document.hidden || main.contains(document.activeElement)) return;
  let stale = "";
  try {
    const answer = await fetch(location.href);
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    const open = document.querySelector("details")?.open;
    for (const part of [".driver", "#notes", "main"]) {
      document.querySelector(part).replaceChildren(...fresh.querySelector(part).childNodes);
    }
    if (open) document.querySelector("details")?.setAttribute("open", "");
    stale = null;
  } catch {
    // the agent does not answer: the page turns grey
  }
  attribute(document.body, "data-stale", stale);
}

setInterval(renew, every);
