// The contents of an open card: every fault, charts, the MIG devices and the
// GPU's other names.

import { List, el, shown, text } from "./dom.js";
import { gibibytes, held, number, ofMemory, percent, unknown } from "./format.js";
import { Plots } from "./plots.js";
import { Processes } from "./processes.js";
import { grafana, link } from "./scope.js";
import { faultLines } from "./strip.js";

// chartsOf returns the charts of a GPU.
const chartsOf = (gpu) => [
  {
    title: "Activity",
    unit: "%",
    by: 0.01,
    top: 100,
    series: { Load: "utilization_ratio", SM: "sm_ratio", Tensor: "tensor_ratio", DRAM: "dram_ratio" },
  },
  {
    title: "Memory",
    unit: "GiB",
    by: 2 ** 30,
    top: gpu.memory_total_bytes / 2 ** 30,
    series: { Used: "memory_used_bytes" },
  },
  { title: "Power", unit: "W", by: 1, top: gpu.power_limit_watts, series: { Power: "power_watts" } },
  { title: "Temperature", unit: "°C", by: 1, top: 100, series: { GPU: "temperature_celsius" } },
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

export class Detail {
  #now = 0;

  constructor(parent, history, gpu, cards) {
    this.cards = cards;
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
    const links = el("p", { class: "links" });
    this.links = new List(links, {
      key: (l) => l.href,
      make: (l) => el("a", { href: l.href, rel: l.out && "noreferrer", target: l.out && "_blank" }),
      update: (node, l) => text(node, l.words),
    });
    parent.append(faults, links);
    this.plots = new Plots(parent, chartsOf(gpu), {
      key: gpu.uuid,
      times: () => history.times(),
      of: (name) => history.gpus.of(gpu.uuid, name),
      day: `gpu=${encodeURIComponent(gpu.uuid)}`,
    });
    parent.append(this.mig);
    this.processes = new Processes(parent, `gpu=${encodeURIComponent(gpu.uuid)}`, `GPU ${gpu.index}`);
    parent.append(this.identity);
  }

  close() {
    this.plots.close();
    this.processes.close();
  }

  show(gpu, now) {
    this.#now = now;
    this.processes.show(now);
    const board = grafana(this.cards.grafana, "gpu", { gpu: gpu.index });
    this.links.show([
      ...this.cards.workloads(gpu).map((name) => ({ href: link("workload", name), words: name })),
      ...(board ? [{ href: board, words: "Grafana", out: true }] : []),
    ]);
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
        ` · ${gibibytes(gpu.memory_bytes?.reserved)} GiB reserved` +
        (gpu.throttled?.length ? ` · clocks held by ${held(gpu.throttled)}` : ""),
    );
  }

  draw() {
    this.plots.draw();
  }
}
