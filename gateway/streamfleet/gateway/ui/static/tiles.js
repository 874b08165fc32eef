// The figures at the top.

import { byId, el, keyed, mark, part, put } from "./dom.js";
import { count, many, short, span } from "./format.js";

/** Shows them. */
export function showTiles(overview) {
  keyed(byId("tiles"), tilesOf(overview), (tile) => tile.name,
    (tile) => el("div", {}, el("dt", {}, tile.name),
      el("dd", { "data-part": "value" }), el("dd", { class: "under", "data-part": "under" })),
    (node, tile) => {
      put(part(node, "value"), tile.value);
      put(part(node, "under"), tile.under);
      mark(node, "data-tone", tile.tone);
    });
}

/** Name, figure and a line below it, of each tile. Pure. */
export function tilesOf(overview) {
  const { finished, ended, rates, workers, workers_total } = overview;
  const ready = workers.filter((worker) => worker.takes_requests).length;
  const slots = workers.reduce((sum, worker) => sum + (worker.slots ?? 0), 0);
  const latency = rates?.latency;
  const share = finished ? `${((ended.succeeded / finished) * 100).toFixed(1)} % succeeded` : "none yet";
  return [
    { name: "Waiting", value: count(overview.ready + (overview.delayed ?? 0)),
      under: overview.delayed ? `${count(overview.delayed)} delayed for a retry` : "in all lanes" },
    { name: "Running", value: count(overview.running), under: slots ? `of ${many(slots, "slot")}` : "no slots known" },
    { name: "Finished a second", value: short(rates?.finished_per_s),
      under: rates ? `${short(rates.enqueued_per_s)} came` : "measuring" },
    { name: "Time to answer", value: span(latency?.total_s),
      under: latency ? `${span(latency.waiting_s)} waiting` : "nothing finishes" },
    { name: "Ended", value: short(finished), under: share },
    { name: "Dead letters", value: count(overview.dead_letters),
      under: overview.dead_letters ? "to look at" : "none" },
    { name: "Workers ready", value: count(ready), under: `of ${count(workers_total)}`,
      tone: ready === 0 ? "bad" : null },
  ];
}
