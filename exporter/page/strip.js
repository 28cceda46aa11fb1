// The host strip: the state of the whole host, and the notes above it.

import { List, attribute, el, shown, text, titled } from "./dom.js";
import { age, gibibytes, number, percent, plural, scaled, short, sum as total, unknown, when } from "./format.js";
import { link } from "./scope.js";
import { ofGPU, own, rank, recovery, sign } from "./severity.js";

const field = (name) => document.querySelector(`[data-field="${name}"]`);

const sum = (all, of) => total(all.map(of));

// notes are what an operator must know before trusting any number.
function* notes(state) {
  const host = state.host;
  if (host.note) yield { id: "simulated", severity: "info", words: host.note };
  if (host.drained)
    yield {
      id: "drained",
      severity: "warning",
      words: "Drained: the agent has released the driver until gpusteward resume.",
    };
  else if (!host.driver_up && state.gpus.length)
    yield {
      id: "driver",
      severity: "critical",
      words: "The driver is gone or does not answer: readings of the GPUs may be missing.",
    };
  if (!host.drained && host.not_ready && state.gpus.length)
    yield { id: "not-ready", severity: "warning", words: `Not ready: ${host.not_ready}` };
  if (host.broker_up === false)
    yield { id: "broker", severity: "critical", words: "The broker does not answer: quotas of GPU time may not be enforced." };
}

const ops = { ">": "above", ">=": "from", "<": "below", "<=": "up to", "==": "at", "!=": "unless at" };

// evidence is how a check came to its judgement.
function evidence(f) {
  const all = [];
  const [, op, limit, samples] = /^(\S+) ([^,]+), (.*)$/.exec(f.limit ?? "") ?? [];
  const often = samples === "at once" ? "" : ` in ${samples?.replace(" in ", " samples in ")}`;
  if (op) all.push(`The last reading is ${short(f.value)}; the check ${f.check} fails ${ops[op] ?? op} ${limit}${often}.`);
  if (f.worst_at && f.worst !== f.value) all.push(`The worst was ${short(f.worst)}, at ${when(new Date(f.worst_at), new Date())}.`);
  if (f.latched) all.push("It is latched: it stays until a reset, a reboot or gpusteward ack.");
  return all.join(" ");
}

// since is the begin of a fault, or the last time of an XID.
function since(f, now) {
  if (f.recovered) return recovery(f);
  if (!f.last) return "";
  const ago = age(now - Date.parse(f.last));
  return f.check ? `since ${when(new Date(f.last), new Date(now))}, for ${ago}` : `last ${ago} ago`;
}

// faultLines creates and updates the lines of a list of faults: what is wrong
// and since when, the evidence, what to do, and the entry in the runbook.
export const faultLines = (parent, now, name = () => null) =>
  new List(parent, {
    key: (f) => `${f.check ?? f.what}\n${f.entity ?? ""}`,
    make: () => {
      const mark = el("span", { class: "mark" });
      const [what, since] = [el("span", { class: "what" }), el("span", { class: "dim" })];
      const [gpu, evidence, action, runbook] = [el("a"), el("p", { class: "dim" }), el("p", {}), el("a", { rel: "noreferrer" })];
      text(runbook, "Runbook");
      const more = el("div", { class: "more-of-it" }, evidence, action, el("p", { class: "links" }, gpu, runbook));
      return Object.assign(el("li", {}, mark, what, since, more), { mark, what, since, more, gpu, evidence, action, runbook });
    },
    update: (node, f) => {
      const severity = f.shadow ? "shadow" : f.check ? f.severity : "info";
      attribute(node, "data-severity", severity);
      attribute(node, "data-check", f.check ?? null);
      text(node.mark, `${sign(severity)} ${f.check ? severity : "counted"}`);
      text(node.what, f.count > 1 ? `${f.what} ×${f.count}` : f.what);
      text(node.since, since(f, now()));
      shown(node.more, Boolean(f.check));
      text(node.evidence, evidence(f));
      text(node.action, f.action && !f.recovered ? `To do: ${f.action}` : "");
      attribute(node.runbook, "href", f.runbook ?? null);
      shown(node.runbook, Boolean(f.runbook));
      const of = name(f.uuid);
      attribute(node.gpu, "href", of ? link("gpu", f.uuid) : null);
      text(node.gpu, of ?? "");
      shown(node.gpu, Boolean(of));
    },
  });

// Shadow is the list of findings that send no alert.
export class Shadow {
  #now = 0;
  #gpus = [];
  #section = document.getElementById("shadow");
  #count = document.querySelector('[data-field="shadow-shown"]');
  #lines = faultLines(this.#section.querySelector("ul"), () => this.#now, (uuid) => {
    const gpu = this.#gpus.find((g) => g.uuid === uuid);
    return gpu ? `GPU ${gpu.index}` : null;
  });

  show(state, scope) {
    this.#now = Date.parse(state.time);
    this.#gpus = state.gpus;
    const within = (f) =>
      !scope || [f.uuid, f.workload, f.tenant].includes(scope.id) || scope.workloads.has(f.workload);
    const all = (state.shadow ?? []).filter(within);
    shown(this.#section, all.length > 0);
    text(this.#count, `${all.length}`);
    this.#lines.show(all);
  }
}

// healthNote says how many faults the host and its GPUs have, and jobs beside them.
function healthNote(worst, all, gpus, theirs) {
  const present = all.filter((f) => rank(f.severity) >= rank("warning")).length;
  const ill = gpus.filter((g) => rank(ofGPU(g)) >= rank("warning")).length;
  const words = [];
  if (present || ill) words.push(`${plural(Math.max(present, ill), "fault")}${ill ? ` on ${ill} of ${plural(gpus.length, "GPU")}` : " of the host"}`);
  else if (all.length) words.push(all.some((f) => f.recovered) ? "a fault is over" : `${plural(all.length, "notice")}`);
  else if (worst === "unknown") words.push("not all is known");
  if (theirs) words.push(`${theirs} of jobs and tenants`);
  return words.join("; ") || "the hardware is healthy";
}

export class Strip {
  #now = 0;
  #notes = new List(document.getElementById("notes"), {
    key: (n) => n.id,
    make: (n) => el("p", { "data-note": n.id, role: "status" }),
    update: (node, n) => {
      attribute(node, "class", `note ${n.severity}`);
      text(node, n.words);
    },
  });
  #faults = faultLines(document.getElementById("node-faults"), () => this.#now);

  constructor() {
    document.getElementById("notes").replaceChildren(); // the stream repeats the server's notes
  }

  show(state, scope) {
    const { host, gpus } = state;
    const put = (name, value) => titled(field(name), value);
    this.#now = Date.parse(state.time);
    this.#notes.show(notes(state));
    this.#faults.show(state.faults ?? []);
    shown(document.getElementById("node-faults"), Boolean(state.faults?.length) && !scope);

    put("host", host.name || "this host");
    put(
      "driver",
      host.driver_up ? `driver ${host.driver_version ?? unknown} · CUDA ${host.cuda_version ?? unknown}` : "no driver",
    );
    put("version", `gpusteward ${state.version}`);

    const all = [...own(state.faults), ...gpus.flatMap((g) => own(g.faults))];
    const verdicts = [...gpus.map(ofGPU), ...all.map((f) => f.severity)];
    const unseen = !host.driver_up || Boolean(host.not_ready) || gpus.length === 0;
    let worst = verdicts.reduce((w, v) => (rank(v) > rank(w) ? v : w), "ok");
    if (worst === "ok" && unseen) worst = "unknown"; // unknown is not healthy
    const theirs = state.attention.filter((f) => f.kind === "job" || f.kind === "tenant");
    const theirWorst = rank(theirs[0]?.severity) > rank(worst) ? theirs[0].severity : null;
    put("health", `${sign(theirWorst ?? worst)} ${theirWorst ? plural(theirs.length, `${theirs[0].kind} fault`) : worst}`);
    attribute(field("health").parentNode, "data-severity", theirWorst ?? worst);
    put("health-note", healthNote(worst, all, gpus, theirWorst ? 0 : theirs.length));

    put("gpus", host.gpus_expected ? `${host.gpus ?? gpus.length} of ${host.gpus_expected}` : gpus.length ? `${gpus.length}` : "none");
    const down = gpus.filter((g) => !g.up).length;
    const none = host.driver_up ? "the driver lists none" : "there is no driver";
    put("gpus-note", down ? `✖ ${down} cannot be read` : gpus.length ? "all are read" : none);
    attribute(field("gpus").parentNode, "data-severity", down || host.gpus < host.gpus_expected ? "critical" : "ok");

    const loads = gpus.map((g) => g.utilization_ratio?.gpu ?? g.activity_ratio?.sm).filter((v) => v !== undefined);
    put("load", loads.length ? percent(loads.reduce((a, b) => a + b, 0) / loads.length) : unknown);
    const idle = loads.filter((v) => v < 0.01).length;
    put("load-note", loads.length ? (idle ? `${plural(idle, "GPU")} idle` : "no GPU is idle") : "\u00a0");
    const used = sum(gpus, (g) => g.memory_bytes?.used);
    const total = sum(gpus, (g) => g.memory_total_bytes);
    put("memory", total ? percent((used ?? 0) / total) : unknown);
    put(
      "memory-note",
      `${used === undefined ? unknown : gibibytes(used)} of ${total === undefined ? unknown : gibibytes(total)} GiB`,
    );
    put(
      "power",
      scaled(
        sum(gpus, (g) => g.power_watts),
        "W",
      ),
    );
    put(
      "power-note",
      `of ${scaled(
        sum(gpus, (g) => g.power_limit_watts),
        "W",
      )}`,
    );
    const hot = gpus.reduce(
      (h, g) => ((g.temperature_celsius?.gpu ?? -Infinity) > (h?.temperature_celsius?.gpu ?? -Infinity) ? g : h),
      null,
    );
    put("hottest", hot ? `${number(hot.temperature_celsius.gpu)} °C` : unknown);
    const margin = hot?.temperature_margin_celsius;
    const left = margin === undefined ? "" : `, ${number(Math.abs(margin))} °C ${margin < 0 ? "above" : "to"} its limit`;
    put("hottest-note", hot ? `GPU ${hot.index}${left}` : "\u00a0");
  }
}
