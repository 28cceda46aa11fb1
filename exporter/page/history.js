// The last 15 minutes of each GPU and of each job: fetched once, then continued
// from the states that the stream brings.

import { get } from "./fetch.js";

const points = 180;

// The series of a GPU are those of historySeries in the agent.
const gpuSeries = {
  utilization_ratio: (g) => g.utilization_ratio?.gpu,
  sm_ratio: (g) => g.activity_ratio?.sm,
  tensor_ratio: (g) => g.activity_ratio?.tensor,
  dram_ratio: (g) => g.activity_ratio?.dram,
  memory_used_bytes: (g) => g.memory_bytes?.used,
  power_watts: (g) => g.power_watts,
  temperature_celsius: (g) => g.temperature_celsius?.gpu,
  sm_clock_hertz: (g) => g.clock_hertz?.sm,
  nvlink_rx_bytes_per_second: (g) => g.nvlink_bytes_per_second?.rx,
  nvlink_tx_bytes_per_second: (g) => g.nvlink_bytes_per_second?.tx,
  pcie_rx_bytes_per_second: (g) => g.pcie_bytes_per_second?.rx,
  pcie_tx_bytes_per_second: (g) => g.pcie_bytes_per_second?.tx,
};

// The series of a job are those of jobSeries.
const jobSeries = {
  step_seconds: (w) => w.steps.seconds,
  launching_seconds: (w) => w.steps.part_seconds?.launching,
  waiting_seconds: (w) => w.steps.part_seconds?.waiting,
  copying_seconds: (w) => w.steps.part_seconds?.copying,
  held_seconds: (w) => w.steps.part_seconds?.held,
  host_seconds: (w) => w.steps.part_seconds?.host,
  goodput_ratio: (w) => w.steps.goodput_ratio,
};

// A Past has series of some things, by the key of each.
class Past {
  #all = new Map(); // key to series to its points, the newest last

  constructor(series) {
    this.series = Object.entries(series);
  }

  // take replaces what is known.
  take(pairs) {
    this.#all = new Map(pairs);
  }

  // values returns what a step adds: of each thing by its key, a function from
  // the series to its value.
  values(things) {
    return new Map(things.map(([key, thing]) => [key, (name, of) => of(thing)]));
  }

  // late returns the values of the step that was so many steps ago.
  late(ago) {
    return new Map([...this.#all].map(([key, own]) => [key, (name) => own[name][points - 1 - ago]]));
  }

  // shift begins a step with these values.
  shift(values) {
    for (const key of values.keys()) {
      if (this.#all.has(key)) continue;
      this.#all.set(key, Object.fromEntries(this.series.map(([name]) => [name, new Array(points).fill(null)])));
    }
    for (const [key, own] of this.#all) {
      const value = values.get(key);
      for (const [name, of] of this.series) {
        own[name].shift();
        own[name].push(value?.(name, of) ?? null);
      }
      if (!value && Object.values(own).every((all) => all.every((v) => v === null))) this.#all.delete(key);
    }
  }

  // of returns the points of one series; null is unknown.
  of(key, name) {
    return this.#all.get(key)?.[name] ?? [];
  }
}

const nothing = new Map();

export class History {
  gpus = new Past(gpuSeries); // by UUID
  jobs = new Past(jobSeries); // by workload
  #newest = 0; // step
  #fetching = null;
  seconds = 5;

  // load fetches the agent's history, which replaces the one here.
  load() {
    this.#fetching ??= get("api/v1/history", "history")
      .then((all) => (all ? this.#take(all) : this.#later()))
      .finally(() => (this.#fetching = null));
    return this.#fetching;
  }

  // later asks again; meanwhile the charts grow from here.
  #later() {
    this.again ??= setTimeout(() => {
      this.again = null;
      this.load();
    }, 10_000);
  }

  #take(all) {
    this.seconds = all.step_seconds;
    const last = this.#newest;
    this.#newest = Math.round(Date.parse(all.end) / 1000 / this.seconds);
    const late = []; // arrived by stream during the fetch
    for (let ago = last - this.#newest - 1; ago >= 0; ago--) late.push([this.gpus.late(ago), this.jobs.late(ago)]);
    this.gpus.take(all.gpus.map((g) => [g.uuid, g.series]));
    this.jobs.take(all.jobs.map((j) => [j.workload, j.series]));
    for (const [gpus, jobs] of late) this.#shift(this.#newest + 1, gpus, jobs);
  }

  // add notes a state, and reports whether a new step began.
  add(state) {
    const step = Math.floor(Date.parse(state.time) / 1000 / this.seconds);
    if (step <= this.#newest) return false;
    for (let s = Math.max(this.#newest + 1, step - points); s < step; s++) this.#shift(s, nothing, nothing);
    const stepping = state.workloads.filter((w) => w.steps);
    this.#shift(
      step,
      this.gpus.values(state.gpus.map((g) => [g.uuid, g])),
      this.jobs.values(stepping.map((w) => [w.workload, w])),
    );
    return true;
  }

  #shift(step, gpus, jobs) {
    this.gpus.shift(gpus);
    this.jobs.shift(jobs);
    this.#newest = step;
  }

  // times returns the times of the points, in seconds since 1970.
  times() {
    return Array.from({ length: points }, (_, i) => (this.#newest - points + 1 + i) * this.seconds);
  }
}
