// A card for each GPU. An open card is as wide as the page, and has charts,
// every fault and the MIG devices.

import { Detail } from "./detail.js";
import { List, attribute, el, shown, text, titled } from "./dom.js";
import { Fold } from "./fold.js";
import {
  clock, harmful, held, margin, matches, names, number, ofMemory, pair, percent, scaled, traffic, unknown,
} from "./format.js";
import { link } from "./scope.js";
import { down, failing, ofGPU, rank, recovery, sign } from "./severity.js";
import { draw, say } from "./spark.js";

const goneFor = 60_000; // milliseconds that the card of a missing GPU stays
const roomy = 8; // GPUs up to which each has a large card

// rows are the values of a card with a sparkline.
const rows = [
  {
    field: "load", label: "Load", value: (g) => percent(g.utilization_ratio?.gpu), series: ["utilization_ratio"],
    top: () => 1, write: percent,
  },
  {
    field: "activity", label: "SM · tensor", series: ["sm_ratio", "tensor_ratio"], top: () => 1, write: percent,
    value: (g) => pair(percent(g.activity_ratio?.sm), " · ", percent(g.activity_ratio?.tensor)),
  },
  {
    field: "memory",
    label: "Memory",
    series: ["memory_used_bytes"],
    top: (g) => g.memory_total_bytes,
    write: (v) => ofMemory(v),
    value: (g) => ofMemory(g.memory_bytes?.used, g.memory_total_bytes),
  },
  {
    field: "power",
    label: "Power",
    series: ["power_watts"],
    top: (g) => g.power_limit_watts,
    write: (v) => scaled(v, "W"),
    value: (g) => pair(number(g.power_watts), " / ", number(g.power_limit_watts), " W"),
  },
  {
    field: "temperature",
    label: "Heat",
    series: ["temperature_celsius"],
    top: () => 100,
    write: (v) => `${number(v)} °C`,
    value: (g) => [g.temperature_celsius?.gpu === undefined ? unknown : `${number(g.temperature_celsius.gpu)} °C`,
      margin(g.temperature_margin_celsius)].filter(Boolean).join(" · "),
  },
];

const ghz = (v) => (v === undefined ? unknown : `${number(v / 1e9, 2)} GHz`);

// facts are the values of a card with a line of text.
const facts = [
  {
    field: "clocks",
    label: "SM clock",
    value: (g) => ghz(g.clock_hertz?.sm),
    warn: (g) => harmful(g.throttled),
  },
  { field: "nvlink", label: "NVLink", value: (g) => traffic(g.nvlink_bytes_per_second) },
  { field: "pcie", label: "PCIe", value: (g) => traffic(g.pcie_bytes_per_second) },
  {
    field: "ecc",
    label: "ECC",
    warn: (g) => g.ecc_errors?.uncorrected > 0,
    value: (g) =>
      g.ecc_errors
        ? `${number(g.ecc_errors.corrected)} corrected, ${number(g.ecc_errors.uncorrected)} uncorrected`
        : unknown,
  },
];

// sentence tells a fault of a job in a sentence.
const sentence = (job) => `${job.where}${/^[a-z]/.test(job.what) ? "" : ":"} ${job.what}`;

// A Card is the part of the page about one GPU.
class Card {
  constructor(cards, gpu) {
    const id = `gpu-${gpu.uuid}`;
    this.cards = cards;
    this.name = el("span", { class: "name", "data-field": "name" });
    this.index = el("span", { class: "index" });
    this.health = el("span", { class: "badge", "data-field": "health" });
    this.job = el("span", { class: "badge of-job", "data-field": "job" });
    this.button = el(
      "button",
      { type: "button", class: "head", "aria-expanded": "false", "aria-controls": `${id}-more` },
      this.index,
      this.name,
      this.job,
      this.health,
    );
    this.rows = rows.map((row) => {
      const value = el("dd", { "data-field": row.field });
      const chart = el("canvas", { role: "img", class: "spark" });
      return {
        ...row,
        node: el("div", { class: `row of-${row.field}` }, el("dt", {}, row.label), value, el("dd", { class: "chart" }, chart)),
        value,
        chart,
        of: row.value,
      };
    });
    this.facts = facts.map((fact) => {
      const value = el("dd", { "data-field": fact.field });
      return { ...fact, node: el("div", { class: "fact" }, el("dt", {}, fact.label), value), value, of: fact.value };
    });
    this.state = el("p", { class: "reason", "data-field": "reason" });
    this.more = el("div", { class: "detail", id: `${id}-more`, hidden: "" });
    this.node = el("article", { class: "card", "aria-label": `GPU ${gpu.index}` },
      el("h3", {}, this.button, el("a", { class: "alone", href: link("gpu", gpu.uuid), "aria-label": `GPU ${gpu.index} alone`,
        title: "This GPU alone, with a URL of its own" }, "↗")),
      el("dl", { class: "rows" }, ...this.rows.map((r) => r.node)),
      el("dl", { class: "facts" }, ...this.facts.map((f) => f.node)),
      this.state, this.more);
    this.node.card = this;
    this.fold = new Fold(this.node, this.button, this.more, (more) => {
      const detail = new Detail(more, cards.history, this.gpu, cards);
      detail.show(this.gpu, cards.now);
      return detail;
    });
  }

  // show shows the current reading. since is the time when a missing GPU
  // disappeared.
  show(gpu, since) {
    this.gpu = gpu;
    const health = since ? "gone" : ofGPU(gpu);
    attribute(this.node, "data-gpu", `${gpu.index}`);
    attribute(this.node, "data-uuid", gpu.uuid);
    attribute(this.node, "data-health", health);
    attribute(this.node, "data-gone", since && Date.now() - since > goneFor ? "long" : since ? "" : null);
    const job = since ? null : this.cards.trouble(gpu);
    attribute(this.node, "data-job-fault", job?.severity ?? null);
    text(this.job, job ? `${sign(job.severity)} job` : "");
    attribute(this.job, "title", job ? sentence(job) : null);
    attribute(this.node, "aria-label", `GPU ${gpu.index}, ${health}`);
    text(this.index, `${gpu.index}`);
    this.known = gpu.name ?? this.known; // a lost GPU no longer reports it
    titled(this.name, (this.known ?? gpu.uuid).replace(/^NVIDIA /, ""));
    text(this.health, `${sign(health)} ${health}`);
    for (const row of this.rows) titled(row.value, row.of(gpu));
    for (const fact of this.facts) {
      titled(fact.value, fact.of(gpu));
      attribute(fact.value, "data-warn", fact.warn?.(gpu) ? "" : null);
    }
    titled(this.state, this.#reason(gpu, since, job) || this.cards.users(gpu));
    this.fold.contents?.show(gpu, this.cards.now);
  }

  #reason(gpu, since, job) {
    if (since) return `The GPU has been gone since ${clock(new Date(since))}; these are its last readings.`;
    const faults = failing(gpu.faults);
    const words = [];
    if (!gpu.up) words.push(`Not read: ${down(gpu.reason)}.`);
    if (job && rank(job.severity) > rank(ofGPU(gpu))) words.push(sentence(job));
    else if (faults.length) {
      const over = recovery(faults[0]);
      words.push((over ? `${over[0].toUpperCase()}${over.slice(1)}. ` : "") + faults[0].what +
        (faults.length > 1 ? ` (and ${faults.length - 1} more)` : ""));
    } else if (harmful(gpu.throttled)) words.push(`Its clocks are held by ${held(gpu.throttled)}.`);
    else if (gpu.mig_devices) words.push(`${gpu.mig_devices.length} MIG devices: ${this.cards.users(gpu)}`);
    return words.join(" ");
  }

  // draw paints the charts if they are visible.
  draw() {
    if (!this.gpu) return;
    for (const row of this.rows) {
      const all = row.series.map((name) => this.cards.history.gpus.of(this.gpu.uuid, name));
      const top = row.top(this.gpu) ?? Math.max(1, ...all.flat().filter((v) => v !== null));
      attribute(row.chart, "aria-label", say(row.label, all[0], row.write));
      if (this.visible !== false) draw(row.chart, all, top);
    }
    this.fold.contents?.draw();
  }
}

// Cards are the cards of all GPUs, including those that disappeared within the
// last minute.
export class Cards {
  now = 0;
  #known = new Map(); // UUID to the last reading and, for a missing GPU, since when
  #users = new Map(); // UUID to the names of its workloads
  #words = new Map(); // UUID to what a reader may look for of its workloads and tenants
  #troubles = new Map(); // UUID to the worst fault of a job there
  #filter = "";
  #scope = null;
  #parent = document.getElementById("gpus");
  #shown = document.querySelector('[data-field="gpus-shown"]');
  #none = document.querySelector("#gpus-section .empty");
  #list = new List(this.#parent, {
    key: ({ gpu }) => gpu.uuid,
    make: ({ gpu }) => {
      const card = new Card(this, gpu);
      this.#seen.observe(card.node);
      return card.node;
    },
    update: (node, { gpu, since }) => node.card.show(gpu, since),
  });
  #seen = new IntersectionObserver((changes) => {
    for (const { target, isIntersecting } of changes) {
      const appeared = isIntersecting && target.card.visible !== true;
      target.card.visible = isIntersecting;
      if (appeared) target.card.draw();
    }
  }, { rootMargin: "200px" });

  constructor(history) {
    this.history = history;
    new ResizeObserver(() => this.draw()).observe(this.#parent);
    document.addEventListener("theme", () => this.draw());
  }

  show(state, scope = null) {
    this.now = Date.parse(state.time);
    this.#scope = scope;
    this.grafana = state.host.grafana_url;
    this.#users = new Map();
    this.#words = new Map();
    const note = (map, uuid, ...all) => map.set(uuid, [...(map.get(uuid) ?? []), ...all]);
    for (const w of state.workloads) {
      for (const { uuid } of w.gpus ?? []) {
        note(this.#users, uuid, w.workload);
        note(this.#words, uuid, ...names(w));
      }
    }
    for (const t of state.tenants ?? []) note(this.#words, t.uuid, t.tenant);
    this.#troubles = new Map();
    for (const f of state.attention) {
      if (f.kind !== "job") continue;
      for (const uuid of f.uuids) if (!this.#troubles.has(uuid)) this.#troubles.set(uuid, f); // the worst comes first
    }
    const here = new Set(state.gpus.map((g) => g.uuid));
    for (const gpu of state.gpus) this.#known.set(gpu.uuid, { gpu });
    for (const [uuid, one] of this.#known) {
      if (here.has(uuid)) continue;
      one.since ??= Date.now();
      if (Date.now() - one.since > goneFor && !this.#used(uuid)) this.#known.delete(uuid);
    }
    const ill = ({ gpu, since }) => {
      const most = since ? 0 : Math.max(rank(ofGPU(gpu)), rank(this.trouble(gpu)?.severity));
      return most < rank("warning") ? 0 : most;
    };
    const all = [...this.#known.values()].sort(
      (a, b) => ill(b) - ill(a) || a.gpu.index - b.gpu.index || (a.gpu.uuid < b.gpu.uuid ? -1 : 1),
    );
    this.#list.show(all);
    this.#sift();
  }

  // used reports whether the card of a GPU is in use: it is open or has the
  // focus.
  #used(uuid) {
    const node = [...this.#parent.children].find((n) => n.dataset.uuid === uuid);
    return Boolean(node && (node.card.fold.contents || node.contains(document.activeElement)));
  }

  // trouble returns the worst fault of a job on a GPU.
  trouble(gpu) {
    return this.#troubles.get(gpu.uuid);
  }

  // workloads returns the names of a GPU's first workloads, the largest memory
  // first.
  workloads(gpu) {
    return (this.#users.get(gpu.uuid) ?? []).slice(0, 12);
  }

  // users writes them for people.
  users(gpu) {
    const names = this.#users.get(gpu.uuid) ?? [];
    return names.slice(0, 3).join(", ") + (names.length > 3 ? ` and ${names.length - 3} more` : "");
  }

  draw() {
    for (const node of this.#parent.children) node.card.draw();
  }

  // open opens or closes the card of a GPU, if there is one.
  open(uuid, is) {
    const node = [...this.#parent.children].find((n) => n.dataset.uuid === uuid);
    if (node && Boolean(node.card.fold.contents) !== is) node.card.fold.toggle();
  }

  // filter shows only cards that contain these words.
  filter(words) {
    this.#filter = words;
    this.#sift();
  }

  #sift() {
    const all = this.#parent.children.length;
    let count = 0;
    for (const node of this.#parent.children) {
      const { gpu, state } = node.card;
      const is = (!this.#scope || this.#scope.gpus.has(gpu.uuid)) && (
        node.card.fold.contents ||
        matches(this.#filter, `gpu ${gpu.index}`, gpu.name, gpu.uuid, gpu.pci_bus_id, node.dataset.health, state.said,
          ...(this.#words.get(gpu.uuid) ?? [])));
      shown(node, Boolean(is));
      if (is) count++;
    }
    const alone = this.#scope?.kind === "gpu";
    attribute(this.#parent, "data-compact", all > roomy && !alone ? "" : null);
    attribute(this.#parent, "data-none", count ? null : "");
    shown(this.#none, all > 0 && count === 0 && !this.#scope);
    shown(this.#parent.parentNode, count > 0 || !this.#scope);
    attribute(this.#parent, "data-alone", alone ? "" : null);
    text(this.#shown, count === all ? "" : `${count} of ${all}`);
  }
}
