// One request's whole story: where it is, what happened when, what it asked, what came of it.

import * as api from "./api.js";
import { confirmed } from "./confirm.js";
import { byId, el, keyed, mark, part, put, show } from "./dom.js";
import { bytes, count, moment, span, tokensText, visible } from "./format.js";
import { act, link, page } from "./page.js";
import { say } from "./say.js";
import { markOpen, TONES } from "./search.js";

const ENDED = new Set(["succeeded", "failed", "expired", "cancelled", "dead"]);
const EVENT_TONES = { lost: "bad", dead_letter: "bad" };

let open = "";
let settled = false;

/** Opens the story of a request, or closes the one that is open (`id` empty). */
export async function openStory(id) {
  const box = byId("story");
  if (id !== open) {
    open = id;
    settled = false;
    box.replaceChildren(...(id ? frame(id) : []));
  }
  show(box, Boolean(id));
  byId("story").parentElement.classList.toggle("two", Boolean(id));
  markOpen(id);
  if (id) await readStory();
}

/** Reads it again, unless it has ended: that does not change any more. */
export async function readStory() {
  const id = open;
  if (!id || settled) return;
  try {
    const story = await api.request(page.queue, id);
    if (id !== open) return;
    settled = ENDED.has(story.state) && !story.can_cancel && story.result !== null;
    showStory(story);
  } catch (error) {
    if (id !== open) return;
    if (error.code !== "request_not_found") throw error;
    settled = true;
    put(part(byId("story"), "text"), visible(error.message));
  }
}

/** So that it is read again although it had ended. */
export function unsettle() {
  settled = false;
}

function frame(id) {
  const cancel = el("button", {
    type: "button", class: "small danger", "data-part": "cancel", hidden: true, onclick: () => cancelIt(cancel),
  }, "Cancel …");
  return [
    el("div", { class: "head" },
      el("h2", { id: "story-title", tabindex: "-1", class: "id" }, visible(id)),
      el("div", { class: "buttons" }, cancel, el("a", { href: link("requests"), class: "close" }, "Close"))),
    el("p", {}, el("span", { class: "state", "data-part": "state" }), " ",
      el("span", { class: "muted", "data-part": "text" }, "Reading …")),
    el("dl", { class: "facts", "data-part": "facts" }),
    el("h3", {}, "What happened"),
    el("ol", { class: "events", "data-part": "events" }),
    ...["error", "output", "body", "result"].map(textPart),
  ];
}

const HEADS = { error: "Error", output: "Answer", body: "Body", result: "Result" };

function textPart(name) {
  const box = el("div", { "data-part": `${name}-box` },
    el("h3", { id: `story-${name}` }, HEADS[name], " ", el("span", { class: "unit", "data-part": `${name}-note` })),
    el("pre", { "data-part": name, tabindex: "0", role: "region", "aria-labelledby": `story-${name}` }));
  box.hidden = true;
  return box;
}

function showStory(story) {
  const box = byId("story");
  put(part(box, "state"), story.state);
  mark(part(box, "state"), "data-tone", TONES[story.state]);
  put(part(box, "text"), visible(besides(story)));
  show(part(box, "cancel"), story.can_cancel);
  showFacts(part(box, "facts"), factsOf(story));
  showEvents(part(box, "events"), story.events, story.now_ms);
  showText(box, "error", story.error ? JSON.stringify(story.error, null, 2) : null, "");
  showText(box, "output", story.output || null, "");
  for (const name of ["body", "result"]) showText(box, name, story[name]?.text ?? null, sizeOf(story[name]));
}

/** What its text says besides its state. Pure. */
export function besides({ state, text }) {
  const known = [`ended: ${state}`, state].find((start) => text.startsWith(start));
  return known ? text.slice(known.length).replace(/^[:;, ]+/, "") : text;
}

const sizeOf = (said) => (said ? `${bytes(said.bytes)}${said.json ? "" : ", no JSON"}${said.cut ? ", cut" : ""}` : "");

function showText(box, name, text, note) {
  show(part(box, `${name}-box`), text !== null);
  put(part(box, name), text === null ? "" : visible(text));
  put(part(box, `${name}-note`), note);
}

/** Names and values worth a line. Pure. */
export function factsOf(story) {
  const { timings_ms: timings, usage } = story;
  const of = (name, value) => (value === null || value === undefined || value === "" ? null : [name, String(value)]);
  return [
    of("Lane", story.lane), of("Entry", story.entry), of("Tenant", story.tenant), of("Session", story.session),
    of("Enqueued", story.enqueued_ms === null ? null : moment(story.enqueued_ms)),
    of("Deadline", deadlineText(story)),
    of("Taken in about", story.expected_ms == null ? null : span(story.expected_ms / 1000)),
    of("Before it", story.requests_before === null ? null : `${count(story.requests_before)} in its lane`),
    of("Worker", story.worker && `${story.worker}, attempt ${story.attempt}`),
    of("Took", timings && tookText(timings)),
    of("Tokens", usage && tokensText(usage)),
    of("Result kept", story.kept_ms === null ? null : `for ${span(story.kept_ms / 1000)}`),
    of("Response", story.response && `${story.response.id}, ${story.response.status}`),
    of("Goes on from", story.response?.previous),
    of("Trace", story.traceparent), of("Meta", story.meta),
    of("Warnings", story.warnings?.join("; ")),
  ].filter(Boolean);
}

function tookText({ total_ms, queued_ms, first_token_ms }) {
  const spans = [["in all", total_ms], ["queued", queued_ms], ["to the first token", first_token_ms]];
  return spans.filter(([, ms]) => typeof ms === "number").map(([name, ms]) => `${span(ms / 1000)} ${name}`).join(", ");
}

function deadlineText({ deadline_ms, left_ms, state }) {
  if (deadline_ms === null) return null;
  if (ENDED.has(state) || left_ms === null) return moment(deadline_ms);
  return `${moment(deadline_ms)}, ${left_ms < 0 ? "passed" : `${span(left_ms / 1000)} left`}`;
}

function showFacts(list, facts) {
  const flat = facts.flatMap(([name, value]) => [{ name, tag: "dt", text: name }, { name, tag: "dd", text: value }]);
  keyed(list, flat, (one) => one.tag + one.name, (one) => el(one.tag), (node, one) => put(node, visible(one.text)));
}

function showEvents(list, events, now_ms) {
  keyed(list, events, (event) => `${event.kind} ${event.text}`,
    () => el("li", {}, el("span", { "data-part": "text" }), el("time", { "data-part": "at" })),
    (node, event) => {
      put(part(node, "text"), visible(event.text));
      put(part(node, "at"), event.at_ms === null ? "" : `${moment(event.at_ms)}${ago(event.at_ms, now_ms)}`);
      mark(node, "data-tone", event.kind === "ended" ? endTone(event.text) : EVENT_TONES[event.kind]);
    });
}

const endTone = (text) => (text.includes("succeeded") ? "good" : "bad");

function ago(at_ms, now_ms) {
  const seconds = (now_ms - at_ms) / 1000;
  return seconds < 0 ? `, in ${span(-seconds)}` : `, ${span(seconds)} ago`;
}

async function cancelIt(button) {
  const id = open;
  const sure = await confirmed({
    title: "Cancel this request?",
    text: `${visible(id)} ends as cancelled. Nobody gets an answer to it.`,
    action: "Cancel it",
  });
  if (!sure) return;
  await act(button, async () => {
    const { cancelled, state } = await api.cancel(page.queue, id);
    say(cancelled ? "Cancelled." : `Not cancelled: it had ended before (${state}).`);
    unsettle();
    await readStory();
    byId("story-title")?.focus();
  });
}
