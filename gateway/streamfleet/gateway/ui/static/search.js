// Requests to search: what is asked for, and the list of what was found.

import * as api from "./api.js";
import { byId, el, keyed, mark, part, put, show } from "./dom.js";
import { many, span, visible } from "./format.js";
import { act, link, page } from "./page.js";

const STATES = ["waiting", "running", "succeeded", "failed", "expired", "cancelled", "dead"];
export const TONES = {
  running: "busy", handed_out: "busy", succeeded: "good", failed: "bad", dead: "bad", expired: "warn", nowhere: "bad",
};

let turn = 0;

/** Fields and buttons; once. */
export function wireSearch() {
  fillSelect(byId("find-lane"), "any", []);
  fillSelect(byId("find-state"), "any", STATES);
  const go = byId("find-go");
  byId("find-form").addEventListener("submit", (event) => {
    event.preventDefault();
    act(go, find);
  });
  for (const id of ["find-lane", "find-state"]) byId(id).addEventListener("change", () => act(go, find));
}

/** Offers the lanes that the queue has. */
export function offerLanes(lanes) {
  const select = byId("find-lane");
  const found = lanes.map((lane) => lane.lane);
  if (select.length !== found.length + 1) fillSelect(select, "any", found);
}

function fillSelect(select, none, values) {
  select.replaceChildren(el("option", { value: "" }, none), ...values.map((value) => el("option", { value }, value)));
}

/** Asks with what the fields say; an answer that another search overtook is dropped. */
export async function find() {
  const mine = ++turn;
  put(byId("found-note"), "Looking …");
  const wanted = { query: byId("find").value.trim(), lane: byId("find-lane").value, state: byId("find-state").value };
  try {
    const answer = await lookFor(wanted);
    if (mine === turn) showFound(answer, wanted);
  } catch (error) {
    if (mine === turn) put(byId("found-note"), `Not searched: ${visible(error.message)}`);
    throw error;
  }
}

/** By id first; where no id has that in it, by tenant. */
async function lookFor(wanted) {
  const found = await api.search(page.queue, { ...wanted, limit: 50 });
  if (found.data.length || !wanted.query) return found;
  const { query, ...rest } = wanted;
  const others = await api.search(page.queue, { ...rest, tenant: query, limit: 50 });
  return others.data.length ? others : found;
}

function showFound(answer, wanted) {
  const { data, more, note, now_ms } = answer;
  const nothing = Object.values(wanted).some(Boolean)
    ? "Nothing found. A request that ended well is forgotten when its result expires." : "Nothing in this queue yet.";
  const head = data.length ? `${more ? "The first " : ""}${many(data.length, "request")}` : nothing;
  put(byId("found-note"), [head, visible(note ?? "")].filter(Boolean).join(data.length ? ": " : " "));
  show(byId("found"), data.length > 0);
  keyed(byId("found-rows"), data, (one) => one.entry ?? one.id, makeRow, (row, one) => updateRow(row, one, now_ms));
}

function makeRow(one) {
  return el("tr", { "data-id": one.id },
    el("th", { scope: "row" }, el("a", { class: "id", href: link("requests", one.id) }, visible(one.id))),
    el("td", { "data-label": "Lane", "data-part": "lane" }),
    el("td", { "data-label": "State" }, el("span", { class: "state", "data-part": "state" })),
    el("td", { "data-label": "Tenant", "data-part": "tenant" }),
    el("td", { class: "number", "data-label": "Age", "data-part": "age" }));
}

function updateRow(row, one, now_ms) {
  put(part(row, "lane"), one.lane ?? "–");
  put(part(row, "state"), one.state);
  mark(part(row, "state"), "data-tone", TONES[one.state]);
  put(part(row, "tenant"), one.tenant === null ? "–" : visible(one.tenant));
  put(part(row, "age"), one.enqueued_ms === null ? "–" : span(Math.max(0, (now_ms - one.enqueued_ms) / 1000)));
}

/** Marks the row whose story is open. */
export function markOpen(id) {
  for (const row of byId("found-rows").children) mark(row, "aria-current", id && row.dataset.id === id ? "true" : null);
}

