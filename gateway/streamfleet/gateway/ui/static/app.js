// The page: one overview a second feeds all parts; the address says which of them is shown.

import * as api from "./api.js";
import { showCharts, wireCharts } from "./charts.js";
import { confirmed, wireConfirm } from "./confirm.js";
import { clearDead, hearOfDead, readDead, wireDead } from "./dead.js";
import { byId, el, keyed, mark, put, show } from "./dom.js";
import { many, visible } from "./format.js";
import { hideGate, showGate, wireGate } from "./gate.js";
import { restingText, showLanes } from "./lanes.js";
import { act, link, page } from "./page.js";
import { Poll } from "./poll.js";
import { fragment, parse } from "./route.js";
import { say, whisper } from "./say.js";
import { find, offerLanes, wireSearch } from "./search.js";
import { openStory, readStory } from "./story.js";
import { showTiles } from "./tiles.js";
import { showWorkers } from "./workers.js";

const TITLES = { fleet: "Fleet", requests: "Requests", dead: "Dead letters" };
const poll = new Poll(look, lost);
let route = { view: "", id: "", queue: "" };
let locked = false;

async function look() {
  const queue = page.queue;
  const overview = await api.overview(queue);
  if (queue !== page.queue) return;
  const first = page.overview === null;
  tellChanges(page.overview, overview);
  page.overview = overview;
  if (first) unlock();
  setLink("live", "live");
  show(byId("trouble"), false);
  showOverview(overview);
  if (first) await openView(false);
  else if (route.view === "requests") await readStory();
}

function showOverview(overview) {
  const option = (name) => el("option", { value: name }, visible(name));
  keyed(byId("queue"), overview.queues, (name) => name, option, () => {});
  if (document.activeElement !== byId("queue")) byId("queue").value = overview.queue;
  const resting = restingText(overview.lanes);
  show(byId("stopped"), resting !== "");
  put(byId("stopped-text"), resting);
  show(byId("pause-all"), overview.lanes.some((lane) => lane.paused_s === null));
  hearOfDead(overview.dead_letters);
  offerLanes(overview.lanes);
  if (route.view !== "fleet") return showCharts(overview);
  showTiles(overview);
  showLanes(overview.lanes);
  showWorkers(overview);
  return showCharts(overview);
}

/** Says aloud what somebody would want to hear: not every figure that moves. */
function tellChanges(before, after) {
  if (!before || before.queue !== after.queue) return;
  const resting = (overview) => restingText(overview.lanes, true);
  const ready = (overview) => overview.workers.filter((worker) => worker.takes_requests).length;
  const dead = after.dead_letters - before.dead_letters;
  const news = [
    ready(before) !== ready(after) ? `${many(ready(after), "worker")} ready.` : "",
    dead > 0 ? `${many(dead, "new dead letter")}.` : "",
    resting(before) !== resting(after) ? resting(after) || "No lane is paused." : "",
  ].filter(Boolean);
  if (news.length) whisper(news.join(" "));
}

function lost(error, again_ms) {
  if (error.wantsKey) {
    lock(error);
    return;
  }
  const was = byId("link").dataset.state;
  setLink("lost", page.overview ? "disconnected" : "no connection");
  const [title, text] = explain(error, Math.round(again_ms / 1000));
  put(byId("trouble-title"), title);
  put(byId("trouble-text"), text);
  show(byId("trouble"), true);
  if (was === "live") whisper("Disconnected. The figures are the last known.");
}

function explain(error, seconds) {
  const kept = page.overview ? " What you see is the last known." : "";
  const again = ` Trying again in ${seconds} s.`;
  const message = visible(error.message);
  if (error.code === "unreachable") return ["No connection.", `${capital(message)}.${kept}${again}`];
  if (error.code === "queue_unavailable") return ["Redis does not answer.", `${message}.${kept}${again}`];
  if (error.code === "queue_not_found") return ["No such queue here.", `${message} Choose another one.`];
  return ["Not possible.", message];
}

const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

function setLink(state, text) {
  const node = byId("link");
  mark(node, "data-state", state);
  put(byId("link-text"), text);
  node.removeAttribute("data-beat");
  if (state === "live") requestAnimationFrame(() => mark(node, "data-beat", true));
}

function lock(error) {
  poll.stop();
  locked = true;
  page.overview = null;
  showView();
  for (const id of ["trouble", "stopped", "queue-label"]) show(byId(id), false);
  clearDead();
  byId("story").replaceChildren();
  byId("found-rows").replaceChildren();
  setLink("waiting", "locked");
  showGate(error);
}

function unlock() {
  locked = false;
  hideGate();
  show(byId("queue-label"), true);
  showView();
}

function showView() {
  for (const node of document.querySelectorAll("[data-view-of]")) {
    show(node, !locked && page.overview !== null && node.dataset.viewOf === route.view);
  }
  show(byId("loading"), !locked && page.overview === null);
}

/** What the address asks for. */
async function openView(moved) {
  showView();
  for (const node of document.querySelectorAll("nav a")) {
    mark(node, "aria-current", node.dataset.view === route.view ? "page" : null);
    mark(node, "href", link(node.dataset.view));
  }
  document.title = `${TITLES[route.view]} · streamfleet`;
  if (locked || !page.overview) return;
  if (moved) byId(`${route.view}-title`).focus();
  showOverview(page.overview);
  if (route.view === "dead") await readDead();
  if (route.view !== "requests") return;
  await Promise.all([byId("found-rows").children.length && moved ? null : find(), openStory(route.id)]);
  if (moved && route.id) byId("story-title")?.focus();
}

async function navigate() {
  const before = route;
  route = parse(location.hash);
  if (route.queue !== page.queue) {
    page.queue = route.queue;
    page.overview = null;
    clearDead();
    byId("found-rows").replaceChildren();
    poll.now();
  }
  await openView(before.view !== "" && (before.view !== route.view || before.id !== route.id)).catch(page.trouble);
}

function wire() {
  page.refresh = () => poll.now();
  page.trouble = (error) => {
    if (error.code === "key_changed") return;
    if (error.wantsKey) lock(error);
    else say(visible(error.message), true);
  };
  wireConfirm();
  wireCharts();
  wireSearch();
  wireDead();
  wireGate(() => poll.start(), () => lock(null));
  byId("trouble-retry").addEventListener("click", () => poll.now());
  byId("queue").addEventListener("change", (event) => {
    location.hash = fragment(route.view, "", event.target.value);
  });
  byId("pause-all").addEventListener("click", (event) => pauseAll(event.currentTarget));
  byId("stopped-resume").addEventListener("click", (event) => act(event.currentTarget, async () => {
    await api.resume(page.queue);
    say("All lanes go on.");
    byId("main").focus();
    page.refresh();
  }));
  addEventListener("hashchange", navigate);
}

async function pauseAll(button) {
  const sure = await confirmed({
    title: "Pause the whole queue?",
    text: "Workers take nothing more from any lane until it is resumed. What runs now goes on; "
      + "new requests are accepted and wait.",
    action: "Pause all lanes",
  });
  if (!sure) return;
  await act(button, async () => {
    await api.pause(page.queue);
    say("All lanes are paused.");
    page.refresh();
  });
}

wire();
navigate();
poll.start();
