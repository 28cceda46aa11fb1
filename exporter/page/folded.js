// A driver that is loaded again makes checks lose their data and find it again.
// These events become one line.

const least = 2; // events of a fold
const pause = 90_000; // milliseconds between events that belong together
const around = 15_000; // milliseconds around a gap in which a fault ends because of it

const lost = (e) => e.kind === "transition" && e.to === "unknown";
const found = (e) => e.kind === "transition" && e.from === "unknown";

// folded returns the events, the newest first, as items: each has its key and
// its events. An item with several events is a gap in the data, with whether it
// has ended.
export function folded(newestFirst) {
  const events = [...newestFirst].reverse();
  const gaps = [];
  let gap = null;
  for (const e of events) {
    if (!lost(e) && !found(e)) continue;
    const at = Date.parse(e.time);
    const belongs = gap && (at - gap.last <= pause || (found(e) && lost(gap.events.at(-1))));
    if (!belongs) gaps.push((gap = { events: [], first: at }));
    gap.last = at;
    gap.events.push(e);
  }
  const of = new Map(); // event to its gap
  for (const one of gaps.filter((g) => g.events.length >= least)) {
    for (const e of events) {
      const at = Date.parse(e.time);
      const over = e.kind === "transition" && e.to === "ok" && at >= one.first - around && at <= one.last + around;
      if (over || one.events.includes(e)) of.set(e, one);
    }
  }
  const items = new Map();
  for (const e of newestFirst) {
    const one = of.get(e);
    const key = one ? `gap ${one.events[0].id}` : e.id;
    if (!items.has(key)) items.set(key, { key, events: [], ends: one && found(one.events.at(-1)) });
    items.get(key).events.push(e);
  }
  return [...items.values()];
}
