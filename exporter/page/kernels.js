// The kernels of a workload with the most GPU time, if the enforcer times them.

import { List, attribute, el, shown, style, text, titled } from "./dom.js";
import { percent, scaled, sum } from "./format.js";

const columns = [["Kernel", "name"], ["GPU", "n"], ["GPU time", "n"], ["Part of these", "wide"]];

// of returns the kernels of a workload, those with the most time first.
const of = (w) => (w?.gpus ?? [])
  .flatMap((g) => (g.job?.kernels ?? []).map((k) => ({ ...k, uuid: g.uuid, index: g.index })))
  .sort((a, b) => b.seconds - a.seconds);

// Kernels is a table below parent.
export class Kernels {
  constructor(parent) {
    const body = el("tbody");
    this.node = el("div", { class: "scroll kernels", tabindex: "0", role: "group", "aria-label": "Kernels", hidden: "" },
      el("table", {}, el("caption", {}, "Kernels with the most GPU time, by samples. A graph counts as one."),
        el("thead", {}, el("tr", {}, ...columns.map(([t, kind]) => el("th", { scope: "col", class: kind }, t)))), body));
    this.rows = new List(body, {
      key: (k) => `${k.uuid} ${k.name}`,
      make: () => {
        const meter = el("div", { class: "meter", "aria-hidden": "true" }, el("span", { class: "fill" }));
        const part = el("span");
        const cells = columns.map(([, kind]) => el("td", { class: kind }));
        cells[3].append(el("div", { class: "measure" }, meter, part));
        return Object.assign(el("tr", {}, ...cells), { meter, part });
      },
      update: (row, k) => {
        attribute(row, "data-kernel", k.name);
        titled(row.cells[0], k.name);
        text(row.cells[1], `${k.index}`);
        text(row.cells[2], scaled(k.seconds, "s"));
        style(row.meter, "--share", `${(100 * k.part).toFixed(1)}%`);
        text(row.part, percent(k.part));
      },
    });
    parent.append(this.node);
  }

  show(workload) {
    const all = of(workload);
    const total = sum(all.map((k) => k.seconds));
    this.rows.show(all.map((k) => ({ ...k, part: total ? k.seconds / total : 0 })));
    shown(this.node, all.length > 0);
  }

  close() {
    this.node.remove();
  }
}
