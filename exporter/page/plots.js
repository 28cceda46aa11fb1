// Charts with times and values, as an open card or job has them.

import { attribute, el, shown } from "./dom.js";
import { number, unknown } from "./format.js";
import { say } from "./spark.js";

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
const dashes = [undefined, [6, 3], [2, 3], [8, 3, 2, 3], [1, 4]]; // not by colour alone
const chartHeight = 150;

// Plots draw charts. A chart has a title, a unit with its divisor (by), series
// by their legend, and may have a top and a number of digits. source returns
// the times and the points of a series; key is of the thing that they are of.
export class Plots {
  #plots = [];
  #retheme = () => this.#rebuild();

  constructor(parent, charts, { key, times, of }) {
    Object.assign(this, { charts, key, times, of });
    this.boxes = charts.map((chart) =>
      el("figure", { class: "plot" }, el("figcaption", {}, `${chart.title}, ${chart.unit}`)),
    );
    this.failure = el(
      "p",
      { class: "note warning", hidden: "" },
      "The charts cannot be loaded: the agent does not answer, or was replaced by another version. Reload the page.",
    );
    parent.append(this.failure, el("div", { class: "plots" }, ...this.boxes));
    document.addEventListener("theme", this.#retheme);
    this.resizing = new ResizeObserver(() => this.#resize());
    this.resizing.observe(parent);
    loadLibrary().then((uPlot) => this.#build(uPlot), () => shown(this.failure, true));
  }

  close() {
    this.closed = true;
    this.resizing.disconnect();
    document.removeEventListener("theme", this.#retheme);
    this.#plots.forEach((plot) => plot.destroy());
    this.#plots = [];
  }

  // draw updates the charts.
  draw() {
    const times = this.times();
    this.charts.forEach((chart, i) => {
      const all = Object.values(chart.series).map((name) =>
        this.of(name).map((v) => (v === null ? null : v / chart.by)),
      );
      const words = Object.keys(chart.series).map((name, at) =>
        say(name, all[at], (v) => (v === null ? "not known" : `${number(v, chart.digits ?? 1)} ${chart.unit}`)),
      );
      attribute(this.boxes[i], "aria-label", `${chart.title}. ${words.join(". ")}`);
      if (all[0].length) this.#plots[i]?.setData([times, ...all]);
    });
  }

  #build(uPlot) {
    if (this.closed) return;
    this.uPlot = uPlot;
    const stroke = colour("--dim");
    const grid = { stroke: colour("--chart-grid"), width: 1 };
    const axis = { stroke, grid, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    this.#plots = this.charts.map((chart, i) => {
      const names = Object.keys(chart.series);
      return new uPlot(
        {
          width: Math.max(this.boxes[i].clientWidth, 100),
          height: chartHeight,
          legend: { show: true },
          cursor: { drag: { x: false, y: false }, sync: { key: this.key } },
          scales: {
            y: { range: (_, low, high) => [0, Math.max(Number.isFinite(chart.top) ? chart.top : 0, high ?? 0) || 1] },
          },
          axes: [
            {
              ...axis,
              space: 70,
              values: [
                [60, "{HH}:{mm}", null, null, null, null, null, null, 1],
                [1, "{HH}:{mm}:{ss}", null, null, null, null, null, null, 1],
              ],
            },
            { ...axis, size: 44 },
          ],
          series: [
            { value: "{HH}:{mm}:{ss}" },
            ...names.map((name, at) => ({
              label: name,
              stroke: colour(`--series-${at + 1}`),
              width: 1.5,
              points: { show: false },
              dash: dashes[at],
              value: (_, v) =>
                v === null || v === undefined ? unknown : `${number(v, chart.digits ?? 1)} ${chart.unit}`,
            })),
          ],
        },
        [[], ...names.map(() => [])],
        this.boxes[i],
      );
    });
    this.draw();
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
