// The live page. What a test can hold on to:
//
//   [data-gpu="0"]            the card of GPU 0; also data-uuid, and data-health:
//                             ok, info, warning, critical, emergency, down, gone;
//                             data-gone is there once the GPU is not
//                             data-job-fault is the severity of a job's fault there
//     [data-field="power"]    a value: name, health, job, load, activity, memory,
//                             power, temperature, clocks, nvlink, pcie, ecc, reason
//     button.head             opens the card (aria-expanded)
//   [data-attention="job"]    a fault that needs attention: host, gpu, job, tenant
//                             (data-severity); #attention is hidden without any
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
//   #filter, #theme, #zone    the filter, the buttons of the theme (html[data-theme])
//                             and of the time zone
//   #scope                    shown if the URL names a GPU, a workload or a tenant
//   #guide[data-case]         what to do without a driver or without gpus
//   #shadow                   findings in shadow mode
//   [data-pid="1"]            a row of a process
//   [data-failure="history"]  what cannot be read; empty once it can
//   #say                      what a screen reader is told
//
// performance.getEntriesByName("update") holds what the last update cost, and
// "shown" when the first readings were shown.

import { Attention, gather } from "./attention.js";
import { Cards } from "./cards.js";
import { attribute, shown, text } from "./dom.js";
import { Events } from "./events.js";
import { clock } from "./format.js";
import { Guide } from "./guide.js";
import { History } from "./history.js";
import { Jobs, hanging } from "./jobs.js";
import { Kernels } from "./kernels.js";
import { Processes } from "./processes.js";
import { Heading, grafana, parse, resolve } from "./scope.js";
import { ofGPU, own, rank } from "./severity.js";
import { follow } from "./stream.js";
import { Shadow, Strip } from "./strip.js";
import { escalation, tenants, workloads } from "./tables.js";
import { label } from "./zone.js";

const staleAfter = 3000; // milliseconds without a message
const longGap = 10_000; // milliseconds after which the history is fetched again

const history = new History();
const cards = new Cards(history);
const jobs = new Jobs(history);
const url = document.body.dataset.events;
const heading = new Heading();
const views = [new Attention(), new Strip(), heading, new Guide(), cards, jobs, tenants(), escalation(), workloads(), new Shadow()];
if (url) views.push(new Events(url));
let heard = Date.now(); // time of the last message
let latest = null; // state
let shownTime = null;
let before = new Map(); // health by GPU, as last announced
let hung = new Map(); // words by hanging job, as last announced

// announce tells a screen reader what became worse or better.
function announce(state) {
  const words = [...aboutGPUs(state), ...aboutJobs(state)];
  if (words.length) text(document.getElementById("say"), words.slice(0, 4).map((w) => w.replace(/\.$/, "")).join(". "));
}

function aboutGPUs(state) {
  const words = [];
  const now = new Map(state.gpus.map((g) => [g.uuid, { gpu: g, health: ofGPU(g) }]));
  for (const [uuid, { gpu, health }] of now) {
    const old = before.get(uuid)?.health;
    if (!old || old === health) continue;
    const why = rank(health) > rank(old) ? own(gpu.faults)[0]?.what : "";
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
  show();
  if (drawn !== history.times().at(-1)) redraw();
  if (!performance.getEntriesByName("shown").length) performance.mark("shown");
  performance.clearMeasures("update");
  performance.measure("update", { start });
}

// show updates the views to the state and to what the URL names.
function show() {
  latest.attention = gather(latest); // for all views
  const scope = resolve(named, latest);
  attribute(document.body, "data-scope", scope?.kind ?? null);
  for (const view of views) view.show(latest, scope);
  if (arrived) arrive(scope);
  processes?.show(Date.parse(latest.time));
  kernels?.show(latest.workloads.find((w) => w.workload === named.id));
  const to = document.getElementById("grafana");
  const href = grafana(latest.host.grafana_url, "host");
  attribute(to, "href", href);
  shown(to, Boolean(href));
  const fleet = document.getElementById("fleet");
  attribute(fleet, "href", latest.host.fleet ? "fleet" : null);
  shown(fleet, Boolean(latest.host.fleet));
}

let named = parse(location.hash);
let arrived = true; // at this URL, and nothing was done about it yet
let opened = null; // UUID of the GPU whose card this opened
let processes = null; // of a workload
let kernels = null; // the same

// arrive opens what a URL is about, and closes what the one before opened.
function arrive(scope) {
  arrived = false;
  const gpu = scope?.kind === "gpu" ? scope.id : null;
  if (opened && opened !== gpu) cards.open(opened, false);
  if (gpu) cards.open(gpu, true);
  opened = gpu;
  processes?.close();
  kernels?.close();
  const section = document.getElementById("processes");
  const workload = named?.kind === "workload" ? named.id : null;
  processes = workload && new Processes(section, `workload=${encodeURIComponent(workload)}`, workload);
  kernels = workload && new Kernels(section);
  shown(section, Boolean(workload));
  cards.draw(); // some were hidden
  jobs.draw();
}

window.addEventListener("hashchange", () => {
  named = parse(location.hash);
  arrived = true;
  scrollTo(0, 0);
  if (!latest) return;
  show();
  if (named) heading.focus();
});

document.querySelector(".skip").addEventListener("click", (e) => {
  e.preventDefault(); // the fragment names what the page is about
  document.getElementById("gpus").focus();
});

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
    stale ? "stale" : latest ? `${clock(new Date(latest.time))} ${label()}` : "connecting",
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

document.addEventListener("zone", () => {
  pulse();
  if (latest) show();
});
history.load().then(redraw);
setInterval(pulse, 500);
document.addEventListener("visibilitychange", render);
window.addEventListener("online", stream.retry);

const box = document.getElementById("filter");
box.addEventListener("input", () => views.forEach((view) => view.filter?.(box.value.trim())));
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
