// The live page. What a test can hold on to:
//
//   [data-gpu="0"]            the card of GPU 0; also data-uuid, and data-health:
//                             ok, info, warning, critical, emergency, down, gone;
//                             data-gone is there once the GPU is not
//     [data-field="power"]    a value: name, health, load, activity, memory,
//                             power, temperature, clocks, nvlink, pcie, ecc, reason
//     button.head             opens the card (aria-expanded)
//   [data-tile="health"]      a tile of the host strip (data-severity), with
//                             [data-field="health"]; also gpus, load, memory,
//                             power, hottest
//   [data-note="drained"]     a note: simulated, drained, driver, not-ready, broker
//   [data-check="gpu_lost"]   a fault in a list of faults
//   [data-job="NAME"]         a job; data-hangs is there while it hangs
//     [data-field="step"]     a value: place, step, goodput, slow
//     [data-part="host"]      a part of its bar
//     button.head             opens it (aria-expanded)
//     [data-rank="3"]         a row of an open job
//   [data-workload="NAME"]    a row of a workload; #workloads .more button shows all
//   [data-tenant="NAME"]      a row of a tenant (data-level)
//   [data-event="ID"]         an event (data-kind, data-severity)
//   #stale                    shown while the stream is cut; also body[data-stale]
//   #pulse[data-state]        wait, live or stale
//   #filter, #theme           the filter, the button of the theme (html[data-theme])
//   #say                      what a screen reader is told
//
// performance.getEntriesByName("update") holds what the last updates cost.

import { Cards } from "./cards.js";
import { attribute, shown, text } from "./dom.js";
import { Events } from "./events.js";
import { clock } from "./format.js";
import { History } from "./history.js";
import { Jobs, hanging } from "./jobs.js";
import { failing, ofGPU, rank } from "./severity.js";
import { follow } from "./stream.js";
import { Strip } from "./strip.js";
import { escalation, tenants, workloads } from "./tables.js";

const staleAfter = 3000; // milliseconds without a message
const longGap = 10_000; // milliseconds after which the history is fetched again

const history = new History();
const cards = new Cards(history);
const jobs = new Jobs(history);
const views = [new Strip(), cards, jobs, tenants(), escalation(), workloads()];
let heard = Date.now(); // time of the last message
let latest = null; // state
let shownTime = null;
let before = new Map(); // health by GPU, as last announced
let hung = new Map(); // words by hanging job, as last announced

// announce tells a screen reader what became worse or better.
function announce(state) {
  const words = [...aboutGPUs(state), ...aboutJobs(state)];
  if (words.length) text(document.getElementById("say"), words.slice(0, 4).join(". "));
}

function aboutGPUs(state) {
  const words = [];
  const now = new Map(state.gpus.map((g) => [g.uuid, { gpu: g, health: ofGPU(g) }]));
  for (const [uuid, { gpu, health }] of now) {
    const old = before.get(uuid)?.health;
    if (!old || old === health) continue;
    const why = rank(health) > rank(old) ? failing(gpu.faults)[0]?.what : "";
    words.push(`GPU ${gpu.index} is ${health}${why ? `: ${why}` : ""}`);
  }
  for (const [uuid, { gpu }] of before) if (!now.has(uuid)) words.push(`GPU ${gpu.index} is gone`);
  before = now;
  return words;
}

function aboutJobs(state) {
  const now = hanging(state);
  const words = [...now].filter(([name]) => !hung.has(name)).map(([name, why]) => `${name} hangs: ${why}`);
  for (const [name] of hung) if (!now.has(name)) words.push(`${name} no longer hangs`);
  hung = now;
  return words;
}

// render updates the page if it is visible.
function render() {
  if (!latest || document.hidden || shownTime === latest.time) return;
  const start = performance.now();
  shownTime = latest.time;
  announce(latest);
  for (const view of views) view.show(latest);
  if (drawn !== history.times().at(-1)) redraw();
  performance.clearMeasures("update");
  performance.measure("update", { start });
}

let drawn = null; // the step of the charts

function redraw() {
  drawn = history.times().at(-1);
  cards.draw();
  jobs.draw();
}

function pulse() {
  const stale = Date.now() - heard > staleAfter;
  const note = document.getElementById("stale");
  shown(note, stale);
  attribute(document.body, "data-stale", stale ? "" : null);
  attribute(document.getElementById("pulse"), "data-state", stale ? "stale" : latest ? "live" : "wait");
  if (stale) text(note, `Stale since ${clock(new Date(heard))}: the agent does not answer. Trying again.`);
  text(
    document.querySelector('[data-field="pulse"]'),
    stale ? "stale" : latest ? clock(new Date(latest.time)) : "connecting",
  );
}

const stream = follow("api/v1/live", {
  every: 2000,
  events: {
    state: (data) => {
      const gap = Date.now() - heard > longGap;
      heard = Date.now();
      latest = JSON.parse(data);
      history.add(latest);
      if (gap) history.load().then(redraw);
      pulse();
      render();
    },
  },
});

history.load().then(redraw);
setInterval(pulse, 500);
document.addEventListener("visibilitychange", render);
window.addEventListener("online", stream.retry);

const url = document.body.dataset.events;
const filtered = url ? [...views, new Events(url)] : views;

const box = document.getElementById("filter");
box.addEventListener("input", () => filtered.forEach((view) => view.filter?.(box.value.trim())));
document.addEventListener("keydown", (e) => {
  if (e.key === "/" && !e.ctrlKey && !e.metaKey && !e.altKey && !(e.target instanceof HTMLInputElement)) {
    e.preventDefault();
    box.focus();
    box.select();
  } else if (e.key === "Escape" && e.target === box) {
    box.value = "";
    box.dispatchEvent(new Event("input"));
  }
});
