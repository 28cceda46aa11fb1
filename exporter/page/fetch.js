// Requests of the agent. The page says what cannot be read, and why, until it
// can.

import { List, el, text } from "./dom.js";

const failures = new Map(); // what to why
const list = new List(document.getElementById("failures"), {
  key: ([what]) => what,
  make: ([what]) => el("p", { class: "note warning", "data-failure": what }),
  update: (node, [what, why]) => text(node, `The ${what} cannot be read: ${why}. Trying again.`),
});

// settle says that what cannot be read because of why, or, without why, that it
// can.
function settle(what, why) {
  if (why) failures.set(what, why);
  else failures.delete(what);
  list.show([...failures]);
}

// get returns the JSON at url; null if it cannot be read. what is its name for
// people.
export async function get(url, what) {
  try {
    const answer = await fetch(url);
    if (!answer.ok) throw new Error(`${answer.status} ${(await answer.text()).trim() || answer.statusText}`);
    const all = await answer.json();
    settle(what);
    return all;
  } catch (err) {
    settle(what, err instanceof TypeError ? "the agent does not answer" : err.message);
    return null;
  }
}

// forget takes back that what cannot be read: nobody asks for it any more.
export const forget = (what) => settle(what);
