// Dead letters: to read, to requeue, to purge. The list stands still under the reader; it says when it is old.

import * as api from "./api.js";
import { confirmed } from "./confirm.js";
import { byId, el, keyed, mark, part, put, show } from "./dom.js";
import { bytes, count, many, moment, visible } from "./format.js";
import { act, link, page } from "./page.js";
import { say } from "./say.js";
import { TONES } from "./search.js";

const MOST_AT_ONCE = 100;

let letters = [];
let next = null;
let total = 0;
const chosen = new Set();

/** Buttons; once. */
export function wireDead() {
  byId("dead-all").addEventListener("change", (event) => {
    for (const letter of letters) event.target.checked ? chosen.add(letter.letter_id) : chosen.delete(letter.letter_id);
    draw();
  });
  byId("dead-more").addEventListener("click", (event) => act(event.currentTarget, () => read(next)));
  byId("dead-refresh").addEventListener("click", (event) => act(event.currentTarget, () => readDead()));
  byId("dead-requeue").addEventListener("click", (event) => requeueChosen(event.currentTarget));
  byId("dead-purge").addEventListener("click", (event) => purgeChosen(event.currentTarget));
}

/** Reads the newest page. */
export const readDead = () => read(null);

async function read(before) {
  const queue = page.queue;
  if (!letters.length) put(byId("dead-note"), "Reading …");
  const answer = await api.deadLetters(queue, before);
  if (queue !== page.queue) return;
  letters = before ? [...letters, ...answer.data] : answer.data;
  ({ next, total } = answer);
  const there = new Set(letters.map((letter) => letter.letter_id));
  for (const id of chosen) if (!there.has(id)) chosen.delete(id);
  draw();
}

/** Forgets what was read: of another queue. */
export function clearDead() {
  letters = [];
  chosen.clear();
  next = null;
  total = 0;
  draw();
}

/** An overview's count: says where the list is no longer the newest. */
export function hearOfDead(present) {
  put(byId("dead-badge"), present > 999 ? "999+" : count(present));
  show(byId("dead-badge"), present > 0);
  show(byId("dead-refresh"), present !== total);
}

function draw() {
  show(byId("dead"), letters.length > 0);
  show(byId("dead-empty"), letters.length === 0);
  show(byId("dead-more"), next !== null);
  keyed(byId("dead-rows"), letters, (letter) => letter.letter_id, makeRow, (row, letter) => {
    part(row, "choose").checked = chosen.has(letter.letter_id);
    mark(row, "aria-current", chosen.has(letter.letter_id) ? "true" : null);
  });
  const all = byId("dead-all");
  all.checked = letters.length > 0 && chosen.size === letters.length;
  all.indeterminate = chosen.size > 0 && chosen.size < letters.length;
  const picked = chosen.size ? ` ${count(chosen.size)} chosen.` : "";
  put(byId("dead-note"), letters.length ? `${count(letters.length)} of ${count(total)}, newest first.${picked}` : "");
  for (const id of ["dead-requeue", "dead-purge"]) byId(id).disabled = chosen.size === 0;
}

function makeRow(letter) {
  const choose = el("input", {
    type: "checkbox", "data-part": "choose", "aria-label": `Choose ${visible(letter.request_id)}`,
    onchange: () => {
      choose.checked ? chosen.add(letter.letter_id) : chosen.delete(letter.letter_id);
      draw();
    },
  });
  const { request_id: id, workers } = letter;
  const under = (text, more = "") => el("span", { class: `under ${more}` }, visible(text));
  return el("tr", {},
    el("td", {}, choose),
    el("th", { scope: "row" }, el("a", { class: "id", href: link("requests", id) }, visible(id)),
      letter.tenant ? under(letter.tenant) : null),
    el("td", { class: "whole", "data-label": "Reason" },
      el("span", { class: "state", "data-tone": TONES[letter.status] ?? "bad" }, visible(letter.status)), " ",
      visible(letter.reason), letter.can_requeue ? null : under(`cannot be requeued: ${letter.why_not}`),
      bodyOf(letter)),
    el("td", { "data-label": "Lane" }, visible(letter.lane ?? "–")),
    el("td", { class: "number", "data-label": "Tries" }, count(letter.attempts),
      workers.length ? under(`lost with ${workers.join(", ")}`, "id") : null),
    el("td", { class: "number", "data-label": "When" }, moment(letter.written_ms)));
}

function bodyOf({ body }) {
  if (!body) return null;
  const note = `Body, ${bytes(body.bytes)}${body.json ? "" : ", no JSON"}${body.cut ? ", cut" : ""}`;
  return el("details", {}, el("summary", {}, note), el("pre", { tabindex: "0" }, visible(body.text)));
}

async function inPieces(ids, work) {
  const answers = [];
  for (let from = 0; from < ids.length; from += MOST_AT_ONCE) {
    answers.push(await work(ids.slice(from, from + MOST_AT_ONCE)));
  }
  return answers;
}

function requeueChosen(button) {
  return act(button, async () => {
    const answers = await inPieces([...chosen], (ids) => api.requeue(page.queue, ids));
    const rows = answers.flatMap((answer) => answer.data);
    const failed = rows.filter((row) => !row.ok);
    const done = rows.length - failed.length;
    const late = rows.filter((row) => row.ok && row.dropped.length).length;
    const without = late ? ` ${count(late)} without the time limit that had passed.` : "";
    const not = failed.length ? ` ${count(failed.length)} not: ${visible(failed[0].error)}` : "";
    await after(`${many(done, "request")} requeued.${without}${not}`, failed.length > 0);
  });
}

async function purgeChosen(button) {
  const ids = [...chosen];
  const sure = await confirmed({
    title: `Purge ${many(ids.length, "dead letter")}?`,
    text: "They are deleted for good, with their bodies. Results that tell how the requests ended stay until they "
      + "expire.",
    action: `Purge ${count(ids.length)}`,
  });
  if (!sure) return;
  await act(button, async () => {
    const answers = await inPieces(ids, (some) => api.purge(page.queue, some));
    await after(`${many(answers.reduce((sum, answer) => sum + answer.deleted, 0), "dead letter")} purged.`, false);
  });
}

async function after(text, bad) {
  chosen.clear();
  say(text, bad);
  page.refresh();
  await readDead();
  byId("dead-title").focus();
}
