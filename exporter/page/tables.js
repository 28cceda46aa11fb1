// The tables: tenants with their share against their quota, workloads on the
// escalation, workloads.

import { List, attribute, el, shown, style, text, titled } from "./dom.js";
import { age, gibibytes, matches, names, number, ofMemory, owner, percent, ranges, scaled, sum, unknown } from "./format.js";
import { link } from "./scope.js";

const few = 20; // rows until the user wants all

// compare orders numbers and texts, a numbered text by its number; the unknown
// comes last.
function compare(a, b) {
  const none = (v) => v === undefined || v === null || Number.isNaN(v);
  if (none(a) || none(b)) return none(a) - none(b);
  return typeof a === "number" ? a - b : `${a}`.localeCompare(`${b}`, undefined, { numeric: true });
}

// A Table shows the first rows of many. Rows that stay are shown whatever the
// filter says. within reports whether an item belongs to a scope. sorts has, by
// column, the value by which a click on its head sorts: the largest number or
// the first text comes first, and the next click turns that around. A third one
// restores the agent's order.
export class Table {
  #all = [];
  #filter = "";
  #full = false;
  #scope = null;
  #by = null; // {column, down}

  constructor(id, { key, make, update, drop, words, within, sorts = {}, stays = () => false }) {
    this.section = document.getElementById(id);
    Object.assign(this, { words, stays, within, sorts });
    this.count = this.section.querySelector(`[data-field="${id}-shown"]`);
    this.empty = this.section.querySelector(".empty");
    this.more = this.section.querySelector(".more button");
    this.rows = new List(this.section.querySelector(".jobs, tbody"), { key, make, update, drop });
    this.more.addEventListener("click", () => {
      this.#full = !this.#full;
      this.#draw();
    });
    this.heads = [...this.section.querySelectorAll("th")];
    for (const column of Object.keys(sorts)) {
      const head = this.heads[column];
      const button = el("button", { type: "button", class: "sort" }, head.textContent);
      head.replaceChildren(button);
      button.addEventListener("click", () => this.#sort(Number(column)));
    }
  }

  show(all, scope = null) {
    this.#all = all;
    this.#scope = scope;
    this.#draw();
  }

  filter(words) {
    this.#filter = words;
    this.#draw();
  }

  #sort(column) {
    const value = this.#all.map(this.sorts[column]).find((v) => v !== undefined && v !== null);
    const first = typeof value === "number"; // the largest number first
    const again = this.#by?.column === column;
    this.#by = !again ? { column, down: first } : this.#by.down === first ? { column, down: !first } : null;
    this.heads.forEach((head, i) => {
      if (!this.sorts[i]) return;
      attribute(head, "aria-sort", this.#by?.column === i ? (this.#by.down ? "descending" : "ascending") : null);
    });
    this.#draw();
  }

  #draw() {
    const all = this.#scope ? this.#all.filter((item) => this.within(item, this.#scope)) : this.#all;
    let found = all.filter((item) => this.stays(item) || matches(this.#filter, ...this.words(item)));
    if (this.#by) {
      const { column, down } = this.#by;
      const known = (item) => compare(this.sorts[column](item), undefined) < 0;
      const order = (a, b) => compare(this.sorts[column](a), this.sorts[column](b));
      found = [...found].sort((a, b) => (down && known(a) && known(b) ? order(b, a) : order(a, b)));
    }
    this.rows.show(this.#full ? found : found.filter((item, i) => i < few || this.stays(item)));
    text(this.count, found.length === all.length ? `${found.length || ""}` : `${found.length} of ${all.length}`);
    shown(this.more, found.length > few);
    text(this.more, this.#full ? `Show the first ${few}` : `Show all ${found.length}`);
    shown(this.section, all.length > 0 || (Boolean(this.empty) && !this.#scope));
    if (this.empty) {
      shown(this.empty, all.length === 0);
      shown(this.section.querySelector(".scroll"), all.length > 0);
    }
  }
}

// named makes the cell of a name a link.
function named(cell) {
  const to = el("a");
  cell.append(to);
  return (kind, name) => {
    attribute(to, "href", link(kind, name));
    text(to, name);
    attribute(cell, "title", name);
  };
}

const cells = (row, values) => values.forEach((v, i) => v === null || text(row.cells[i], v));
const row = (attributes, numeric) => el("tr", attributes, ...numeric.map((n) => el("td", { class: n || undefined })));

// memory writes a workload's memory on GPUs, and what is in host memory while it is suspended.
const memory = (gpus) => {
  const away = gpus.filter((g) => g.suspended);
  if (away.length === 0) return `${gibibytes(sum(gpus.map((g) => g.memory_bytes)))} GiB`;
  return `${away[0].suspended.phase}, ${gibibytes(sum(away.map((g) => g.suspended.memory_bytes)))} GiB`;
};

const used = (w) => sum((w.gpus ?? []).map((g) => g.utilization_ratio?.sm));
const energy = (w) => sum((w.gpus ?? []).map((g) => g.energy_joules));
const processes = (w) => sum((w.gpus ?? []).flatMap((g) => Object.values(g.processes ?? {})));

export function workloads() {
  const now = { at: 0 };
  const table = new Table("workloads", {
    key: (w) => w.workload,
    make: () => {
      const node = row({}, ["name", "name", "n", "n", "n", "n", "n", "n"]);
      node.named = named(node.cells[0]);
      return node;
    },
    update: (node, w) => {
      const gpus = w.gpus ?? [];
      attribute(node, "data-workload", w.workload);
      attribute(node, "data-suspended", gpus.find((g) => g.suspended)?.suspended.phase ?? null);
      node.named("workload", w.workload);
      cells(node, [
        null, owner(w.info), ranges(gpus.map((g) => g.index)),
        percent(used(w)),
        memory(gpus),
        scaled(energy(w), "J"),
        number(processes(w)),
        w.since ? age(now.at - Date.parse(w.since)) : unknown,
      ]);
      attribute(node.cells[1], "title", owner(w.info) || null);
      const info = Object.entries(w.info ?? {}).map(([k, v]) => `${k} ${v}`);
      attribute(node.cells[0], "title", [w.workload, ...info].join("\n"));
    },
    within: (w, scope) => scope.workloads.has(w.workload),
    sorts: {
      0: (w) => w.workload, 1: (w) => owner(w.info) || undefined, 2: (w) => w.gpus?.length, 3: used,
      4: (w) => sum((w.gpus ?? []).map((g) => g.suspended?.memory_bytes ?? g.memory_bytes)), 5: energy, 6: processes,
      7: (w) => (w.since ? -Date.parse(w.since) : undefined),
    },
    words: (w) => [...names(w), ...(w.gpus ?? []).map((g) => `gpu ${g.index}`)],
  });
  return {
    show: (state, scope) => {
      now.at = Date.parse(state.time);
      table.show(state.workloads, scope);
    },
    filter: (words) => table.filter(words),
  };
}

// inShadow reports whether a level has no consequences.
const inShadow = (name, shadow) => Boolean(shadow && name && name !== "observe" && name !== "warn");

// level writes a level, and whether it is in shadow mode.
const level = (name, shadow) => (name ? name + (inShadow(name, shadow) ? " (shadow)" : "") : unknown);

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
      node.named = named(node.cells[0]);
      return node;
    },
    update: (node, t) => {
      const track = node.cells[2].firstChild;
      attribute(node, "data-tenant", t.tenant);
      attribute(node, "data-level", t.rung ?? null);
      attribute(node, "data-shadow", inShadow(t.rung, t.shadow) ? "" : null);
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
      node.named("tenant", t.tenant);
      text(node.cells[1], place(t));
      text(node.cells[3], percent(t.share_ratio));
      text(node.cells[4], quota(t));
      text(node.cells[5], ofMemory(t.memory_used_bytes, t.memory_limit_bytes));
      text(node.cells[6], (t.backends ?? []).join(" + ") || unknown);
      text(node.cells[7], level(t.rung, t.shadow));
    },
    within: (t, scope) => scope.tenants.has(t.tenant) && (scope.kind !== "gpu" || scope.gpus.has(t.uuid) || t.gi !== undefined),
    sorts: {
      0: (t) => t.tenant, 1: (t) => t.gpu, 3: (t) => t.share_ratio, 4: (t) => t.limit_ratio, 5: (t) => t.memory_used_bytes,
      7: (t) => (t.rung ? levels.indexOf(t.rung) : undefined),
    },
    words: (t) => [t.tenant, `gpu ${t.gpu}`, `gpu ${place(t)}`, t.rung, ...(t.backends ?? [])],
  });
  return { show: (state, scope) => table.show(state.tenants ?? [], scope), filter: (words) => table.filter(words) };
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
      node.workload = named(node.cells[0]);
      node.tenant = named(node.cells[1]);
      return node;
    },
    update: (node, l) => {
      attribute(node, "data-level", l.rung);
      attribute(node, "data-shadow", inShadow(l.rung, l.shadow) ? "" : null);
      node.workload("workload", l.workload);
      node.tenant("tenant", l.tenant);
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
    within: (l, scope) => scope.workloads.has(l.workload) || (scope.kind === "tenant" && scope.tenants.has(l.tenant)),
    sorts: { 0: (l) => l.workload, 1: (l) => l.tenant, 2: (l) => levels.indexOf(l.rung) },
    words: (l) => [l.workload, l.tenant, l.rung],
  });
  return { show: (state, scope) => table.show(state.ladder ?? [], scope), filter: (words) => table.filter(words) };
}
