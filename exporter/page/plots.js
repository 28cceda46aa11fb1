// Charts with times and values, as an open card or job has them.

import { attribute, el, shown } from "./dom.js";
import { forget, get } from "./fetch.js";
import { number, unknown } from "./format.js";
import { say } from "./spark.js";
import { inUTC } from "./zone.js";

// The chart library is loaded with the first charts.
let library = null;

function loadLibrary() {
  library ??= new Promise((done, failed) => {
    const at = (name) => new URL(`vendor/${name}`, import.meta.url);
    document.head.append(el("link", { rel: "stylesheet", href: at("uPlot.min.css") }));
    const script = el("script", { src: at("uPlot.iife.min.js") });
    script.addEventListener("load", () => done(window.uPlot));
    script.addEventListener("error", () => {
      library = null;
      failed(new Error("the chart library cannot be loaded"));
    });
    document.head.append(script);
  });
  return library;
}

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const dashes = [undefined, [6, 3], [2, 3], [8, 3, 2, 3]]; // not by colour alone
const chartHeight = 150;
const dayEvery = 60_000; // milliseconds between requests of the last day

// The ranges of time that charts can have; what was chosen last holds for the
// charts that are opened next.
const spans = { quarter: "15 minutes", day: "24 hours" };
let chosen = "quarter";

// pile returns the series of which each is the sum of those until it.
function pile(all) {
  const sums = [];
  for (const points of all) {
    const below = sums.at(-1);
    sums.push(points.map((v, i) => (v === null || below?.[i] === null ? null : v + (below?.[i] ?? 0))));
  }
  return sums;
}

// Plots draw charts. A chart has a title, a unit with its divisor (by), and
// series by their legend. It may have a top, a number of digits, and colours:
// with these, its series are parts of a whole, and lie one on another. times
// and of return the times and the points of a series; charts with one key share
// their cursor. day is the query for the last day.
export class Plots {
  #plots = [];
  #points = []; // by chart and series
  #retheme = () => this.#rebuild();
  #day = null; // the last day, as the agent sent it
  #asked = 0; // when the day was

  constructor(parent, charts, { key, times, of, day }) {
    Object.assign(this, { charts, key, recent: { times, of }, day });
    this.buttons = Object.entries(spans).map(([span, words]) => {
      const button = el("button", { type: "button", "data-span": span }, words);
      button.addEventListener("click", () => {
        chosen = span;
        this.#choose();
      });
      return button;
    });
    this.boxes = charts.map((chart) =>
      el("figure", { class: "plot" }, el("figcaption", {}, `${chart.title}, ${chart.unit}`)),
    );
    this.failure = el(
      "p",
      { class: "note warning", hidden: "" },
      "The charts cannot be loaded: the agent does not answer, or was replaced by another version. Reload the page.",
    );
    parent.append(el("div", { class: "spans", role: "group", "aria-label": "Range of the charts" }, ...this.buttons),
      this.failure, el("div", { class: "plots" }, ...this.boxes));
    document.addEventListener("theme", this.#retheme);
    document.addEventListener("zone", this.#retheme);
    this.#choose();
    this.resizing = new ResizeObserver(() => this.#resize());
    this.resizing.observe(parent);
    loadLibrary().then((uPlot) => this.#build(uPlot), () => shown(this.failure, true));
  }

  close() {
    this.closed = true;
    this.resizing.disconnect();
    document.removeEventListener("theme", this.#retheme);
    document.removeEventListener("zone", this.#retheme);
    forget(this.#name);
    this.#plots.forEach((plot) => plot.destroy());
    this.#plots = [];
  }

  get #name() {
    return `last day of ${this.key}`;
  }

  #choose() {
    this.span = chosen;
    for (const button of this.buttons) attribute(button, "aria-pressed", String(button.dataset.span === this.span));
    if (this.span === "quarter") forget(this.#name);
    this.#asked = 0;
    this.draw();
  }

  // load asks for the last day, once a minute while it is shown.
  async #load() {
    if (this.span !== "day" || Date.now() - this.#asked < dayEvery) return;
    this.#asked = Date.now();
    const day = await get(`api/v1/history/day?${this.day}`, this.#name);
    if (this.closed || this.span !== "day") return forget(this.#name);
    if (!day) this.#asked -= dayEvery - 10_000; // again in ten seconds
    this.#day = day ?? this.#day;
    this.draw();
  }

  times() {
    if (this.span !== "day") return this.recent.times();
    const length = Object.values(this.#day?.series ?? {})[0]?.length ?? 0;
    const end = Date.parse(this.#day?.end) / 1000;
    return Array.from({ length }, (_, i) => end - (length - 1 - i) * this.#day.step_seconds);
  }

  of(name) {
    return this.span === "day" ? (this.#day?.series[name] ?? []) : this.recent.of(name);
  }

  // draw updates the charts.
  draw() {
    this.#load();
    const times = this.times();
    this.charts.forEach((chart, i) => {
      const all = Object.values(chart.series).map((name) =>
        this.of(name).map((v) => (v === null ? null : v / chart.by)),
      );
      const words = Object.keys(chart.series).map((name, at) =>
        say(name, all[at], (v) => (v === null ? "not known" : `${number(v, chart.digits ?? 1)} ${chart.unit}`),
          spans[this.span]),
      );
      attribute(this.boxes[i], "aria-label", `${chart.title}. ${words.join(". ")}`);
      this.#points[i] = all;
      if (all[0].length || this.span === "day") this.#plots[i]?.setData([times, ...(chart.colours ? pile(all).reverse() : all)]);
    });
  }

  #build(uPlot) {
    if (this.closed) return;
    this.uPlot = uPlot;
    const stroke = colour("--dim");
    const grid = { stroke: colour("--chart-grid"), width: 1 };
    const axis = { stroke, grid, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    this.#plots = this.charts.map(
      (chart, i) =>
        new uPlot(
          {
            width: Math.max(this.boxes[i].clientWidth, 100),
            height: chartHeight,
            legend: { show: true },
            tzDate: (seconds) => (inUTC() ? uPlot.tzDate(new Date(1000 * seconds), "Etc/UTC") : new Date(1000 * seconds)),
            cursor: { drag: { x: false, y: false }, sync: { key: this.key } },
            scales: { y: { range: (_, low, high) => [0, Math.max(chart.top || 0, (chart.top ? 1 : 1.1) * high) || 1] } },
            axes: [
              {
                ...axis,
                space: 70,
                size: 28,
                values: [
                  [60, "{HH}:{mm}", null, null, null, null, null, null, 1],
                  [1, "{HH}:{mm}:{ss}", null, null, null, null, null, null, 1],
                ],
              },
              { ...axis, size: 44 },
            ],
            series: [{ value: "{HH}:{mm}:{ss}" }, ...this.#lines(chart, i)],
          },
          [[], ...Object.keys(chart.series).map(() => [])],
          this.boxes[i],
        ),
    );
    this.draw();
  }

  // lines returns how the series of a chart are drawn. Of parts, the pile of all
  // comes first, and smaller ones cover it.
  #lines(chart, i) {
    const all = Object.keys(chart.series).map((label, at) => {
      const value = (_, __, ___, now) => { // of the legend
        const points = this.#points[i]?.[at] ?? [];
        const v = points[now ?? points.length - 1]; // without a cursor, the newest
        return v === null || v === undefined ? unknown : `${number(v, chart.digits ?? 1)} ${chart.unit}`;
      };
      const line = { label, value, points: { show: false } };
      if (chart.colours) return { ...line, fill: colour(chart.colours[at]), width: 0 };
      return { ...line, stroke: colour(`--series-${at + 1}`), width: 1.5, dash: dashes[at] };
    });
    return chart.colours ? all.reverse() : all;
  }

  #rebuild() {
    if (!this.uPlot) return;
    this.#plots.forEach((plot) => plot.destroy());
    this.#build(this.uPlot);
  }

  #resize() {
    this.#plots.forEach((plot, i) => {
      const width = Math.max(this.boxes[i].clientWidth, 100);
      if (plot.width !== width) plot.setSize({ width, height: chartHeight });
    });
  }
}
