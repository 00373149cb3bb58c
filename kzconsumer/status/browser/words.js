// Numbers, times and names for display, the same texts as those of kzconsumer/display.py: "1,234", "2 min 5 s", times in UTC.

const HOUR = 3600;
const UNKNOWN = "-";

const whole = new Intl.NumberFormat("en-US");
const count = (n) => (n === null || n === undefined ? UNKNOWN : whole.format(n));
const offset = (n) => (n === null || n === undefined ? UNKNOWN : `${Number.isInteger(n) && !Number.isSafeInteger(n) ? "about " : ""}${n}`);
const rate = (n) => (n === null || n === undefined ? UNKNOWN : n < 10 ? `${Math.round(n * 10) / 10}/s` : `${count(Math.round(n))}/s`);
const moment = (time) => (time === null || time === undefined ? UNKNOWN : `${new Date(time * 1000).toISOString().slice(0, 19)}Z`);
const minute = (time) => moment(time).slice(11, 16);
const plural = (n, one) => `${count(n)} ${one}${n === 1 ? "" : "s"}`;

const OFFSETS = new Set(["fetched", "consumed", "processed", "committed", "end"]);

/** A document. Offsets beyond 2 ** 53 are no exact numbers in JavaScript, and become text; older browsers round them. */
function parsed(text) {
  const exact = (name, value, given) => (OFFSETS.has(name) && Number.isInteger(value) && !Number.isSafeInteger(value) && given ? given.source : value);
  return /\d{16}/.test(text) ? JSON.parse(text, exact) : JSON.parse(text);
}

function duration(s) {
  if (s === null || s === undefined) return UNKNOWN;
  if (s === 0) return "0 s";
  if (s < 1) return `${Math.max(1, Math.round(s * 1000))} ms`;
  if (s < 10) return `${Math.round(s * 10) / 10} s`;
  if (s < 60) return `${Math.round(s)} s`;
  if (s < HOUR) return `${Math.floor(s / 60)} min ${Math.floor(s % 60)} s`;
  if (s < 24 * HOUR) return `${Math.floor(s / HOUR)} h ${Math.floor((s % HOUR) / 60)} min`;
  return `${Math.floor(s / (24 * HOUR))} d ${Math.floor((s % (24 * HOUR)) / HOUR)} h`;
}

function bytes(n) {
  const units = ["B", "KiB", "MiB", "GiB"];
  let unit = 0;
  while (n >= 1024 && unit < units.length - 1) { n /= 1024; unit += 1; }
  return `${Math.round(n * 10) / 10} ${units[unit]}`;
}

/** "t-0", "t-1", "t-2", "u-4" as "t 0–2, u 4". */
function together(partitions) {
  const found = new Map();
  for (const each of partitions) {
    const cut = each.lastIndexOf("-");
    const topic = each.slice(0, cut);
    if (!found.has(topic)) found.set(topic, []);
    found.get(topic).push(Number(each.slice(cut + 1)));
  }
  return [...found].map(([topic, numbers]) => {
    const runs = [];
    for (const n of numbers.sort((a, b) => a - b)) {
      const last = runs.at(-1);
      if (last && last[1] === n - 1) last[1] = n;
      else runs.push([n, n]);
    }
    return `${topic} ${runs.map(([a, b]) => (a === b ? a : `${a}–${b}`)).join(", ")}`;
  }).join("; ");
}
