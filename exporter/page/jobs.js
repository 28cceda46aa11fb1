// The jobs: workloads whose programs run under the hook. A job has its step,
// where the step's time goes, what makes it slow, the rank that comes last, and
// the process for which it hangs. An open job has charts and its ranks.

import { List, attribute, el, shown, style, text, titled } from "./dom.js";
import { Fold } from "./fold.js";
import { age, names, number, owner, percent, plural, ranges, seconds, unknown } from "./format.js";
import { Plots } from "./plots.js";
import { link } from "./scope.js";
import { draw, say } from "./spark.js";
import { Table } from "./tables.js";

// parts are those of a step, as the legend has them.
const parts = ["launching", "waiting", "copying", "held", "host"];

const label = 0.12; // of a step, from which on a part has room for its name

const jobsOf = (w) => (w.gpus ?? []).filter((g) => g.job);
const isJob = (w) => Boolean(w.steps) || troubles(w).length > 0;
const plain = (name) => `${name}`.replaceAll("_", " ");

// process names the process for which a job waits.
function process(gpu, rank) {
  return rank === undefined || rank === "" || rank === "-1"
    ? `a process on GPU ${gpu.index}`
    : `rank ${rank} on GPU ${gpu.index}`;
}

// stack is the command that shows where the process of a job on a GPU stands.
const stack = (g) => (g.job.pid ? `sudo gpusteward stack ${g.job.pid}` : "gpusteward status");

// hangs returns a job's hangs as lines.
const hangs = (w) =>
  jobsOf(w).filter((g) => g.job.hang).map((g) => {
    const { seconds: since, rank, what, reason, where } = g.job.hang;
    return {
      key: `hang ${g.uuid} ${rank} ${reason}`,
      severity: "critical",
      on: jobsOf(w), // all of its ranks wait
      seconds: since,
      command: stack(g),
      says: `hangs because of ${process(g, rank)}: ${what || plain(reason)}.${where ? ` It stands at ${where}.` : ""}`,
      mark: "✖ hangs",
      why: `because of ${process(g, rank)}: ${what || plain(reason)}`,
      words: `for ${age(1000 * since)} because of ${process(g, rank)}: ${what || plain(reason)}.`,
      where: where ? `It stands at ${where}.` : "",
    };
  });

// slower returns why steps take longer than usual, as a line for each cause.
function slower(w) {
  const on = jobsOf(w).filter((g) => g.job.slow);
  return [...new Set(on.map((g) => g.job.slow.cause))].map((cause) => {
    const same = on.filter((g) => g.job.slow.cause === cause);
    const { ratio, what, evidence } = same.map((g) => g.job.slow).reduce((a, b) => (b.ratio > a.ratio ? b : a));
    const times = number(1 / Math.max(1 - ratio, 1e-3), 2);
    const words = `on GPU ${ranges(same.map((g) => g.index))}, a step takes ${times} times its usual time: ` +
      `${what || plain(cause)}.`;
    return {
      key: `slow ${cause}`,
      severity: "warning",
      on: same,
      command: "gpusteward check --only=job_slow",
      says: `is slow: ${words}`,
      mark: "▲ slow",
      words,
      where: evidence ? `Evidence: ${evidence}.` : "",
    };
  });
}

// stragglers returns the ranks that come last again and again, as lines.
const stragglers = (w) =>
  jobsOf(w).filter((g) => g.job.straggler).map((g) => {
    const { ratio, rank, what, cause } = g.job.straggler;
    const words = `the other ranks wait ${percent(ratio)} of a step for ${process(g, rank)}: ${what || plain(cause)}.`;
    return {
      key: `straggler ${g.uuid} ${rank}`,
      severity: "warning",
      on: [g],
      command: stack(g),
      says: `has a straggler: ${words}`,
      mark: "▲ straggler",
      words,
      where: "",
    };
  });

// troubles returns the lines below a job, the worst first.
const troubles = (w) => [...hangs(w), ...slower(w), ...stragglers(w)];

// judged returns a job's lines; those whose checks are in shadow mode are no
// warnings.
function judged(w, shadow) {
  const checks = shadow.filter((f) => f.workload === w.workload).map((f) => f.check);
  return troubles(w).map((t) => {
    const [kind] = t.key.split(" ");
    if (!checks.includes(`job_${kind}`)) return t;
    return { ...t, severity: "shadow", mark: `◌ ${t.mark.slice(2)}` };
  });
}

// troubled returns the lines of all jobs that are no shadows, with what is known of
// the job: the GPUs that are concerned.
export const troubled = (state) =>
  state.workloads.flatMap((w) => judged(w, state.shadow ?? []).filter((t) => t.severity !== "shadow").map((t) => (
    { ...t, workload: w.workload, uuids: t.on.map((g) => g.uuid), indexes: t.on.map((g) => g.index) })));

// hanging returns why jobs hang, by name.
export const hanging = (state) =>
  new Map(state.workloads.map((w) => [w.workload, hangs(w)[0]?.why]).filter(([, why]) => why));

// place names a job's GPUs, ranks and owner.
function place(w) {
  const on = jobsOf(w);
  const ranks = new Set(on.flatMap((g) => (g.job.ranks ?? []).map((r) => r.rank))).size;
  return [`GPU ${ranges(on.map((g) => g.index))}`, ranks ? plural(ranks, "rank") : "", owner(w.info)].filter(Boolean).join(" · ");
}

// slow returns how many of the steps are slow by cause, the most frequent first.
function slow(w) {
  const causes = Object.entries(w.steps?.slow_ratio ?? {}).filter(([, v]) => v > 0).sort((a, b) => b[1] - a[1]);
  if (causes.length) return causes.map(([cause, v]) => `${number(100 * v, 1)} % ${plain(cause)}`).join(", ");
  return w.steps?.slow_ratio ? "none" : unknown;
}

// bar is the stacked bar of a step's parts.
function bar() {
  const pieces = parts.map((part) => el("span", { "data-part": part }));
  const node = el("div", { class: "stack", role: "img" }, ...pieces);
  return {
    node,
    show(of) {
      const sum = parts.reduce((s, part) => s + (of?.[part] ?? 0), 0);
      const ratios = parts.map((part) => (sum ? (of[part] ?? 0) / sum : 0));
      const words = parts.map((part, i) => `${part} ${percent(ratios[i])}`);
      pieces.forEach((piece, i) => {
        style(piece, "--length", `${(100 * ratios[i]).toFixed(1)}%`);
        text(piece, ratios[i] >= label ? words[i] : "");
      });
      const all = sum ? words.join(", ") : "no steps";
      attribute(node, "aria-label", `Parts of a step: ${all}`);
      attribute(node, "title", all);
    },
  };
}

// lines are the values of a job, in the order of the columns.
const cells = [
  { field: "step", label: "Step" },
  { field: "past", label: "Last 15 minutes" },
  { field: "parts", label: "Parts of a step" },
  { field: "goodput", label: "Goodput" },
  { field: "slow", label: "Slow steps" },
];

// A Job is the part of the page about one workload.
class Job {
  constructor(jobs, w) {
    Object.assign(this, { jobs, workload: w });
    const id = `job-${encodeURIComponent(w.workload)}`;
    this.name = el("span", { class: "name" });
    this.place = el("span", { class: "dim", "data-field": "place" });
    const button = el("button",
      { type: "button", class: "head", "aria-expanded": "false", "aria-controls": id },
      el("span", { class: "who" }, this.name, this.place));
    this.values = Object.fromEntries(cells.map(({ field }) => [field, el("dd", { "data-field": field })]));
    this.chart = el("canvas", { role: "img", class: "spark" });
    this.values.past.append(this.chart);
    this.bar = bar();
    this.values.parts.append(this.bar.node);
    const troubled = el("ul", { class: "troubles" });
    this.troubles = new List(troubled, {
      key: (t) => t.key,
      make: () => {
        const mark = el("span", { class: "mark" });
        const words = el("span");
        const where = el("span", { class: "at" });
        return Object.assign(el("li", {}, mark, el("p", { class: "what" }, words, " ", where)), { mark, words, where });
      },
      update: (node, t) => {
        attribute(node, "data-severity", t.severity);
        text(node.mark, t.mark);
        text(node.words, t.words);
        text(node.where, t.where);
      },
    });
    this.more = el("div", { class: "detail", id, hidden: "" });
    this.node = el("article", { class: "job" },
      el("h3", {}, button),
      el("dl", {}, ...cells.map((c) => el("div", { class: c.field }, el("dt", {}, c.label), this.values[c.field]))),
      troubled, this.more);
    this.node.job = this;
    this.fold = new Fold(this.node, button, this.more, (more) => new JobDetail(more, jobs.history, this.workload));
  }

  show(w) {
    this.workload = w;
    const lines = judged(w, this.jobs.shadow);
    attribute(this.node, "data-job", w.workload);
    attribute(this.node, "aria-label", w.workload);
    attribute(this.node, "data-severity", lines[0]?.severity ?? "ok");
    attribute(this.node, "data-hangs", hangs(w).length ? "" : null);
    titled(this.name, w.workload);
    titled(this.place, place(w));
    text(this.values.step, w.steps?.seconds ? seconds(w.steps.seconds) : "no steps");
    this.bar.show(w.steps?.part_seconds);
    text(this.values.goodput, percent(w.steps?.goodput_ratio));
    titled(this.values.slow, slow(w));
    this.troubles.show(lines);
    this.fold.contents?.show(w);
  }

  draw() {
    const all = this.jobs.history.jobs.of(this.workload.workload, "step_seconds");
    attribute(this.chart, "aria-label", say("Step", all, (v) => seconds(v ?? undefined)));
    draw(this.chart, [all], 1.25 * Math.max(...all.map((v) => v ?? 0)) || 1);
    this.fold.contents?.draw();
  }
}

// chartsOf returns the charts of a job.
function chartsOf(w) {
  const scale = (w.steps?.seconds ?? 0) < 1 ? { unit: "ms", by: 1e-3 } : { unit: "s", by: 1, digits: 2 };
  return [
    { title: "Step", ...scale, series: { Median: "step_seconds" } },
    {
      title: "Parts of a step",
      ...scale,
      series: Object.fromEntries(parts.map((part) => [part, `${part}_seconds`])),
      colours: parts.map((part) => `--part-${part}`),
    },
    { title: "Goodput", unit: "%", by: 0.01, top: 100, series: { Goodput: "goodput_ratio" } },
  ];
}

const late = 0.9; // of the median time of a collective, below which the others wait for a rank

// ranksOf returns a job's ranks with what sets one apart.
function ranksOf(w) {
  const all = jobsOf(w).flatMap((g) => (g.job.ranks ?? []).map((r) => ({ ...r, gpu: g })));
  return all.map((r) => {
    const peers = all.filter((p) => p.communicator === r.communicator);
    const times = peers.map((p) => p.collective_seconds).filter((v) => v !== undefined).sort((a, b) => a - b);
    const most = Math.max(...peers.map((p) => p.collectives));
    const is = (trouble) => trouble && `${trouble.rank}` === `${r.rank}`;
    const less = times.length > 2 && r.collective_seconds < late * times[times.length >> 1];
    const notes = [];
    if (is(r.gpu.job.hang)) notes.push("✖ the others wait for it");
    else if (is(r.gpu.job.straggler) || less) notes.push("▲ comes last");
    if (r.collectives < most) notes.push(`${most - r.collectives} behind`);
    return { ...r, longest: times.at(-1), notes: notes.join(", ") };
  });
}

// JobDetail is what an open job has.
class JobDetail {
  constructor(parent, history, w) {
    parent.append(el("p", { class: "links" }, el("a", { href: link("workload", w.workload) }, "Its GPUs and processes")));
    this.plots = new Plots(parent, chartsOf(w), {
      key: w.workload,
      times: () => history.times(),
      of: (name) => history.jobs.of(w.workload, name),
      day: `workload=${encodeURIComponent(w.workload)}`,
    });
    const columns = [
      ["Rank", "n"], ["GPU", "n"], ["Communicator"], ["Collectives", "n"], ["Time of a collective on the GPU", "wide"],
      ["Compared with the others"],
    ];
    const body = el("tbody");
    this.table = el("div", { class: "scroll ranks", tabindex: "0", role: "group", "aria-label": "Ranks" },
      el("table", {}, el("caption", {}, "Ranks on this host. The rank that comes last spends the least time."),
        el("thead", {}, el("tr", {}, ...columns.map(([t, kind]) => el("th", { scope: "col", class: kind }, t)))),
        body));
    this.ranks = new List(body, {
      key: (r) => `${r.communicator} ${r.rank} ${r.gpu.uuid}`,
      make: () => {
        const meter = el("div", { class: "meter", "aria-hidden": "true" }, el("span", { class: "fill" }));
        const time = el("span");
        const cells = columns.map(([, kind]) => el("td", { class: kind }));
        cells[4].append(el("div", { class: "measure" }, meter, time));
        return Object.assign(el("tr", {}, ...cells), { meter, time });
      },
      update: (row, r) => {
        attribute(row, "data-rank", `${r.rank}`);
        attribute(row, "data-apart", r.notes ? "" : null);
        const values = { 0: r.rank, 1: r.gpu.index, 2: r.communicator.slice(-4), 3: number(r.collectives), 5: r.notes || unknown };
        for (const [i, v] of Object.entries(values)) text(row.cells[i], `${v}`);
        style(row.meter, "--share", `${(100 * (r.collective_seconds / r.longest || 0)).toFixed(1)}%`);
        text(row.time, seconds(r.collective_seconds));
      },
    });
    parent.append(this.table);
    this.show(w);
  }

  show(w) {
    const all = ranksOf(w);
    this.ranks.show(all);
    shown(this.table, all.length > 0);
  }

  draw() {
    this.plots.draw();
  }

  close() {
    this.plots.close();
  }
}

// Jobs are those of the host, the hanging ones first.
export class Jobs {
  all = [];
  shadow = []; // findings in shadow mode
  others = 0; // workloads under the hook without steps
  #nodes = new Map(); // by name
  #open = new Set(); // names of jobs that were open when they went: one whose readings were stale comes back
  #table = new Table("jobs", {
    key: (w) => w.workload,
    make: (w) => {
      const job = new Job(this, w);
      this.#nodes.set(w.workload, job);
      if (this.#open.delete(w.workload)) job.fold.toggle();
      requestAnimationFrame(() => job.node.isConnected && job.draw());
      return job.node;
    },
    update: (node, w) => node.job.show(w),
    drop: ({ job: { fold, workload: w } }) => {
      if (fold.contents) this.#open.add(w.workload);
      fold.close();
      this.#nodes.delete(w.workload);
    },
    words: (w) => [...names(w), ...jobsOf(w).map((g) => `gpu ${g.index}`), ...troubles(w).flatMap((t) => [t.mark, t.words, t.where])],
    within: (w, scope) => scope.workloads.has(w.workload),
    stays: (w) => Boolean(this.#nodes.get(w.workload)?.fold.contents),
  });

  constructor(history) {
    this.history = history;
    this.section = document.getElementById("jobs");
    this.head = this.section.querySelector(".jobs-head");
    this.rest = this.section.querySelector(".others");
    new ResizeObserver(() => this.draw()).observe(this.section);
    document.addEventListener("theme", () => this.draw());
  }

  show(state, scope = null) {
    this.scope = scope;
    this.shadow = state.shadow ?? [];
    const first = (w) => (hangs(w).length ? 0 : 1);
    const hooked = state.workloads.filter((w) => jobsOf(w).length);
    this.all = hooked.filter(isJob).sort((a, b) => first(a) - first(b) || (a.workload < b.workload ? -1 : 1));
    this.others = hooked.length - this.all.length;
    this.#table.show(this.all, scope);
    this.#frame();
  }

  // frame shows the section if anything is under the hook.
  #frame() {
    const some = this.all.some((w) => !this.scope || this.scope.workloads.has(w.workload));
    shown(this.section, some || (!this.scope && this.others > 0));
    shown(this.head, this.all.length > 0);
    const more = this.all.length ? " more" : "";
    const what = this.others === 1 ? "workload runs" : "workloads run";
    text(this.rest, this.others && !this.scope ? `${this.others}${more} ${what} under the hook without steps, as servers do.` : "");
  }

  draw() {
    for (const job of this.#nodes.values()) job.draw();
  }

  filter(words) {
    this.#table.filter(words);
    this.#frame();
  }
}
