// Small plots drawn by hand: lines over the last minutes, and bars of what they add up to. Each has a table beside it.

import { el, keyed, mark, part, put, svg } from "./dom.js";
import { moment } from "./format.js";
import { roundUp, thin } from "./history.js";

const MOST_POINTS = 150;
const MOST_BARS = 48;
const TABLE_ROWS = 10;
const LEAST_SPAN_MS = 60_000;
const LEAST_STEP_MS = 2_000;

/**
 * A figure with its frame: title, legend with the present figures, drawing, table.
 * `series` are `{ name, label, of: "line" | "dash" | class of a bar }`.
 */
export function makePlot(host, { title, unit, series }) {
  const drawing = svg("svg", {
    class: "drawing", viewBox: "0 0 100 100", preserveAspectRatio: "none", role: "img", "aria-label": title,
  });
  drawing.append(
    ...[0, 50, 100].map((y) => svg("line", { class: "grid", x1: 0, x2: 100, y1: y, y2: y })),
    svg("g", { "data-part": "marks" }),
  );
  const legend = el("ul", { class: "legend" }, ...series.map((one) => el("li", {},
    key(one), el("span", { class: "muted" }, one.label), " ", el("b", { "data-part": `now-${one.name}` }, "–"))));
  const heads = ["Time", ...series.map((one) => one.label)].map((text) => el("th", { scope: "col" }, text));
  const table = el("table", { class: "plain" },
    el("caption", {}, `${title}, ${unit}`), el("thead", {}, el("tr", {}, ...heads)),
    el("tbody", { "data-part": "rows" }));
  host.append(
    el("figcaption", {}, el("h3", {}, title, " ", el("span", { class: "unit" }, unit)), legend),
    el("div", { class: "frame" },
      el("span", { class: "top", "data-part": "top" }), drawing,
      el("span", { class: "from", "data-part": "from" }), el("span", { class: "until" }, "now")),
    el("details", {}, el("summary", {}, "As a table"), el("div", { class: "wide" }, table)),
  );
}

function key(one) {
  const mark = one.of === "line" || one.of === "dash"
    ? svg("line", { class: `stroke ${one.name} ${one.of}`, x1: 0, x2: 18, y1: 5, y2: 5 })
    : svg("rect", { class: `bar ${one.name}`, x: 4, y: 0, width: 10, height: 10, rx: 2 });
  return svg("svg", { class: "key", viewBox: "0 0 18 10", "aria-hidden": "true" }, mark);
}

/** Draws lines: `points[name]` are `{ at_ms, value }`; `write` makes a value a text. */
export function drawLines(host, series, points, { write, said }) {
  const { from, until } = extent(Object.values(points).flat());
  const thinned = series.map((one) => [one, thin(points[one.name], MOST_POINTS)]);
  const top = roundUp(Math.max(0, ...thinned.flatMap(([, some]) => some.map((point) => point.value ?? 0))));
  keyed(part(host, "marks"), thinned, ([one]) => one.name,
    ([one]) => svg("path", { class: `stroke ${one.name} ${one.of}`, "vector-effect": "non-scaling-stroke" }),
    (node, [, some]) => mark(node, "d", path(some, from, until, top)));
  finish(host, { from, until, top, write, said });
  rows(host, thinned.map(([, some]) => some), write);
}

/** Draws stacked bars: how many of each kind ended in each stretch of time. */
export function drawBars(host, series, samples, { write, said }) {
  const { from, until, step, bars } = stacks(series, samples, extent(samples));
  const top = roundUp(Math.max(0, ...bars.map((bar) => bar.total)));
  const width = (100 * step) / (until - from);
  const rects = bars.flatMap((bar) => series.map((one, place) => ({ bar, one, place })));
  keyed(part(host, "marks"), rects.filter(({ bar, place }) => bar.parts[place] > 0),
    ({ bar, one }) => `${bar.slot}-${one.name}`,
    ({ one }) => svg("rect", { class: `bar ${one.name}` }),
    (node, { bar, place }) => {
      const upto = bar.parts.slice(0, place + 1).reduce((sum, count) => sum + count, 0);
      mark(node, "x", ((100 * (bar.slot * step - from)) / (until - from) + width * 0.12).toFixed(2));
      mark(node, "width", (width * 0.76).toFixed(2));
      mark(node, "y", (100 - (upto / top) * 100).toFixed(2));
      mark(node, "height", ((bar.parts[place] / top) * 100).toFixed(2));
    });
  finish(host, { from, until, top, write, said });
  rows(host, series.map((_, place) => bars.map((bar) => ({ at_ms: bar.at_ms, value: bar.parts[place] }))), write);
}

/** What ended in each stretch, from the growth of the counters. Stretches are those of the clock: bars stay whole. */
export function stacks(series, samples, { from, until }) {
  const step = Math.max(LEAST_STEP_MS, Math.ceil((until - from) / MOST_BARS / 1000) * 1000);
  const bars = new Map();
  samples.slice(1).forEach((sample, place) => {
    const slot = Math.floor(sample.at_ms / step);
    const bar = bars.get(slot) ?? { slot, total: 0, parts: series.map(() => 0) };
    series.forEach((one, kind) => {
      const grown = Math.max(0, (sample.ended[one.name] ?? 0) - (samples[place].ended[one.name] ?? 0));
      bar.parts[kind] += grown;
      bar.total += grown;
    });
    bars.set(slot, { ...bar, at_ms: sample.at_ms });
  });
  const end = (Math.floor(until / step) + 1) * step;
  return { from: Math.floor(from / step) * step, until: end, step, bars: [...bars.values()] };
}

function extent(points) {
  const times = points.map((point) => point.at_ms);
  const until = Math.max(...times, 0);
  return { from: Math.min(Math.min(...times, until), until - LEAST_SPAN_MS), until };
}

function path(points, from, until, top) {
  let pen = "M";
  let drawn = "";
  for (const { at_ms, value } of points) {
    if (value === null) {
      pen = "M";
      continue;
    }
    const x = ((at_ms - from) / (until - from)) * 100;
    drawn += `${pen}${x.toFixed(2)} ${(100 - (value / top) * 100).toFixed(2)}`;
    pen = "L";
  }
  return drawn;
}

function finish(host, { from, until, top, write, said }) {
  put(part(host, "top"), write(top));
  put(part(host, "from"), `${Math.round((until - from) / 1000)} s ago`);
  mark(host.querySelector(".drawing"), "aria-label", said);
}

function rows(host, columns, write) {
  if (!host.querySelector("details").open) return;
  const times = [...new Set(columns.flat().map((point) => point.at_ms))].sort((one, two) => two - one);
  const step = Math.max(1, Math.ceil(times.length / TABLE_ROWS));
  const picked = times.filter((_, place) => place % step === 0);
  const cells = columns.map((points) => new Map(points.map((point) => [point.at_ms, point.value])));
  keyed(part(host, "rows"), picked, (at_ms) => at_ms,
    () => el("tr", {}, el("th", { scope: "row" }), ...columns.map(() => el("td", { class: "number" }))),
    (row, at_ms) => {
      put(row.firstElementChild, moment(at_ms).slice(0, -4));
      cells.forEach((values, column) => {
        const value = values.get(at_ms);
        put(row.children[column + 1], value === undefined || value === null ? "–" : write(value));
      });
    });
}
