// The event feed of the journal, the newest first.

import { List, attribute, el, shown, text, titled } from "./dom.js";
import { get } from "./fetch.js";
import { folded } from "./folded.js";
import { matches, ranges, when } from "./format.js";
import { about } from "./scope.js";
import { rank, sign } from "./severity.js";
import { follow } from "./stream.js";

const kept = 100; // lines
const most = 600; // events
const few = 20; // lines, below which more are fetched
const fetched = 50; // at once, so that the page loads quickly

// kinds are the journal's kinds of events; the stream uses them as names.
const kinds = ["incident", "transition", "ack", "agent", "enforcement", "crash"];

export class Events {
  #all = new Map(); // by id
  #filter = "";
  #scope = null;
  #due = 0;
  #section = document.getElementById("events");
  #list = new List(this.#section.querySelector(".feed"), {
    key: (item) => item.key,
    make: () => {
      const time = el("time");
      const mark = el("span", { class: "mark" });
      const where = el("span", { class: "where" });
      const what = el("span", { class: "what" });
      const [head, all] = [el("summary"), el("ol", { tabindex: "0", "aria-label": "Events of this line" })];
      const more = el("details", { hidden: "" }, head, all);
      const node = Object.assign(el("li", {}, time, mark, where, what, more), { time, mark, where, what, more, head, all });
      more.addEventListener("toggle", () => this.#unfold(node));
      return node;
    },
    update: (node, item) => {
      const e = item.events[0]; // the last one
      const fold = item.events.length > 1;
      const severity = fold ? "info" : this.#severity(e);
      const time = new Date(e.last ?? e.time);
      node.item = item;
      attribute(node, "data-event", e.id);
      attribute(node, "data-kind", e.kind);
      attribute(node, "data-fold", fold ? `${item.events.length}` : null);
      attribute(node, "data-severity", severity);
      attribute(node.time, "datetime", time.toISOString());
      text(node.time, when(time, new Date()));
      text(node.mark, `${sign(severity)} ${fold ? "no data" : severity}`);
      text(node.where, fold ? places(item.events) : e.entity?.gpu ? `GPU ${e.entity.gpu}` : "host");
      titled(node.what, fold ? gap(item) : sentence(e));
      text(node.head, fold ? `${item.events.length} events` : "");
      shown(node.more, fold);
      this.#unfold(node);
    },
  });

  // unfold shows the events of a fold that the reader has opened.
  #unfold({ more, all, item }) {
    if (!more.open || all.children.length === item.events.length) return;
    all.replaceChildren(...item.events.map((e) =>
      el("li", {}, `${when(new Date(e.time), new Date())} ${places([e])}: ${sentence(e)}`)));
  }

  constructor(url) {
    this.url = url;
    document.addEventListener("zone", () => this.#draw());
    this.stream = follow(`${url}?follow=1`, {
      every: 15_000,
      open: () => this.#load(),
      events: Object.fromEntries(kinds.map((kind) => [kind, (data) => this.#add([JSON.parse(data)])])),
    });
  }

  // load fetches events from before the stream, and missed ones: more, if a fold
  // takes up most of them.
  async #load(until = "") {
    const all = await get(`${this.url}?limit=${fetched}${until && `&until=${until}`}`, "list of events");
    if (!all) {
      this.again ??= setTimeout(() => {
        this.again = null;
        this.#load(until);
      }, 15_000);
      return;
    }
    this.#add(all.events);
    const oldest = all.events.at(-1)?.time;
    const lines = folded([...this.#all.values()]).length;
    if (all.events.length === fetched && lines < few && this.#all.size < most && oldest !== until) this.#load(oldest);
  }

  #severity(e) {
    if ((e.shadow && e.to !== "ok") || e.result === "shadow") return "shadow"; // no action is needed
    if (e.to === "recovering") return "info"; // it is over, and not forgotten
    if (e.from !== e.to && e.to) return e.to === "ok" ? "ok" : rank(e.severity) ? e.severity : "info";
    return rank(e.severity) ? e.severity : "info";
  }

  #add(events) {
    for (const e of events) this.#all.set(e.id, e);
    this.#due ||= setTimeout(() => {
      this.#due = 0;
      this.#draw();
    }, 100); // a storm is drawn in one go
  }

  filter(words) {
    this.#filter = words;
    this.#draw();
  }

  // show narrows the feed to a scope.
  show(state, scope = null) {
    const same = scope?.kind === this.#scope?.kind && scope?.id === this.#scope?.id;
    this.#scope = scope;
    if (!same) this.#draw();
  }

  #draw() {
    const sorted = [...this.#all.values()]
      .sort((a, b) => (a.time < b.time ? 1 : a.time > b.time ? -1 : 0))
      .slice(0, most);
    this.#all = new Map(sorted.map((e) => [e.id, e]));
    const items = folded(sorted.filter((e) => about(this.#scope, e))).slice(0, kept);
    const found = items.filter(({ events }) => events.some((e) =>
      matches(
        this.#filter, e.message, e.what, e.kind, e.check, e.workload, this.#severity(e),
        e.entity?.gpu ? `gpu ${e.entity.gpu}` : "host",
      )));
    this.#list.show(found);
    shown(this.#section.querySelector(".empty"), items.length === 0);
  }
}

// sentence writes an event for people.
const sentence = (e) =>
  (e.count > 1 ? `×${e.count} ` : "") + (e.message || e.what || e.kind) + (e.workload ? ` (${e.workload})` : "");

// places names the GPUs of some events.
function places(events) {
  const gpus = events.map((e) => e.entity?.gpu).filter(Boolean).map(Number);
  return gpus.length ? `GPU ${ranges(gpus)}` : "host";
}

// gap tells of a time without data.
function gap({ events, ends }) {
  const [from, to] = [events.at(-1), events[0]].map((e) => when(new Date(e.time), new Date()));
  return ends
    ? `Checks had no data from ${from} to ${to}, as when the driver is loaded again.`
    : `Checks have had no data since ${from}.`;
}
