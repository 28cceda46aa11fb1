// The processes of a GPU or of a workload, read again while they are shown.

import { List, attribute, el, shown, text, titled } from "./dom.js";
import { forget, get } from "./fetch.js";
import { age, gibibytes, scaled, unknown } from "./format.js";
import { link } from "./scope.js";

const every = 2000; // milliseconds
const columns = [["PID", "n"], ["Name", "name"], ["User", "name"], ["Workload", "name"], ["Type"], ["Memory", "n"],
  ["GPU time", "n"], ["For", "n"]];

// Processes is a table below parent. query is gpu=UUID or workload=NAME.
export class Processes {
  #asked = 0;
  #now = 0;

  constructor(parent, query, name) {
    Object.assign(this, { query, name: `list of processes of ${name}` });
    const body = el("tbody");
    this.note = el("p", { class: "dim" }, "Reading the processes…");
    this.table = el("div", { class: "scroll processes", tabindex: "0", role: "group", "aria-label": `Processes of ${name}`,
      hidden: "" },
      el("table", {}, el("thead", {}, el("tr", {}, ...columns.map(([t, kind]) => el("th", { scope: "col", class: kind }, t)))),
        body));
    this.rows = new List(body, {
      key: (p) => `${p.pid} ${p.uuid}`,
      make: () => {
        const row = el("tr", {}, ...columns.map(([, kind]) => el("td", { class: kind })));
        row.to = el("a");
        row.cells[3].append(row.to);
        return row;
      },
      update: (row, p) => {
        attribute(row, "data-pid", `${p.pid}`);
        const values = {
          0: `${p.pid}`, 1: p.name ?? "not known to the kernel", 2: p.user ?? unknown, 4: p.type,
          5: p.memory_bytes === undefined ? unknown : `${gibibytes(p.memory_bytes)} GiB`,
          6: p.sm_seconds === undefined ? unknown : scaled(p.sm_seconds, "s"),
          7: p.since ? age(this.#now - Date.parse(p.since)) : unknown,
        };
        for (const [i, v] of Object.entries(values)) titled(row.cells[i], v);
        attribute(row.to, "href", p.workload ? link("workload", p.workload) : null);
        text(row.to, p.workload ?? unknown);
        attribute(row.cells[3], "title", p.workload ?? null);
      },
    });
    this.node = el("div", {}, this.note, this.table);
    parent.append(this.node);
  }

  // show reads the processes if they are older than two seconds.
  async show(now) {
    this.#now = now;
    if (Date.now() - this.#asked < every) return;
    this.#asked = Date.now();
    const all = await get(`api/v1/processes?${this.query}`, this.name);
    if (!all || this.closed) return this.closed && forget(this.name);
    this.rows.show(all.processes);
    shown(this.table, all.processes.length > 0);
    shown(this.note, !all.listed || all.all !== all.processes.length || all.all === 0);
    text(this.note, !all.listed
      ? "The agent lists no processes: set collectors.per_process: true in its configuration."
      : all.all === 0 ? "No process." : `The ${all.processes.length} with the most memory, of ${all.all}.`);
  }

  close() {
    this.closed = true;
    forget(this.name);
    this.node.remove();
  }
}
