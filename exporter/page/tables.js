// The tables: tenants with their share against their quota, workloads on the
// escalation, workloads.

import { matches } from "./cards.js";
import { List, attribute, el, shown, style, text, titled } from "./dom.js";
import { age, gibibytes, number, ofMemory, percent, ranges, scaled, unknown } from "./format.js";

const few = 20; // rows until the user wants all

// A Table shows the first rows of many. Rows that stay are shown whatever the
// filter says.
export class Table {
  #all = [];
  #filter = "";
  #full = false;

  constructor(id, { key, make, update, drop, words, stays = () => false }) {
    this.section = document.getElementById(id);
    Object.assign(this, { words, stays });
    this.count = this.section.querySelector(`[data-field="${id}-shown"]`);
    this.empty = this.section.querySelector(".empty");
    this.more = this.section.querySelector(".more button");
    this.rows = new List(this.section.querySelector(".jobs, tbody"), { key, make, update, drop });
    this.more.addEventListener("click", () => {
      this.#full = !this.#full;
      this.#draw();
    });
  }

  show(all) {
    this.#all = all;
    this.#draw();
  }

  filter(words) {
    this.#filter = words;
    this.#draw();
  }

  #draw() {
    const found = this.#all.filter((item) => this.stays(item) || matches(this.#filter, ...this.words(item)));
    this.rows.show(this.#full ? found : found.filter((item, i) => i < few || this.stays(item)));
    text(
      this.count,
      found.length === this.#all.length ? `${found.length || ""}` : `${found.length} of ${this.#all.length}`,
    );
    shown(this.more, found.length > few);
    text(this.more, this.#full ? `Show the first ${few}` : `Show all ${found.length}`);
    shown(this.section, this.#all.length > 0 || Boolean(this.empty));
    if (this.empty) {
      shown(this.empty, this.#all.length === 0);
      shown(this.section.querySelector(".scroll"), this.#all.length > 0);
    }
  }
}

const cells = (row, values) => values.forEach((v, i) => text(row.cells[i], v));
const row = (attributes, numeric) => el("tr", attributes, ...numeric.map((n) => el("td", { class: n || undefined })));

const sum = (all) => {
  const known = all.filter((v) => v !== undefined);
  return known.length ? known.reduce((a, b) => a + b, 0) : undefined;
};

// owner returns the owner of a workload, if it is known.
function owner(info = {}) {
  return info.slurm_user ?? info.namespace ?? info.user ?? (info.uid === undefined ? "" : `uid ${info.uid}`);
}

// memory writes a workload's memory on GPUs, and what is in host memory while it is suspended.
const memory = (gpus) => {
  const away = gpus.filter((g) => g.suspended);
  if (away.length === 0) return `${gibibytes(sum(gpus.map((g) => g.memory_bytes)))} GiB`;
  return `${away[0].suspended.phase}, ${gibibytes(sum(away.map((g) => g.suspended.memory_bytes)))} GiB`;
};

export function workloads() {
  const now = { at: 0 };
  const table = new Table("workloads", {
    key: (w) => w.workload,
    make: () => row({}, ["name", "name", "n", "n", "n", "n", "n", "n"]),
    update: (node, w) => {
      const gpus = w.gpus ?? [];
      attribute(node, "data-workload", w.workload);
      cells(node, [
        w.workload, owner(w.info), ranges(gpus.map((g) => g.index)),
        percent(sum(gpus.map((g) => g.utilization_ratio?.sm))),
        memory(gpus),
        scaled(sum(gpus.map((g) => g.energy_joules)), "J"),
        number(sum(gpus.flatMap((g) => Object.values(g.processes ?? {})))),
        w.since ? age(now.at - Date.parse(w.since)) : unknown,
      ]);
      attribute(node.cells[1], "title", owner(w.info) || null);
      const info = Object.entries(w.info ?? {}).map(([k, v]) => `${k} ${v}`);
      attribute(node.cells[0], "title", [w.workload, ...info].join("\n"));
    },
    words: (w) => [w.workload, ...(w.gpus ?? []).map((g) => `gpu ${g.index}`), ...Object.values(w.info ?? {})],
  });
  return {
    show: (state) => {
      now.at = Date.parse(state.time);
      table.show(state.workloads);
    },
    filter: (words) => table.filter(words),
  };
}

// level writes a level, and whether it is in shadow mode.
const level = (name, shadow) =>
  name ? name + (shadow && name !== "observe" && name !== "warn" ? " (shadow)" : "") : unknown;

function quota(t) {
  const limit = t.limit_ratio ?? 1;
  if (t.guarantee_ratio === undefined) return t.limit_ratio === undefined ? unknown : `≤ ${percent(limit)}`;
  return t.guarantee_ratio === limit ? percent(limit) : `${Math.round(100 * t.guarantee_ratio)}–${percent(limit)}`;
}

// meter is a bar of the GPU's time. A band shows the guarantee to the limit,
// and a tick the target.
function meter() {
  const track = el(
    "div",
    { class: "meter", role: "img" },
    el("span", { class: "band" }),
    el("span", { class: "fill" }),
    el("span", { class: "tick" }),
  );
  return el("td", { class: "wide" }, track);
}

// place returns the name of a GPU, or of a GPU instance of MIG as 0:1.
const place = (t) => (t.gpu === undefined ? "?" : `${t.gpu}${t.gi === undefined ? "" : `:${t.gi}`}`);

export function tenants() {
  const table = new Table("tenants", {
    key: (t) => `${t.uuid}\n${t.tenant}`,
    make: () => {
      const node = row({}, ["name", "n", "n", "n", "n", "", ""]);
      node.insertBefore(meter(), node.cells[2]);
      return node;
    },
    update: (node, t) => {
      const track = node.cells[2].firstChild;
      attribute(node, "data-tenant", t.tenant);
      attribute(node, "data-level", t.rung ?? null);
      const at = (v) => `${(100 * Math.min(1, v)).toFixed(1)}%`;
      style(track, "--share", at(t.share_ratio ?? 0));
      style(track, "--from", at(t.guarantee_ratio ?? 0));
      style(track, "--to", at(t.limit_ratio ?? 1));
      style(track, "--target", at(t.target_ratio ?? 0));
      attribute(track, "data-target", t.target_ratio === undefined ? null : "");
      attribute(
        track,
        "aria-label",
        `share ${percent(t.share_ratio)}, target ${percent(t.target_ratio)}, quota ${quota(t)}`,
      );
      titled(node.cells[0], t.tenant);
      text(node.cells[1], place(t));
      text(node.cells[3], percent(t.share_ratio));
      text(node.cells[4], quota(t));
      text(node.cells[5], ofMemory(t.memory_used_bytes, t.memory_limit_bytes));
      text(node.cells[6], (t.backends ?? []).join(" + ") || unknown);
      text(node.cells[7], level(t.rung, t.shadow));
    },
    words: (t) => [t.tenant, `gpu ${t.gpu}`, `gpu ${place(t)}`, t.rung, ...(t.backends ?? [])],
  });
  return { show: (state) => table.show(state.tenants ?? []), filter: (words) => table.filter(words) };
}

const levels = ["observe", "warn", "throttle", "pause", "suspend", "terminate"];

export function escalation() {
  const table = new Table("escalation", {
    key: (l) => `${l.tenant}\n${l.workload}`,
    make: () => {
      const node = row({}, ["name", "name", "", "wrap"]);
      const word = el("span");
      node.cells[2].append(
        el("span", { class: "steps", "aria-hidden": "true" }, ...levels.slice(1).map(() => el("i"))),
        word,
      );
      node.word = word;
      return node;
    },
    update: (node, l) => {
      attribute(node, "data-level", l.rung);
      titled(node.cells[0], l.workload);
      titled(node.cells[1], l.tenant);
      text(node.word, level(l.rung, l.shadow));
      [...node.cells[2].firstChild.children].forEach((step, i) =>
        attribute(step, "class", i < levels.indexOf(l.rung) ? "on" : ""),
      );
      text(
        node.cells[3],
        Object.entries(l.violations ?? {})
          .sort((a, b) => b[1] - a[1])
          .map(([what, n]) => `${what} ×${n}`)
          .join(", "),
      );
    },
    words: (l) => [l.workload, l.tenant, l.rung],
  });
  return { show: (state) => table.show(state.ladder ?? []), filter: (words) => table.filter(words) };
}
