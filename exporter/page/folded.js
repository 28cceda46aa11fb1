// A driver that is loaded again makes each check of each GPU lose its data and
// find it again. These events become one line.

const least = 4; // events of a fold
const pause = 90_000; // milliseconds between events that belong together
const around = 15_000; // milliseconds around a gap in which a fault ends because of it

const entity = (e) => `${e.check} ${Object.values(e.entity ?? {}).join(" ")}`;
const lost = (e) => e.kind === "transition" && e.to === "unknown";
const found = (e) => e.kind === "transition" && e.from === "unknown";

// folded returns the events, the newest first, as items: each has its key and
// its events. An item with several events is a gap in the data, with the number
// of its checks, and whether it has ended.
export function folded(newestFirst) {
  const events = [...newestFirst].reverse();
  const gaps = [];
  let gap = null;
  for (const e of events) {
    if (!lost(e) && !found(e)) continue;
    const at = Date.parse(e.time);
    const belongs = gap && (at - gap.last <= pause || (found(e) && gap.open.has(entity(e))));
    if (!belongs) gaps.push((gap = { events: [], open: new Set(), checks: new Set(), first: at }));
    gap.last = at;
    gap.events.push(e);
    gap.checks.add(entity(e));
    if (lost(e)) gap.open.add(entity(e));
    else gap.open.delete(entity(e));
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
    if (!items.has(key)) items.set(key, { key, events: [], checks: one?.checks.size, ends: one && one.open.size === 0 });
    items.get(key).events.push(e);
  }
  return [...items.values()];
}
