// The event feed of the journal, the newest first.

import { matches } from "./cards.js";
import { List, attribute, el, shown, text, titled } from "./dom.js";
import { when } from "./format.js";
import { rank, sign } from "./severity.js";
import { follow } from "./stream.js";

const kept = 100;
const fetched = 50; // at first, so that the page loads quickly

// kinds are the journal's kinds of events; the stream uses them as names.
const kinds = ["incident", "transition", "ack", "agent", "enforcement"];

export class Events {
  #all = new Map(); // by id
  #filter = "";
  #due = 0;
  #section = document.getElementById("events");
  #list = new List(this.#section.querySelector(".feed"), {
    key: (e) => e.id,
    make: () => {
      const time = el("time");
      const mark = el("span", { class: "mark" });
      const where = el("span", { class: "where" });
      const what = el("span", { class: "what" });
      return Object.assign(el("li", {}, time, mark, where, what), { time, mark, where, what });
    },
    update: (node, e) => {
      const severity = this.#severity(e);
      const time = new Date(e.last ?? e.time);
      attribute(node, "data-event", e.id);
      attribute(node, "data-kind", e.kind);
      attribute(node, "data-severity", severity);
      attribute(node.time, "datetime", time.toISOString());
      text(node.time, when(time, new Date()));
      text(node.mark, `${sign(severity)} ${severity}`);
      text(node.where, e.entity?.gpu ? `GPU ${e.entity.gpu}` : "host");
      titled(
        node.what,
        (e.count > 1 ? `×${e.count} ` : "") + (e.message || e.what || e.kind) + (e.workload ? ` (${e.workload})` : ""),
      );
    },
  });

  constructor(url) {
    this.url = url;
    this.stream = follow(`${url}?follow=1`, {
      every: 15_000,
      open: () => this.#load(),
      events: Object.fromEntries(kinds.map((kind) => [kind, (data) => this.#add([JSON.parse(data)])])),
    });
  }

  // load fetches events from before the stream, and missed ones.
  #load() {
    fetch(`${this.url}?limit=${fetched}`)
      .then((answer) => (answer.ok ? answer.json() : Promise.reject(new Error(answer.statusText))))
      .then(({ events }) => this.#add(events))
      .catch(() => {}); // runs again when the stream reconnects
  }

  #severity(e) {
    if (e.shadow && e.to !== "ok") return "info"; // no action is needed
    if (e.from !== e.to && e.to) return e.to === "ok" ? "ok" : rank(e.severity) ? e.severity : "warning";
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

  #draw() {
    const sorted = [...this.#all.values()]
      .sort((a, b) => (a.time < b.time ? 1 : a.time > b.time ? -1 : 0))
      .slice(0, kept);
    this.#all = new Map(sorted.map((e) => [e.id, e]));
    this.#list.show(
      sorted.filter((e) =>
        matches(
          this.#filter,
          e.message,
          e.what,
          e.kind,
          e.check,
          e.workload,
          this.#severity(e),
          e.entity?.gpu ? `gpu ${e.entity.gpu}` : "host",
        ),
      ),
    );
    shown(this.#section.querySelector(".empty"), sorted.length === 0);
  }
}
