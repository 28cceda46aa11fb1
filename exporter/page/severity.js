// Severities: each has a word and a sign, so that the colour is never the only
// information.

import { clock } from "./format.js";

const levels = ["ok", "info", "warning", "critical", "emergency"];
const signs = { ok: "✓", info: "i", warning: "▲", critical: "◆", emergency: "✖", down: "✖", gone: "–", unknown: "?", shadow: "◌" };

// rank orders severities from ok on; a GPU that cannot be read is in between.
export function rank(severity) {
  return Math.max(0, severity === "down" ? levels.indexOf("critical") + 0.5 : levels.indexOf(severity));
}

// sign is the sign of a severity.
export function sign(severity) {
  return signs[severity] ?? "·";
}

// failing returns the checks among faults; the others are counted XIDs.
export function failing(faults) {
  return (faults ?? []).filter((f) => f.check);
}

// worst returns the worst severity of faults.
export function worst(faults) {
  return failing(faults).reduce((w, f) => (rank(f.severity) > rank(w) ? f.severity : w), "ok");
}

// own returns the checks that fail for the hardware itself: a fault of a
// workload or a tenant is no fault of its GPU.
export const own = (faults) => failing(faults).filter((f) => !f.workload && !f.tenant);

// ofGPU returns the severity of a GPU.
export function ofGPU(gpu) {
  const found = worst(own(gpu.faults));
  return gpu.up || rank(found) >= rank("critical") ? found : "down";
}

// recovery says when a fault ended that is over, and when it will be forgotten.
export const recovery = (f) =>
  (f.recovered ? `recovered ${minute(f.recovered)}, clears ${minute(f.clears)}` : "");

const minute = (time) => clock(new Date(time)).slice(0, 5);

const whys = {
  gpu_is_lost: "fallen off the bus",
  not_listed: "no longer listed by the driver",
  unknown: "the driver says nothing about it",
};

// down says why a GPU is not up.
export function down(reason) {
  if (!reason) return "cannot be read";
  return whys[reason] ?? (reason.startsWith("nvml") ? `hangs in ${reason}` : reason.replaceAll("_", " "));
}
