// What to do on a host without GPUs or without a driver.

import { attribute, el, shown, text } from "./dom.js";

const steps = {
  driver: ["No NVIDIA driver answers", [
    ["Does the host have a GPU? This lists those of NVIDIA:", "lspci -d 10de:"],
    ["Is the driver loaded? This must list the GPUs; if not, install the driver or load its module:", "nvidia-smi -L"],
    ["Why was the module not loaded? The kernel says so:", "journalctl -k -g NVRM"],
    ["In a container, the agent needs the GPUs' devices and libnvidia-ml.so.1 of the host; see docs/kubernetes.md."],
    ["To see the agent without a GPU, simulate some:", "gpusteward --demo"],
  ]],
  gpus: ["The driver lists no GPU", [
    ["Does the host have a GPU? This lists those of NVIDIA:", "lspci -d 10de:"],
    ["Did the driver refuse one? The kernel says why:", "journalctl -k -g NVRM"],
    ["In a virtual machine or a container, check that GPUs were given to it:", "nvidia-smi -L"],
    ["To see the agent without a GPU, simulate some:", "gpusteward --demo"],
  ]],
};

export class Guide {
  #node = document.getElementById("guide");
  #case = "";

  show({ host, gpus }) {
    const is = gpus.length || host.drained ? "" : host.driver_up ? "gpus" : "driver";
    shown(this.#node, is !== "");
    attribute(document.body, "data-guide", is || null);
    text(this.#node.querySelector('[data-field="guide-why"]'), host.not_ready ? `The agent says: ${host.not_ready}` : "");
    if (is === this.#case) return;
    this.#case = is;
    attribute(this.#node, "data-case", is || null);
    const [title, all] = steps[is] ?? ["", []];
    text(document.getElementById("guide-title"), title);
    this.#node.querySelector("ol").replaceChildren(
      ...all.map(([words, command]) => el("li", {}, words, ...(command ? [" ", el("code", {}, command)] : []))));
  }
}
