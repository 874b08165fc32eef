// The workers: what each holds and runs, and whether it takes requests.

import { byId, el, keyed, mark, part, put, show, svg } from "./dom.js";
import { count, span, visible } from "./format.js";

/** Shows them. */
export function showWorkers({ workers, workers_total }) {
  show(byId("workers-empty"), workers.length === 0);
  show(byId("workers"), workers.length > 0);
  put(byId("workers-title"), workers_total > workers.length
    ? `Workers (${count(workers.length)} of ${count(workers_total)})` : "Workers");
  keyed(byId("worker-rows"), workers, (worker) => worker.name, makeRow, updateRow);
}

function makeRow(worker) {
  return el("tr", {},
    el("th", { scope: "row" }, el("span", { class: "id" }, visible(worker.name))),
    el("td", { "data-label": "State" }, el("span", { class: "state", "data-part": "state" }),
      el("span", { class: "under", "data-part": "why" })),
    el("td", { "data-label": "Load" },
      svg("svg", { class: "meter", "aria-hidden": "true" },
        svg("rect", { class: "load", "data-part": "bar", height: "100%" })),
      el("span", { class: "under", "data-part": "load" })),
    ...["model", "engine", "version"].map((name) => el("td", { "data-label": capital(name), "data-part": name })),
    el("td", { class: "number", "data-label": "Up", "data-part": "up" }),
    el("td", { class: "number", "data-label": "Seen", "data-part": "seen" }));
}

function updateRow(row, worker) {
  const { word, tone, why } = stateOf(worker);
  put(part(row, "state"), word);
  mark(part(row, "state"), "data-tone", tone);
  put(part(row, "why"), visible(why));
  const share = worker.slots ? Math.min(100, (worker.running / worker.slots) * 100) : 0;
  mark(part(row, "bar"), "width", `${share.toFixed(1)}%`);
  put(part(row, "load"), worker.slots === null ? `${count(worker.running)} running`
    : `${count(worker.running)} of ${count(worker.slots)}`);
  put(part(row, "model"), visible(worker.models.join(", ")) || "–");
  put(part(row, "engine"), visible(worker.engine) || "–");
  put(part(row, "version"), visible(worker.version) || "–");
  put(part(row, "up"), span(worker.age_s));
  put(part(row, "seen"), worker.silent_s === null ? "never" : `${span(Math.max(0, worker.silent_s))} ago`);
}

/** A worker's state as a word, a tone and a reason. Pure. */
export function stateOf(worker) {
  const { alive, takes_requests, running, state } = worker;
  if (!alive) return { word: "silent", tone: "bad", why: running ? "others take over what it holds" : "" };
  if (!takes_requests) return { word: visible(state) || "not ready", tone: "warn", why: differs(worker) };
  const why = worker.limited ? `limited to ${count(worker.slots)} by the server` : "";
  return running ? { word: "busy", tone: "busy", why } : { word: "ready", tone: "good", why };
}

const differs = (worker) => (worker.why_not === worker.state ? "" : worker.why_not);
const capital = (text) => text[0].toUpperCase() + text.slice(1);
