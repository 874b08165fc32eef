// The three plots of the last minutes.

import { byId, part, put } from "./dom.js";
import { count, short, span } from "./format.js";
import { History } from "./history.js";
import { drawBars, drawLines, makePlot } from "./plot.js";

const THROUGHPUT = [
  { name: "finished", label: "finished", of: "line" },
  { name: "enqueued", label: "came", of: "dash" },
];
const LATENCY = [
  { name: "total", label: "in all", of: "line" },
  { name: "running", label: "running", of: "dash" },
];
const ENDS = ["succeeded", "failed", "expired", "cancelled", "dead"];
const OUTCOMES = ENDS.map((name) => ({ name, label: name, of: "bar" }));

const histories = new Map();

/** Frames of the plots; once. */
export function wireCharts() {
  makePlot(byId("plot-throughput"), { title: "Throughput", unit: "requests a second", series: THROUGHPUT });
  makePlot(byId("plot-latency"), { title: "Time to answer", unit: "mean", series: LATENCY });
  makePlot(byId("plot-outcomes"), { title: "Outcomes", unit: "requests ended", series: OUTCOMES });
}

/** Adds an overview to its queue's history, and draws that. */
export function showCharts(overview) {
  const history = histories.get(overview.queue) ?? new History();
  histories.set(overview.queue, history);
  const { rates, accepted, finished, ended, now_ms } = overview;
  history.add({ at_ms: now_ms, accepted, finished, ended, latency: rates?.latency ?? null });
  showThroughput(history);
  showLatency(history);
  showOutcomes(history);
}

function showThroughput(history) {
  const now = { finished: history.recent((one) => one.finished), enqueued: history.recent((one) => one.accepted) };
  const points = { finished: history.rates((one) => one.finished), enqueued: history.rates((one) => one.accepted) };
  const host = byId("plot-throughput");
  put(part(host, "now-finished"), short(now.finished));
  put(part(host, "now-enqueued"), short(now.enqueued));
  drawLines(host, THROUGHPUT, points, {
    write: short, said: `Throughput: ${short(now.finished)} finished and ${short(now.enqueued)} came a second, lately`,
  });
}

function showLatency(history) {
  const total = (one) => one.latency?.total_s ?? null;
  const running = (one) => one.latency?.running_s ?? null;
  const host = byId("plot-latency");
  const last = history.samples.at(-1);
  put(part(host, "now-total"), span(total(last)));
  put(part(host, "now-running"), span(running(last)));
  drawLines(host, LATENCY, { total: history.values(total), running: history.values(running) }, {
    write: span, said: `Time to answer: ${span(total(last))} in all, of it ${span(running(last))} running`,
  });
}

function showOutcomes(history) {
  const [first, last] = [history.samples[0].ended, history.samples.at(-1).ended];
  const grew = (name) => Math.max(0, (last[name] ?? 0) - (first[name] ?? 0));
  const grown = Object.fromEntries(ENDS.map((name) => [name, grew(name)]));
  const host = byId("plot-outcomes");
  for (const name of ENDS) put(part(host, `now-${name}`), count(grown[name]));
  const said = ENDS.map((name) => `${count(grown[name])} ${name}`).join(", ");
  drawBars(host, OUTCOMES, history.samples, { write: short, said: `Outcomes since the page looks: ${said}` });
}
