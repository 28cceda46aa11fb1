// The last 15 minutes of each GPU: fetched once, then continued from the
// states that the stream brings.

const points = 180;

// The series are those of historySeries in the agent.
const series = {
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

export class History {
  #gpus = new Map(); // UUID to series to its points, the newest last
  #newest = 0; // step
  #fetching = null;
  seconds = 5;

  // load fetches the agent's history, which replaces the one here.
  load() {
    this.#fetching ??= fetch("api/v1/history")
      .then((answer) => (answer.ok ? answer.json() : Promise.reject(new Error(answer.statusText))))
      .then((all) => this.#take(all))
      .catch(() => {}) // the next gap asks again; the charts grow from here
      .finally(() => (this.#fetching = null));
    return this.#fetching;
  }

  #take(all) {
    this.seconds = all.step_seconds;
    const newest = Math.round(Date.parse(all.end) / 1000 / this.seconds);
    const before = this.#gpus;
    const last = this.#newest;
    this.#gpus = new Map(all.gpus.map((g) => [g.uuid, g.series]));
    this.#newest = newest;
    for (let step = newest + 1; step <= last; step++) { // arrived by stream during the fetch
      const late = new Map([...before].map(([uuid, own]) => [uuid, (name) => own[name][points - 1 - (last - step)]]));
      this.#shift(step, late);
    }
  }

  // add notes a state, and reports whether a new step began.
  add(state) {
    const step = Math.floor(Date.parse(state.time) / 1000 / this.seconds);
    if (step <= this.#newest) return false;
    const values = new Map(state.gpus.map((g) => [g.uuid, (name) => series[name](g)]));
    for (let s = Math.max(this.#newest + 1, step - points); s < step; s++) this.#shift(s, new Map());
    this.#shift(step, values);
    return true;
  }

  #shift(step, values) {
    for (const uuid of values.keys()) {
      if (!this.#gpus.has(uuid)) {
        this.#gpus.set(
          uuid,
          Object.fromEntries(Object.keys(series).map((name) => [name, new Array(points).fill(null)])),
        );
      }
    }
    for (const [uuid, own] of this.#gpus) {
      const value = values.get(uuid);
      for (const name of Object.keys(series)) {
        own[name].shift();
        own[name].push(value?.(name) ?? null);
      }
      if (!value && Object.values(own).every((all) => all.every((v) => v === null))) this.#gpus.delete(uuid);
    }
    this.#newest = step;
  }

  // of returns the points of one series of a GPU; null is unknown.
  of(uuid, name) {
    return this.#gpus.get(uuid)?.[name] ?? [];
  }

  // total returns the sums of the known values over all GPUs.
  total(name) {
    const sums = new Array(points).fill(null);
    for (const own of this.#gpus.values()) {
      own[name].forEach((v, i) => {
        if (v !== null) sums[i] += v;
      });
    }
    return sums;
  }

  // times returns the times of the points, in seconds since 1970.
  times() {
    return Array.from({ length: points }, (_, i) => (this.#newest - points + 1 + i) * this.seconds);
  }
}
