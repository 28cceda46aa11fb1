// What needs attention: the faults of the host, its GPUs, jobs and tenants in one
// list above everything else, the worst first. Each says what is wrong, where and
// since when, and which command to run next.

import { List, attribute, el, shown, text } from "./dom.js";
import { age, matches, names, owner, when } from "./format.js";
import { troubled } from "./jobs.js";
import { link } from "./scope.js";
import { down, failing, rank, sign } from "./severity.js";

const few = 3; // faults until the reader wants all

// gather returns all faults that need attention, the worst first.
export function gather(state) {
  const now = Date.parse(state.time);
  const known = new Map(state.workloads.map((w) => [w.workload, w]));
  const named = (name) => (known.has(name) ? names(known.get(name)) : []);
  const whose = (name) => owner(known.get(name)?.info);
  const findings = [state, ...state.gpus].flatMap((part) => failing(part.faults));
  // The jobs tell better what the checks job_hang, job_slow and job_straggler find. Only
  // a hang is told before its check, which may be in shadow mode, has found it.
  const tells = (t, f) => t.workload === f.workload && `job_${t.key.split(" ")[0]}` === f.check;
  const began = (t) => findings.find((f) => tells(t, f))?.last;
  const jobs = troubled(state).filter((t) => t.seconds !== undefined || began(t));
  const told = (f) => jobs.some((t) => tells(t, f));
  const since = (last) => (last ? `since ${when(new Date(last), new Date(now))}` : "");
  const found = (faults, gpu) => failing(faults)
    .filter((f) => rank(f.severity) >= rank("warning") && !told(f))
    .map((f) => ({
      key: `${f.check} ${f.entity ?? ""} ${gpu?.uuid ?? ""}`,
      kind: f.workload ? "job" : f.tenant ? "tenant" : gpu ? "gpu" : "host",
      severity: f.severity,
      what: f.what,
      where: f.workload ?? (f.tenant ? `Tenant ${f.tenant}` : gpu ? `GPU ${gpu.index}` : "Host"),
      who: whose(f.workload),
      since: since(f.last),
      command: f.command ?? "",
      href: f.workload ? link("workload", f.workload) : f.tenant ? link("tenant", f.tenant)
        : gpu ? link("gpu", gpu.uuid) : f.runbook,
      uuids: gpu ? [gpu.uuid] : [],
      words: [f.check, f.tenant, gpu && `gpu ${gpu.index}`, ...named(f.workload)],
    }));
  const silent = (gpu) => (gpu.up || failing(gpu.faults).some((f) => rank(f.severity) >= rank("critical")) ? [] : [{
    key: `down ${gpu.uuid}`, kind: "gpu", severity: "down", what: `It is not read: ${down(gpu.reason)}.`, where: `GPU ${gpu.index}`,
    since: "", command: `gpusteward check --gpu=${gpu.index}`, href: link("gpu", gpu.uuid), uuids: [gpu.uuid],
    words: [`gpu ${gpu.index}`],
  }]);
  const all = [
    ...found(state.faults),
    ...state.gpus.flatMap((gpu) => [...silent(gpu), ...found(gpu.faults, gpu)]),
    ...jobs.map((t) => ({
      key: `${t.workload} ${t.key}`, kind: "job", severity: t.severity, what: t.says, where: t.workload, command: t.command,
      who: whose(t.workload), since: t.seconds === undefined ? since(began(t)) : `for ${age(1000 * t.seconds)}`, href: link("workload", t.workload), uuids: t.uuids,
      words: [...named(t.workload), ...t.indexes.map((i) => `gpu ${i}`), t.mark],
    })),
  ];
  return all.sort((a, b) => rank(b.severity) - rank(a.severity));
}

export class Attention {
  #all = [];
  #filter = "";
  #scope = null;
  #full = false;
  #node = document.getElementById("attention");
  #count = document.querySelector('[data-field="attention-shown"]');
  #more = this.#node.querySelector("button");
  #lines = new List(this.#node.querySelector("ol"), {
    key: (f) => f.key,
    make: () => {
      const [mark, where, what] = [el("span", { class: "mark" }), el("a", { class: "where" }), el("span", { class: "what" })];
      const [who, since, command] = [el("span"), el("span"), el("code")];
      const node = el("li", {}, mark, el("p", {}, where, who, " ", what), el("p", { class: "next" }, since, " ", command));
      return Object.assign(node, { mark, where, who, what, since, command });
    },
    update: (node, f) => {
      attribute(node, "data-severity", f.severity === "down" ? "emergency" : f.severity);
      attribute(node, "data-attention", f.kind);
      text(node.mark, `${sign(f.severity)} ${f.severity}`);
      attribute(node.where, "href", f.href ?? null);
      attribute(node.where, "rel", f.href?.startsWith("#") ? null : "noreferrer");
      text(node.where, f.where);
      // A sentence that begins with the place, or that tells what a job does, goes on.
      const goes = f.what.startsWith(`${f.where} `) ? f.what.slice(f.where.length + 1) : f.what;
      text(node.who, (f.who ? ` (${f.who})` : "") + (goes === f.what && !/^[a-z]/.test(goes) ? ":" : ""));
      text(node.what, goes);
      text(node.since, f.since);
      text(node.command, f.command);
      shown(node.command, Boolean(f.command));
    },
  });

  constructor() {
    this.#more.addEventListener("click", () => {
      this.#full = !this.#full;
      this.#draw();
    });
  }

  show(state, scope = null) {
    this.#scope = scope;
    this.#all = gather(state);
    this.#draw();
  }

  filter(words) {
    this.#filter = words;
    this.#draw();
  }

  #draw() {
    const within = (f) => !this.#scope || [f.where, ...f.uuids].includes(this.#scope.id) || this.#scope.workloads.has(f.where) ||
      f.words.includes(this.#scope.id);
    const found = this.#all.filter((f) => within(f) && matches(this.#filter, f.what, f.where, f.severity, ...f.words));
    this.#lines.show(this.#full ? found : found.slice(0, few));
    attribute(this.#node, "data-severity", found[0]?.severity ?? null);
    text(this.#count, found.length === this.#all.length ? `${found.length}` : `${found.length} of ${this.#all.length}`);
    shown(this.#node, found.length > 0);
    shown(this.#more, found.length > few);
    text(this.#more, this.#full ? `Show the worst ${few}` : `Show all ${found.length}`);
  }
}
