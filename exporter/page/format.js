// Numbers, times and names for people. An unknown value is a dash.

import { inUTC, zone } from "./zone.js";

export const unknown = "–";

const known = (v) => typeof v === "number" && Number.isFinite(v);

// sum adds the known ones of some values; undefined if none is.
export function sum(all) {
  const some = all.filter(known);
  return some.length ? some.reduce((a, b) => a + b, 0) : undefined;
}

// number writes v with so many digits after the decimal point.
export function number(v, digits = 0) {
  return known(v) ? v.toFixed(digits) : unknown;
}

// percent writes a ratio.
export function percent(v) {
  return known(v) ? `${Math.round(100 * v)} %` : unknown;
}

// gibibytes writes bytes of memory.
export function gibibytes(v) {
  return known(v) ? (v / 2 ** 30).toFixed(1) : unknown;
}

// ofMemory writes the used memory, and the total if it is known.
export function ofMemory(used, total) {
  if (!known(used) && !known(total)) return unknown;
  return known(total) ? `${gibibytes(used)} / ${gibibytes(total)} GiB` : `${gibibytes(used)} GiB`;
}

const steps = ["", "k", "M", "G", "T"];

// scaled writes v with three digits and a decimal prefix.
export function scaled(v, unit) {
  if (!known(v)) return unknown;
  let at = 0;
  while (Math.abs(v) >= 999.5 && at < steps.length - 1) {
    v /= 1000;
    at++;
  }
  const digits = at === 0 || Math.abs(v) >= 99.95 ? 0 : Math.abs(v) >= 9.995 ? 1 : 2;
  return `${v.toFixed(digits)} ${steps[at]}${unit}`;
}

// traffic writes the incoming and the outgoing rate.
export function traffic(by) {
  return by ? `↓ ${scaled(by.rx, "B/s")}  ↑ ${scaled(by.tx, "B/s")}` : unknown;
}

// age writes a duration so far, in milliseconds.
export function age(milliseconds) {
  const s = Math.max(0, Math.round(milliseconds / 1000));
  if (!known(s)) return unknown;
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

// seconds writes the time of a step with three digits.
export function seconds(v) {
  if (!known(v)) return unknown;
  const [value, unit] = v < 0.9995 ? [1000 * v, "ms"] : [v, "s"];
  return `${value.toFixed(value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2)} ${unit}`;
}

const pad = (n) => String(n).padStart(2, "0");

// clock writes a time of day in the chosen zone.
export function clock(date) {
  const of = (unit) => pad(inUTC() ? date[`getUTC${unit}`]() : date[`get${unit}`]());
  return `${of("Hours")}:${of("Minutes")}:${of("Seconds")}`;
}

// when writes a time of day, and the day if it is not today.
export function when(date, now) {
  const day = (d) => d.toLocaleDateString(undefined, { month: "short", day: "numeric", timeZone: zone() });
  return (day(date) === day(now) ? "" : `${day(date)} `) + clock(date);
}

// ranges writes indexes as 0-3,7.
export function ranges(indexes) {
  const sorted = [...new Set(indexes)].sort((a, b) => a - b);
  const parts = [];
  for (let i = 0; i < sorted.length; ) {
    let j = i;
    while (sorted[j + 1] === sorted[j] + 1) j++;
    parts.push(i === j ? `${sorted[i]}` : `${sorted[i]}–${sorted[j]}`);
    i = j + 1;
  }
  return parts.join(", ");
}

const reasons = {
  app_clocks: "application clocks",
  sw_power_cap: "power limit",
  hw_slowdown: "hardware slowdown",
  sync_boost: "sync boost",
  sw_thermal: "heat",
  hw_thermal: "heat (hardware)",
  hw_power_brake: "power brake",
  display_clocks: "display clocks",
};

// held writes what holds clocks.
export const held = (throttled = []) => throttled.map((r) => reasons[r] ?? r).join(", ");

// pair joins two texts, unless both are unknown.
export function pair(a, between, b, unit = "") {
  return a === unknown && b === unknown ? unknown : `${a}${between}${b}${unit}`;
}

// plural writes a number of things: 1 fault, 2 faults.
export const plural = (n, what) => `${n} ${what}${n === 1 ? "" : "s"}`;

// margin writes how far a GPU is from its temperature limit.
export const margin = (v) => (known(v) ? `${number(Math.abs(v))}${v < 0 ? " above its limit" : " left"}` : "");

// short writes a reading with three digits that count.
export const short = (v) => (known(v) ? `${Number(v.toPrecision(Math.abs(v) >= 1000 ? 6 : 3))}` : unknown);

// harmful reports whether clocks are held by more than a configured limit: by
// heat, or by the hardware itself.
export function harmful(throttled) {
  return (throttled ?? []).some((r) => r.startsWith("hw_") || r === "sw_thermal");
}

// matches reports whether every word of the filter is in one of the texts. "gpu
// 2" is one word, and matches that GPU alone.
export function matches(filter, ...texts) {
  const all = texts.filter(Boolean).map((t) => `${t}`.toLowerCase());
  const words = filter.toLowerCase().match(/gpu \d+(?!\S)|\S+/g) ?? [];
  return words.every((word) => (word.startsWith("gpu ") ? all.includes(word) : all.some((t) => t.includes(word))));
}

// owner returns the owner of a workload, if it is known.
export function owner(info = {}) {
  return info.slurm_user ?? info.namespace ?? info.user ?? (info.uid === undefined ? "" : `uid ${info.uid}`);
}

// names returns what a reader may look for of a workload: its names, its owner, its
// pod, its tenants.
export const names = (w) => [w.workload, owner(w.info), ...Object.values(w.info ?? {}), ...(w.tenants ?? [])];
