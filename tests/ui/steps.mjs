// The steps of the drive, in their order: each goes on where the one before it ended.

import assert from "node:assert/strict";
import { seriousFindings } from "./browser.mjs";

// The same page in other colours: there only these can differ.
const SCHEMES = [
  ["light", { width: 1280, height: 900 }, null],
  ["dark", { width: 1280, height: 900 }, ["color-contrast"]],
  ["light", { width: 360, height: 740 }, null],
];

/** Waits until `ask` answers something true, and gives that. */
async function eventually(what, ask, within_ms = 10_000) {
  const give_up = performance.now() + within_ms;
  for (;;) {
    const answer = await ask();
    if (answer) return answer;
    assert.ok(performance.now() < give_up, `not in time: ${what}`);
    await new Promise((done) => setTimeout(done, 50));
  }
}

const tile = (page, name) => {
  const label = page.getByText(name, { exact: true });
  return page.locator("#tiles > div", { has: label }).locator("dd").first();
};
const gone = (page, id) => eventually(`the letter of ${id} is gone`, async () => {
  const rows = await page.locator("#dead-rows").textContent();
  return !rows.includes(id);
});
const focused = (page) => page.evaluate(() => {
  const { activeElement: node } = document;
  const { outlineStyle } = getComputedStyle(node);
  const text = (node.ariaLabel ?? node.textContent).trim();
  return { tag: node.tagName, id: node.id, text, seen: outlineStyle !== "none" };
});

async function go(page, fragment) {
  await page.evaluate((wanted) => { location.hash = wanted; }, fragment);
}

async function giveKey(page, key) {
  await page.locator("#gate-key").fill(key);
  await page.keyboard.press("Enter");
}

async function choose(page, id) {
  const row = page.locator("#dead-rows tr", { has: page.getByRole("link", { name: id, exact: true }) });
  await row.first().locator("input").check();
}

export const steps = {
  "asks for a key, and says why one does not open": async ({ page, scene, tolerant }) => {
    tolerant.now = true;
    await page.goto(`${scene.url}/ui`);
    await page.locator("#gate").waitFor();
    assert.equal((await focused(page)).id, "gate-key");
    assert.deepEqual(await seriousFindings(page), []);
    await giveKey(page, "sf-no-such-key");
    await eventually("a wrong key is refused", () => page.locator("#gate-error").textContent());
    await giveKey(page, scene.plain_key);
    await page.getByText("not an operator's").waitFor();
    await giveKey(page, scene.key);
    await page.locator("#lane-rows tr").first().waitFor();
    assert.ok(await page.locator("#gate").isHidden());
    assert.ok(!page.url().includes(scene.key), "a key in the address");
    tolerant.now = false;
  },

  "shows lanes, workers and what runs next": async ({ page, scene }) => {
    const lanes = await page.locator("#lane-rows th").allTextContents();
    assert.deepEqual(lanes.map((text) => text.split(" ")[0]), ["critical", "high", "normal", "low"]);
    const offered = await page.locator("#find-lane option").allTextContents();
    assert.deepEqual(offered, ["any", "critical", "high", "normal", "low"]);
    await eventually("both workers are there", async () => (await page.locator("#worker-rows tr").count()) === 2);
    const worker = await page.locator("#worker-rows tr").first().textContent();
    for (const word of [scene.worker, scene.version, "simulated"]) assert.ok(worker.includes(word), word);
    const low = page.locator('#lane-rows tr[data-lane="low"]');
    await eventually("what runs next", async () => (await low.locator(".next a").count()) >= 3);
    await page.getByText("live", { exact: true }).waitFor();
  },

  "follows the work while it runs, in place": async ({ page }) => {
    const value = tile(page, "Ended");
    const before = await value.textContent();
    const heading = await page.locator("#lane-rows tr").last().elementHandle();
    await page.getByRole("button", { name: "Pause lane high" }).focus();
    await eventually("more has ended", async () => (await value.textContent()) !== before);
    await eventually("a line is drawn", () => page.locator("#plot-throughput path.finished").getAttribute("d"));
    await eventually("bars are drawn", () => page.locator("#plot-outcomes rect.succeeded[height]").count());
    await eventually("time to answer", async () => /\d/.test(await tile(page, "Time to answer").textContent()));
    assert.equal((await focused(page)).text, "Pause lane high", "the focus moved");
    assert.ok(await heading.evaluate((row) => row.isConnected), "a row was made anew");
    const said = await page.locator("#plot-outcomes .drawing").getAttribute("aria-label");
    assert.match(said, /\d+ succeeded/);
    await page.locator("#plot-throughput summary").click();
    await eventually("the plot as a table", () => page.locator("#plot-throughput tbody tr").count());
  },

  "pauses and resumes a lane, and the queue": async ({ page }) => {
    await page.getByRole("button", { name: "Pause lane low" }).click();
    await page.getByRole("button", { name: "Resume lane low" }).waitFor();
    assert.match(await page.locator("#stopped").textContent(), /low is paused/);
    await page.getByRole("button", { name: "Resume lane low" }).click();
    await page.locator("#stopped").waitFor({ state: "hidden" });
    await page.getByRole("button", { name: "Pause queue" }).click();
    await page.getByRole("button", { name: "Keep" }).click();
    for (let looks = 0; looks < 2; looks += 1) await page.waitForResponse(/overview/);
    assert.ok(await page.locator("#stopped").isHidden(), "paused without consent");
    await page.getByRole("button", { name: "Pause queue" }).click();
    await page.getByRole("button", { name: "Pause all lanes" }).click();
    await page.locator("#stopped", { hasText: "All lanes are paused, for" }).waitFor();
    await page.getByRole("button", { name: "Resume all" }).click();
    await page.locator("#stopped").waitFor({ state: "hidden" });
  },

  "finds a request, and tells its story": async ({ page, scene }) => {
    await page.getByRole("link", { name: "Requests", exact: true }).click();
    await page.locator("#found-rows tr").first().waitFor();
    await page.locator("#find").fill(scene.answered);
    await page.keyboard.press("Enter");
    const row = page.locator("#found-rows").getByRole("link", { name: scene.answered, exact: true });
    await row.click();
    await page.locator("#story .events li").nth(1).waitFor();
    const story = await page.locator("#story").innerText();
    const words = ["succeeded", "Enqueued", "Worker", "What happened", "Result"];
    for (const word of words) assert.ok(story.includes(word), word);
    assert.equal((await focused(page)).id, "story-title");
    await page.locator("#find").fill("no-such-request-anywhere");
    await page.keyboard.press("Enter");
    await page.getByText("Nothing found.").waitFor();
    await page.locator("#find").fill(scene.tenant);
    await page.keyboard.press("Enter");
    await page.locator("#found-rows").getByText(scene.tenant).first().waitFor();
  },

  "shows hostile contents as text": async ({ page, scene }) => {
    await go(page, "#/dead");
    await page.locator("#dead-rows tr").first().waitFor();
    const marked = page.locator("#dead-rows tr", { hasText: scene.hostile_mark });
    assert.ok((await marked.count()) >= scene.hostile, `hostile letters: ${await marked.count()} of ${scene.hostile}`);
    for (const summary of await page.locator("#dead-rows summary").all()) await summary.click();
    await page.getByText(scene.hostile_text).first().waitFor();
    await go(page, `#/requests/${encodeURIComponent(scene.hostile_id)}`);
    await page.locator("#story .events li").first().waitFor();
    await page.locator("#story pre", { hasText: scene.hostile_text }).first().waitFor();
    assert.equal(await page.locator("#story-title").textContent(), scene.hostile_id);
    const strange = await page.evaluate(() => ({
      scripts: document.scripts.length, pictures: document.images.length, ran: window.hostile ?? null,
      others: document.querySelectorAll("iframe, object, base, [onerror], [style], a[href^='javascript']").length,
    }));
    assert.deepEqual(strange, { scripts: 1, pictures: 1, ran: null, others: 0 });
  },

  "requeues a dead letter, which then succeeds": async ({ page, scene }) => {
    await go(page, "#/dead");
    await choose(page, scene.expired);
    await page.getByRole("button", { name: "Requeue" }).click();
    await page.locator("#said", { hasText: "1 request requeued" }).waitFor();
    await gone(page, scene.expired);
    await go(page, `#/requests/${scene.expired}`);
    await page.locator('#story .state[data-tone="good"]', { hasText: "succeeded" }).waitFor({ timeout: 15_000 });
  },

  "purges dead letters, after a question": async ({ page, scene }) => {
    await go(page, "#/dead");
    await choose(page, scene.purged);
    const purge = page.getByRole("button", { name: "Purge …" });
    await purge.focus();
    await page.keyboard.press("Enter");
    await page.getByRole("heading", { name: "Purge 1 dead letter?" }).waitFor();
    assert.equal((await focused(page)).text, "Keep", "the harmless answer has the focus");
    await page.keyboard.press("Escape");
    assert.equal((await focused(page)).id, "dead-purge", "the focus goes back");
    assert.ok((await page.locator("#dead-rows").textContent()).includes(scene.purged), "purged without consent");
    await purge.click();
    await page.getByRole("button", { name: "Purge 1", exact: true }).click();
    await page.locator("#said", { hasText: "1 dead letter purged" }).waitFor();
    await gone(page, scene.purged);
  },

  "works with the keyboard alone": async ({ page, scene }) => {
    await page.goto(`${scene.url}/ui#/fleet`);
    await page.reload();
    await page.locator("#lane-rows tr").first().waitFor();
    const walked = [];
    for (let presses = 0; presses < 60; presses += 1) {
      await page.keyboard.press("Tab");
      const here = await focused(page);
      assert.ok(here.tag === "BODY" || here.seen, `nobody sees the focus on ${here.tag} ${here.id} ${here.text}`);
      walked.push(here.text);
      if (here.text === "Pause lane high") break;
    }
    assert.equal(walked[0], "To the content");
    const stops = ["Fleet", "Requests", "Pause queue", "Pause lane critical"];
    for (const text of stops) assert.ok(walked.includes(text), text);
    assert.equal(walked.at(-1), "Pause lane high");
    await page.keyboard.press("Space");
    await page.getByRole("button", { name: "Resume lane high" }).waitFor();
    await page.keyboard.press("Space");
    await page.getByRole("button", { name: "Pause lane high" }).waitFor();
    assert.equal((await focused(page)).text, "Pause lane high");
  },

  "says when it is cut off, and comes back": async ({ page, context, tolerant }) => {
    tolerant.now = true;
    await context.setOffline(true);
    await page.getByText("No connection.").waitFor();
    assert.ok(await page.locator("#lane-rows tr").first().isVisible(), "the last known figures are gone");
    await context.setOffline(false);
    await page.getByRole("button", { name: "Try now" }).click();
    await page.getByText("live", { exact: true }).waitFor();
    await page.locator("#trouble").waitFor({ state: "hidden" });
    tolerant.now = false;
  },

  "has no serious finding of axe, in any scheme or size": async ({ page, scene }) => {
    for (const [colorScheme, viewport, rules] of SCHEMES) {
      await page.emulateMedia({ colorScheme });
      await page.setViewportSize(viewport);
      for (const fragment of ["#/fleet", `#/requests/${scene.answered}`, "#/dead"]) {
        await go(page, fragment);
        await page.locator("main tbody tr:visible").first().waitFor();
        const where = `${fragment}, ${colorScheme}, ${viewport.width} wide`;
        assert.deepEqual(await seriousFindings(page, rules), [], where);
        const wide = await page.evaluate(() => document.documentElement.scrollWidth);
        assert.ok(wide <= viewport.width, `${wide} pixels wide: ${where}`);
      }
    }
  },

  "forgets the key": async ({ page, tolerant }) => {
    tolerant.now = true;
    let answer = () => {};
    const asked = new Promise((done) => {
      page.route("**/ui/api/overview*", async (route) => {
        const held = new Promise((go) => { answer = go; });
        const response = await route.fetch();
        done();
        await held;
        await route.fulfill({ response });
      }, { times: 1 });
    });
    await asked;
    await page.getByRole("button", { name: "Forget key" }).click();
    await page.locator("#gate").waitFor();
    const came = page.waitForEvent("requestfinished");
    answer();
    await came;
    await page.evaluate(() => new Promise((done) => { setTimeout(done, 100); }));
    assert.ok(await page.locator("#gate").isVisible(), "an answer that came late opened the page again");
    assert.equal(await page.locator("#lane-rows").isVisible(), false);
    await page.reload();
    await page.locator("#gate").waitFor();
  },
};
