// The last hour as lines. Axes begin at 0 and have whole numbers; times are UTC.

let points = []; // one for each observation, in order
const DIGIT = 7; // pixels, at most, of a digit at the size of the labels

class Chart {
  constructor(svg, reading, pick, word, unknown) {
    Object.assign(this, { svg, reading, pick, word, unknown, pointed: null });
    svg.addEventListener("pointermove", (event) => { this.pointed = event.offsetX; this.draw(); });
    svg.addEventListener("pointerleave", () => { this.pointed = null; this.draw(); });
    new ResizeObserver(() => this.draw()).observe(svg);
  }

  draw() {
    const width = this.svg.clientWidth;
    const height = this.svg.clientHeight;
    if (!points.length || !width) return;
    const end = points.at(-1).at;
    const begin = end - Math.min(HOUR, Math.max(300, end - points[0].at));
    const values = points.map(this.pick);
    const half = ceiling(Math.max(...values.filter((value) => value !== null), 0) / 2);
    const most = 2 * half;
    const [left, right, top, bottom] = [DIGIT * count(most).length + 14, 8, 8, 20];
    const x = (time) => left + ((time - begin) / (end - begin)) * (width - left - right);
    const y = (value) => top + (1 - value / most) * (height - top - bottom);
    const parts = [];
    for (const share of [0, 0.5, 1]) {
      parts.push(drawn("line", { class: "grid", x1: left, x2: width - right, y1: y(share * most), y2: y(share * most) }));
      parts.push(drawn("text", { x: left - 6, y: y(share * most) + 4, "text-anchor": "end" }, count(share * most)));
      parts.push(drawn("text", { x: x(begin + share * (end - begin)), y: height - 4, "text-anchor": ["start", "middle", "end"][share * 2] }, minute(begin + share * (end - begin))));
    }
    for (const run of this.runs(values, begin)) {
      const line = run.map(([time, value]) => `${x(time).toFixed(1)} ${y(value).toFixed(1)}`).join("L");
      parts.push(drawn("path", { class: "area", d: `M${x(run[0][0])} ${y(0)}L${line}L${x(run.at(-1)[0])} ${y(0)}Z` }));
      parts.push(drawn("path", { class: "curve", d: `M${line}` }));
    }
    const place = this.pointed === null ? points.length - 1 : nearest(begin + ((this.pointed - left) / (width - left - right)) * (end - begin));
    if (values[place] !== null) parts.push(drawn("circle", { class: "dot", r: 3.5, cx: x(points[place].at), cy: y(values[place]) }));
    this.svg.replaceChildren(...parts);
    say(this.reading, this.words(values, place));
  }

  /** Runs of known values, as [time, value]. */
  runs(values, begin) {
    const found = [[]];
    values.forEach((value, place) => {
      if (points[place].at < begin) return;
      if (value === null) found.push([]);
      else found.at(-1).push([points[place].at, value]);
    });
    return found.filter((run) => run.length);
  }

  words(values, place) {
    const when = moment(points[place].at).slice(11);
    let best = 0;
    values.forEach((value, index) => { if ((value ?? -1) > (values[best] ?? -1)) best = index; });
    const highest = values[best] === null ? "" : `; the most ${this.word(values[best])} at ${minute(points[best].at)}`;
    return `${when} ${values[place] === null ? this.unknown(points[place]) : this.word(values[place])}${highest}`;
  }
}

/** The next round whole number, from 1. */
function ceiling(value) {
  const power = 10 ** Math.floor(Math.log10(Math.max(1, value)));
  return [1, 2, 3, 4, 5, 6, 8, 10].map((digit) => digit * power).find((round) => round >= value);
}

function nearest(time) {
  return points.reduce((best, point, place) => (Math.abs(point.at - time) < Math.abs(points[best].at - time) ? place : best), 0);
}

const charts = [
  new Chart(at("lag-chart"), at("lag-text"), (point) => point.lag, count, (point) => (point.at_least ? `≥ ${count(point.at_least)}, ${plural(point.unknown, "partition")} unknown` : "unknown")),
  new Chart(at("rate-chart"), at("rate-text"), (point) => point.rate, rate, () => "unknown"),
];

function showHistory() {
  for (const point of known.history.points) {
    while (points.length && points.at(-1).at >= point.at) points.pop(); // known already, or the clock was set back
    points.push(point);
  }
  points = points.filter((point) => point.at >= points.at(-1).at - HOUR);
  if (points.length) say(at("lag-title"), `Lag and rate since ${minute(points[0].at)}, in UTC`);
  for (const chart of charts) chart.draw();
}
