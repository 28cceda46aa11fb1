// What the page is about: the whole host, or a GPU, a workload or a tenant that
// the URL names: #gpu=UUID, #workload=NAME, #tenant=NAME.

import { List, attribute, el, shown, text } from "./dom.js";
import { age, gibibytes, owner, ranges, scaled, sum, unknown } from "./format.js";

const kinds = ["gpu", "workload", "tenant"];

// link is the URL of a GPU, a workload or a tenant.
export const link = (kind, id) => `#${kind}=${encodeURIComponent(id)}`;

// parse returns what a URL's fragment names; null is the whole host.
export function parse(fragment) {
  const [, kind, id] = /^#(\w+)=(.+)$/s.exec(fragment) ?? [];
  if (!kinds.includes(kind)) return null;
  try {
    return { kind, id: decodeURIComponent(id) };
  } catch {
    return { kind, id };
  }
}

// grafana is the URL of a dashboard with some variables; null without a
// Grafana. The query of the configured URL is passed on.
export function grafana(base, dashboard, variables = {}) {
  if (!base) return null;
  const url = new URL(base);
  url.pathname = `${url.pathname.replace(/\/$/, "")}/d/gpusteward-${dashboard}`;
  for (const [name, value] of Object.entries(variables)) url.searchParams.set(`var-${name}`, value);
  return url.href;
}

// resolve returns the parts of the host that belong to what the URL names, as
// sets; null for the whole host.
export function resolve(named, state) {
  if (!named) return null;
  const { kind } = named;
  const board = kind === "gpu" && state.gpus.find((g) => g.uuid === named.id || `${g.index}` === named.id);
  const id = board ? board.uuid : named.id;
  const on = (w) => (w.gpus ?? []).map((g) => g.uuid);
  const boards = (t) => state.gpus.filter((g) => g.uuid === t.uuid || g.mig_devices?.some((m) => m.uuid === t.uuid));
  const tenants = state.tenants ?? [];
  const scope = { kind, id, gpus: new Set(), workloads: new Set(), tenants: new Set() };
  const add = (w) => scope.workloads.add(w.workload) && w.tenants?.forEach((t) => scope.tenants.add(t));
  if (kind === "gpu") {
    scope.gpus.add(id);
    state.workloads.filter((w) => on(w).includes(id)).forEach(add);
    for (const t of tenants) if (boards(t).some((g) => g.uuid === id)) scope.tenants.add(t.tenant);
  } else if (kind === "workload") {
    scope.workloads.add(id);
    for (const w of state.workloads) {
      if (w.workload !== id) continue;
      add(w);
      on(w).forEach((uuid) => scope.gpus.add(uuid));
    }
  } else {
    scope.tenants.add(id);
    for (const t of tenants) if (t.tenant === id) boards(t).forEach((g) => scope.gpus.add(g.uuid));
    for (const w of state.workloads) {
      if (!w.tenants?.includes(id)) continue;
      scope.workloads.add(w.workload);
      on(w).forEach((uuid) => scope.gpus.add(uuid));
    }
  }
  return scope;
}

// about reports whether an event of the journal is about what the URL names.
export function about(scope, e) {
  if (!scope) return true;
  if (scope.kind === "gpu") return e.entity?.uuid === scope.id;
  if (scope.kind === "workload") return e.workload === scope.id || e.entity?.workload === scope.id;
  return e.tenant === scope.id || e.entity?.tenant === scope.id;
}

const dashboards = { gpu: "gpu", workload: "workloads", tenant: "quotas" };

// A Heading says what the page is about, and links to what belongs to it.
export class Heading {
  #node = document.getElementById("scope");
  #title = document.getElementById("scope-title");
  #facts = document.querySelector('[data-field="scope-facts"]');
  #links = new List(document.querySelector('[data-field="scope-links"]'), {
    key: (l) => l.href,
    make: () => el("a"),
    update: (node, l) => {
      attribute(node, "href", l.href);
      attribute(node, "rel", l.href.startsWith("#") ? null : "noreferrer");
      attribute(node, "target", l.href.startsWith("#") ? null : "_blank");
      text(node, l.words);
    },
  });

  // show shows the heading of a scope.
  show(state, scope) {
    shown(this.#node, Boolean(scope));
    const host = state.host.name ? `${state.host.name} · ` : "";
    if (!scope) {
      document.title = `${host}gpusteward`;
      return;
    }
    const { title, facts, variable } = this[scope.kind](state, scope);
    text(this.#title, title);
    text(this.#facts, facts);
    document.title = `${title} · ${host}gpusteward`;
    const gpus = state.gpus.filter((g) => scope.gpus.has(g.uuid) && scope.kind !== "gpu");
    const board = grafana(state.host.grafana_url, dashboards[scope.kind], { [scope.kind]: variable });
    this.#links.show([
      ...gpus.map((g) => ({ href: link("gpu", g.uuid), words: `GPU ${g.index}` })),
      ...[...scope.tenants].filter((t) => t !== scope.id).map((t) => ({ href: link("tenant", t), words: `tenant ${t}` })),
      ...(board ? [{ href: board, words: "Grafana" }] : []),
    ]);
  }

  focus() {
    this.#title.focus();
  }

  gpu(state, { id }) {
    const gpu = state.gpus.find((g) => g.uuid === id);
    if (!gpu) {
      const there = state.gpus.length ? `It has GPU ${ranges(state.gpus.map((g) => g.index))}.` : "It has none.";
      return { title: `There is no GPU ${id}`, facts: `This host has no GPU with this index or UUID now. ${there}`, variable: "" };
    }
    const facts = [gpu.name ?? "model not known", id, `PCI ${gpu.pci_bus_id ?? unknown}`].join(" · ");
    return { title: `GPU ${gpu.index}`, facts, variable: gpu.index };
  }

  workload(state, { id }) {
    const w = state.workloads.find((one) => one.workload === id);
    if (!w) return { title: id, facts: "No workload of this name is on a GPU now.", variable: id };
    const gpus = w.gpus ?? [];
    const facts = [
      owner(w.info), `GPU ${ranges(gpus.map((g) => g.index))}`, `${gibibytes(sum(gpus.map((g) => g.memory_bytes)))} GiB`,
      scaled(sum(gpus.map((g) => g.energy_joules)), "J"),
      w.since ? `for ${age(Date.parse(state.time) - Date.parse(w.since))}` : "",
      ...Object.entries(w.info ?? {}).map(([k, v]) => `${k} ${v}`),
    ];
    return { title: id, facts: facts.filter(Boolean).join(" · "), variable: id };
  }

  tenant(state, { id }) {
    const rows = (state.tenants ?? []).filter((t) => t.tenant === id);
    const facts = rows.length
      ? `quota on ${rows.length === 1 ? "one GPU" : `${rows.length} GPUs`}`
      : "No tenant of this name has a quota or a session now.";
    return { title: `Tenant ${id}`, facts, variable: id };
  }
}
