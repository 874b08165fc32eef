// The lanes: how much is in each, how old, how pressed, what runs next, and whether it rests.

import * as api from "./api.js";
import { byId, el, keyed, mark, part, put, svg } from "./dom.js";
import { count, many, span, visible } from "./format.js";
import { act, link, page } from "./page.js";
import { say } from "./say.js";

const MOST_NEXT = 4;
const PARTS = ["running", "ready", "delayed"];

/** Shows them; the longest lane sets the scale of all. */
export function showLanes(lanes) {
  const longest = Math.max(1, ...lanes.map((lane) => lane.outstanding));
  keyed(byId("lane-rows"), lanes, (lane) => lane.lane, makeRow, (row, lane) => updateRow(row, lane, longest));
}

function makeRow({ lane }) {
  const bars = PARTS.map((name) => svg("rect", { class: `depth ${name}`, "data-part": name, y: 0, height: "100%" }));
  const button = el("button", { type: "button", class: "small", "data-part": "toggle", onclick: () => toggle(button) });
  return el("tr", { "data-lane": lane },
    el("th", { scope: "row" }, lane, " ",
      el("span", { class: "state", "data-part": "rest", "data-tone": "warn" }, "paused")),
    el("td", { class: "number", "data-label": "Outstanding", "data-part": "outstanding" }),
    el("td", {}, svg("svg", { class: "meter", "aria-hidden": "true" }, ...bars),
      el("span", { class: "under", "data-part": "parts" })),
    el("td", { class: "number", "data-label": "Oldest", "data-part": "oldest" }),
    el("td", { class: "whole", "data-label": "Deadlines" }, el("span", { "data-part": "nearest" }),
      el("span", { class: "under", "data-part": "pressure" })),
    el("td", { class: "whole", "data-label": "Runs next" }, el("div", { class: "next", "data-part": "next" })),
    el("td", { class: "whole" }, button));
}

function updateRow(row, lane, longest) {
  const paused = lane.paused_s !== null;
  part(row, "rest").hidden = !paused;
  put(part(row, "outstanding"), count(lane.outstanding));
  drawDepth(row, lane, longest);
  put(part(row, "parts"), `${count(lane.running)} running, ${count(lane.ready)} waiting`
    + (lane.delayed ? `, ${count(lane.delayed)} delayed` : ""));
  put(part(row, "oldest"), span(lane.oldest_s));
  showDeadlines(row, lane);
  showNext(part(row, "next"), lane.next);
  const button = part(row, "toggle");
  put(button, paused ? "Resume" : "Pause");
  mark(button, "aria-label", `${paused ? "Resume" : "Pause"} lane ${lane.lane}`);
  button.dataset.paused = paused ? "yes" : "";
}

function drawDepth(row, lane, longest) {
  let from = 0;
  for (const name of PARTS) {
    const width = ((lane[name] ?? 0) / longest) * 100;
    mark(part(row, name), "x", `${from.toFixed(2)}%`);
    mark(part(row, name), "width", `${width.toFixed(2)}%`);
    from += width;
  }
}

function showDeadlines(row, lane) {
  const nearest = part(row, "nearest");
  const { text, tone } = deadlines(lane);
  put(nearest, text);
  mark(nearest, "class", tone);
  put(part(row, "pressure"), lane.why ? visible(lane.why) : pressed(lane));
}

/** What is said of the nearest deadline. Pure. */
export function deadlines(lane) {
  const late = lane.pressure?.find((step) => step.within_s === 0)?.count ?? 0;
  if (late) return { text: `${lane.pressure_exact ? "" : "about "}${count(late)} past`, tone: "late" };
  if (lane.nearest_s === null) return { text: lane.ready ? "not in order yet" : "none waiting", tone: "muted" };
  const soon = lane.will_be_late || lane.late;
  return { text: `nearest in ${span(lane.nearest_s)}`, tone: soon ? "soon" : null };
}

/** How many reach their deadline within which time. Pure. */
export function pressed({ pressure = [], pressure_exact }) {
  const steps = pressure.filter((step, place) => step.within_s > 0 && step.count > (pressure[place - 1]?.count ?? 0));
  if (!steps.length) return "";
  const about = pressure_exact ? "" : "about ";
  return about + steps.map((step) => `${count(step.count)} in ${span(step.within_s)}`).join(", ");
}

function showNext(list, next) {
  const shown = next.slice(0, MOST_NEXT);
  keyed(list, shown.length ? shown : [{ entry: "" }], (one) => one.entry,
    (one) => (one.entry ? el("a", { class: "id" }) : el("span", { class: "muted" }, "–")),
    (node, one) => {
      if (!one.entry) return;
      put(node, visible(one.id ?? one.entry));
      mark(node, "href", link("requests", one.id ?? one.entry));
      mark(node, "title", `waits for ${span(one.waited_s)}`);
    });
}

function toggle(button) {
  const { lane } = button.closest("tr").dataset;
  return act(button, async () => {
    const paused = button.dataset.paused !== "";
    await (paused ? api.resume : api.pause)(page.queue, [lane]);
    say(paused ? `Lane ${lane} goes on.` : `Lane ${lane} is paused. What runs goes on; nothing more is taken.`);
    page.refresh();
  });
}

/** What the notice on top says of lanes that rest, or in brief; empty for none. Pure. */
export function restingText(lanes, brief = false) {
  const resting = lanes.filter((lane) => lane.paused_s !== null);
  if (!resting.length) return "";
  const waiting = resting.reduce((sum, lane) => sum + lane.ready, 0);
  const some = `${resting.map((lane) => lane.lane).join(", ")} ${resting.length === 1 ? "is" : "are"}`;
  const names = resting.length === lanes.length ? "All lanes are" : some;
  if (brief) return `${names} paused.`;
  const since = Math.max(...resting.map((lane) => lane.paused_s));
  return `${names} paused, for ${span(since)}. ${many(waiting, "request")} ${waiting === 1 ? "waits" : "wait"}.`;
}
