// The contents of an open card: charts with times and values, every fault, the
// MIG devices and the GPU's other names.

import { List, attribute, el, shown, text } from "./dom.js";
import { gibibytes, number, ofMemory, percent, unknown } from "./format.js";
import { say } from "./spark.js";
import { faultLines } from "./strip.js";

// charts are the charts of a GPU, with a divisor for each unit.
const charts = [
  {
    title: "Activity",
    unit: "%",
    by: 0.01,
    top: () => 100,
    series: { Load: "utilization_ratio", SM: "sm_ratio", Tensor: "tensor_ratio", DRAM: "dram_ratio" },
  },
  {
    title: "Memory",
    unit: "GiB",
    by: 2 ** 30,
    top: (g) => g.memory_total_bytes / 2 ** 30,
    series: { Used: "memory_used_bytes" },
  },
  { title: "Power", unit: "W", by: 1, top: (g) => g.power_limit_watts, series: { Power: "power_watts" } },
  { title: "Temperature", unit: "°C", by: 1, top: () => 100, series: { GPU: "temperature_celsius" } },
  { title: "SM clock", unit: "GHz", by: 1e9, series: { Clock: "sm_clock_hertz" } },
  {
    title: "Traffic",
    unit: "GB/s",
    by: 1e9,
    series: {
      "NVLink ↓": "nvlink_rx_bytes_per_second",
      "NVLink ↑": "nvlink_tx_bytes_per_second",
      "PCIe ↓": "pcie_rx_bytes_per_second",
      "PCIe ↑": "pcie_tx_bytes_per_second",
    },
  },
];

// The chart library is loaded with the first open card.
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
const chartHeight = 150;

export class Detail {
  #plots = [];
  #now = 0;
  #retheme = () => this.#rebuild();

  constructor(parent, history) {
    this.history = history;
    this.boxes = charts.map((chart) =>
      el("figure", { class: "plot" }, el("figcaption", {}, `${chart.title}, ${chart.unit}`)),
    );
    const faults = el("ul", { class: "faults", "aria-label": "Faults" });
    this.faults = faultLines(faults, () => this.#now);
    this.mig = el(
      "table",
      { hidden: "" },
      el("caption", {}, "MIG devices"),
      el(
        "thead",
        {},
        el("tr", {}, ...["Profile", "Instance", "SM", "Memory"].map((t) => el("th", { scope: "col" }, t))),
      ),
    );
    const body = el("tbody");
    this.mig.append(body);
    this.devices = new List(body, {
      key: (m) => m.uuid,
      make: (m) => el("tr", { "data-mig": m.uuid }, ...[0, 1, 2, 3].map(() => el("td"))),
      update: (row, m) => {
        [
          m.profile,
          `${m.gi}/${m.ci}`,
          percent(m.sm_activity_ratio),
          ofMemory(m.memory_used_bytes, m.memory_total_bytes),
        ].forEach((v, i) => text(row.cells[i], v));
      },
    });
    this.identity = el("p", { class: "dim identity" });
    this.failure = el(
      "p",
      { class: "note warning", hidden: "" },
      "The charts cannot be loaded: the agent does not answer, or was replaced by another version. Reload the page.",
    );
    parent.append(faults, this.failure, el("div", { class: "plots" }, ...this.boxes), this.mig, this.identity);
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

  show(gpu, now) {
    this.#now = now;
    this.faults.show(gpu.faults ?? []);
    shown(this.faults.parent, Boolean(gpu.faults?.length));
    this.devices.show(gpu.mig_devices ?? []);
    shown(this.mig, Boolean(gpu.mig_devices?.length));
    const engines = ["encoder", "decoder", "jpeg", "ofa"]
      .map((e) => `${e} ${percent(gpu.utilization_ratio?.[e])}`)
      .join(" · ");
    const clocks = ["graphics", "memory", "video"]
      .map((c) => `${c} ${gpu.clock_hertz?.[c] === undefined ? unknown : number(gpu.clock_hertz[c] / 1e9, 2)} GHz`)
      .join(" · ");
    text(
      this.identity,
      `${gpu.uuid} · PCI ${gpu.pci_bus_id ?? unknown} · ${engines} · ${clocks}` +
        ` · memory ${number(gpu.temperature_celsius?.memory)} °C` +
        ` · ${gibibytes(gpu.memory_bytes?.reserved)} GiB reserved`,
    );
  }

  // draw updates the charts.
  draw(gpu) {
    this.gpu = gpu;
    const times = this.history.times();
    charts.forEach((chart, i) => {
      const all = Object.values(chart.series).map((name) =>
        this.history.of(gpu.uuid, name).map((v) => (v === null ? null : v / chart.by)),
      );
      const words = Object.keys(chart.series).map((name, at) =>
        say(name, all[at], (v) => (v === null ? "not known" : `${number(v, 1)} ${chart.unit}`)),
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
    this.#plots = charts.map((chart, i) => {
      const names = Object.keys(chart.series);
      const top = chart.top?.(this.gpu);
      return new uPlot(
        {
          width: Math.max(this.boxes[i].clientWidth, 100),
          height: chartHeight,
          legend: { show: true },
          cursor: { drag: { x: false, y: false }, sync: { key: this.gpu.uuid } },
          scales: { y: { range: (_, low, high) => [0, Math.max(Number.isFinite(top) ? top : 0, high ?? 0) || 1] } },
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
              dash: [undefined, [6, 3], [2, 3], [8, 3, 2, 3]][at], // not by colour alone
              value: (_, v) => (v === null || v === undefined ? unknown : `${number(v, 1)} ${chart.unit}`),
            })),
          ],
        },
        [[], ...names.map(() => [])],
        this.boxes[i],
      );
    });
    this.draw(this.gpu);
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
