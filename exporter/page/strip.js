// The host strip: the state of the whole host, and the notes above it.

import { List, attribute, el, shown, text, titled } from "./dom.js";
import { age, gibibytes, number, percent, scaled, unknown } from "./format.js";
import { failing, ofGPU, rank, sign } from "./severity.js";

const field = (name) => document.querySelector(`[data-field="${name}"]`);

const sum = (all, of) => {
  const known = all.map(of).filter((v) => typeof v === "number");
  return known.length ? known.reduce((a, b) => a + b, 0) : undefined;
};

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
  else if (!host.driver_up)
    yield {
      id: "driver",
      severity: "critical",
      words: "The driver is gone or does not answer; what is shown of the GPUs may be missing.",
    };
  if (!host.drained && host.not_ready)
    yield { id: "not-ready", severity: "warning", words: `Not ready: ${host.not_ready}` };
  if (host.broker_up === false)
    yield { id: "broker", severity: "critical", words: "The broker does not answer: quotas are not enforced by time." };
}

// fault creates and updates a line of a list of faults.
export const faultLines = (parent, now) =>
  new List(parent, {
    key: (f) => f.check ?? f.what,
    make: () => {
      const mark = el("span", { class: "mark" });
      const what = el("span", { class: "what" });
      const since = el("span", { class: "dim" });
      return Object.assign(el("li", {}, mark, what, since), { mark, what, since });
    },
    update: (node, f) => {
      const severity = f.check ? f.severity : "info";
      attribute(node, "data-severity", severity);
      attribute(node, "data-check", f.check ?? null);
      text(node.mark, `${sign(severity)} ${f.check ? severity : "counted"}`);
      text(node.what, f.count > 1 ? `${f.what} ×${f.count}` : f.what);
      text(
        node.since,
        f.last ? `${f.check ? "for" : "last"} ${age(now() - Date.parse(f.last))}${f.check ? "" : " ago"}` : "",
      );
    },
  });

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

  show(state) {
    const { host, gpus } = state;
    const put = (name, value) => titled(field(name), value);
    this.#now = Date.parse(state.time);
    this.#notes.show(notes(state));
    this.#faults.show(state.faults ?? []);
    shown(document.getElementById("node-faults"), Boolean(state.faults?.length));

    put("host", host.name || "this host");
    put(
      "driver",
      host.driver_up ? `driver ${host.driver_version ?? unknown} · CUDA ${host.cuda_version ?? unknown}` : "no driver",
    );
    put("version", `gpusteward ${state.version}`);

    const all = [...(state.faults ?? []), ...gpus.flatMap((g) => failing(g.faults))];
    const verdicts = [...gpus.map(ofGPU), ...all.map((f) => f.severity)];
    const unseen = !host.driver_up || Boolean(host.not_ready);
    let worst = verdicts.reduce((w, v) => (rank(v) > rank(w) ? v : w), "ok");
    if (worst === "ok" && unseen) worst = "unknown"; // unknown is not healthy
    put("health", `${sign(worst)} ${worst}`);
    attribute(field("health").parentNode, "data-severity", worst);
    const ill = gpus.filter((g) => ofGPU(g) !== "ok").length;
    put(
      "health-note",
      all.length ? `${all.length} fault${all.length > 1 ? "s" : ""}, ${ill} of ${gpus.length} GPUs` : "no fault",
    );

    put("gpus", host.gpus === undefined ? `${gpus.length}` : `${host.gpus} of ${host.gpus_expected}`);
    const down = gpus.filter((g) => !g.up).length;
    put("gpus-note", down ? `✖ ${down} cannot be read` : "all are read");
    attribute(field("gpus").parentNode, "data-severity", down || host.gpus < host.gpus_expected ? "critical" : "ok");

    const loads = gpus.map((g) => g.utilization_ratio?.gpu ?? g.activity_ratio?.sm).filter((v) => v !== undefined);
    put("load", loads.length ? percent(loads.reduce((a, b) => a + b, 0) / loads.length) : unknown);
    put("load-note", `${loads.filter((v) => v < 0.01).length} idle`);
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
    const left = margin === undefined ? "" : `, ${number(margin)} °C to its limit`;
    put("hottest-note", hot ? `GPU ${hot.index}${left}` : "\u00a0");
  }
}
