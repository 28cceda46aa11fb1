// How bad something is: a word and a sign of its own, so that its colour says
// nothing that is not said without it.

const levels = ["ok", "info", "warning", "critical", "emergency"];
const signs = { ok: "✓", info: "i", warning: "▲", critical: "◆", emergency: "✖", down: "✖", gone: "–", unknown: "?" };

// rank orders severities, from ok on; a GPU that cannot be read is in between.
export function rank(severity) {
  return Math.max(0, severity === "down" ? levels.indexOf("critical") + 0.5 : levels.indexOf(severity));
}

// sign is the sign of a severity.
export function sign(severity) {
  return signs[severity] ?? "·";
}

// failing are the checks among faults; the others are XIDs that were counted.
export function failing(faults) {
  return (faults ?? []).filter((f) => f.check);
}

// worst is the worst severity of faults.
export function worst(faults) {
  return failing(faults).reduce((w, f) => (rank(f.severity) > rank(w) ? f.severity : w), "ok");
}

// ofGPU is how a GPU fares.
export function ofGPU(gpu) {
  const found = worst(gpu.faults);
  return gpu.up || rank(found) >= rank("critical") ? found : "down";
}

const whys = {
  gpu_is_lost: "fallen off the bus",
  not_listed: "no longer listed by the driver",
  unknown: "the driver says nothing of it",
};

// down says why a GPU is not up.
export function down(reason) {
  if (!reason) return "cannot be read";
  return whys[reason] ?? (reason.startsWith("nvml") ? `hangs in ${reason}` : reason.replaceAll("_", " "));
}
