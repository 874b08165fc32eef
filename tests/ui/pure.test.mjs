// What the page's modules make of values: node --test, with STATIC naming their folder.

import assert from "node:assert/strict";
import { test } from "node:test";

const from = (name) => import(new URL(name, process.env.STATIC));
const { bytes, moment, short, span, tokensText, visible } = await from("format.js");
const { History, roundUp, thin } = await from("history.js");
const { fragment, parse } = await from("route.js");
const { stateOf } = await from("workers.js");

test("spans of time", () => {
  const said = {
    0: "0 ms", 0.0004: "0 ms", 0.0123: "12 ms", 0.9999: "1.0 s", 1: "1.0 s", 9.96: "10 s", 59.4: "59 s", 59.6: "1 min",
    60: "1 min", 250: "4 min 10 s", 3599: "59 min 59 s", 3600: "1 h", 90_061: "1 d 1 h", "-2.5": "−2.5 s",
  };
  for (const [seconds, text] of Object.entries(said)) assert.equal(span(Number(seconds)), text, seconds);
  for (const none of [null, undefined, NaN, Infinity, "3"]) assert.equal(span(none), "–");
});

test("a worker's state", () => {
  const worker = { alive: true, takes_requests: true, running: 0, state: "ready", why_not: null, slots: 8, limited: false };
  assert.deepEqual(stateOf(worker), { word: "ready", tone: "good", why: "" });
  const limited = { ...worker, running: 8, limited: true };
  assert.deepEqual(stateOf(limited), { word: "busy", tone: "busy", why: "limited to 8 by the server" });
  const unfit = { ...worker, takes_requests: false, state: "unfit", why_not: "http://vllm answers 503" };
  assert.deepEqual(stateOf(unfit), { word: "unfit", tone: "warn", why: "http://vllm answers 503" });
});

test("figures in little room", () => {
  assert.deepEqual([0, 0.44, 9.94, 9.96, 994, 995, 9_949, 9_950, 999_499, 1_234_567, null].map(short),
    ["0", "0.4", "9.9", "10", "994", "1.0k", "9.9k", "10k", "999k", "1.2M", "–"]);
  assert.deepEqual([0, 1023, 1024, 65_536, 5_000_000].map(bytes), ["0 B", "1023 B", "1.0 KiB", "64 KiB", "4.8 MiB"]);
});

test("moments beyond all calendars are none", () => {
  assert.equal(moment(9e15), "–");
  assert.match(moment(1_790_000_000_000, 1_790_000_000_000), /^\d\d:\d\d:\d\d\.\d{3}$/);
  assert.match(moment(1_790_000_000_000, 0), /^\d{4}-\d\d-\d\d /);
});

test("what turns or hides text is made visible", () => {
  assert.equal(visible("a\u202eb\u0000c\u200bd\ufeffe"), "a\\u202eb\\u0000c\\u200bd\\ufeffe");
  assert.equal(visible("two\nlines\tand ümläuts 日本 <b>"), "two\nlines\tand ümläuts 日本 <b>");
});

test("addresses go both ways, whatever an id is", () => {
  for (const id of ["", "r-42", "high:1-0", "<img/src=x>", "a/b?c#d&e=%41 %", "ü"]) {
    assert.deepEqual(parse(fragment("requests", id, "gpu large&x")), { view: "requests", id, queue: "gpu large&x" });
  }
  const odd = ["", "#", "#/nowhere/x", "#javascript:alert(1)", "#/requests/%E0%A4%A", "#/fleet?queue=%"];
  for (const address of odd) assert.ok(["fleet", "requests"].includes(parse(address).view), address);
  assert.equal(parse("#/nowhere/x").view, "fleet");
});

test("a history has minutes, not hours, and begins anew with the queue", () => {
  const history = new History();
  const add = (second, done) => history.add({ at_ms: second * 1000, accepted: done, finished: done });
  for (let second = 0; second < 1000; second += 1) add(second, second * 5);
  add(999, 1);
  add(500, 1);
  assert.ok(history.samples.length <= 302);
  assert.equal(history.recent((one) => one.finished), 5);
  assert.ok(history.rates((one) => one.finished).every(({ value }) => Math.abs(value - 5) < 1e-9));
  add(1001, 3);
  assert.equal(history.samples.length, 1);
  assert.equal(history.recent((one) => one.finished), null);
});

test("many points become few, and axes end at round numbers", () => {
  const points = Array.from({ length: 1000 }, (_, place) => ({ at_ms: place, value: place % 2 ? null : 4 }));
  const few = thin(points, 100);
  assert.ok(few.length <= 100 && few.every(({ value }) => value === 4));
  assert.deepEqual([0, -1, NaN, 0.3, 1, 7, 23, 26, 180].map(roundUp), [1, 1, 1, 0.5, 1, 10, 25, 50, 200]);
});

test("tokens of a request, and those that came from a cache", () => {
  assert.equal(tokensText({ prompt_tokens: 70, cached_tokens: 64, completion_tokens: 5 }), "70 in (64 of them cached), 5 out");
  assert.equal(tokensText({ prompt_tokens: 70 }), "70 in, 0 out");
});
