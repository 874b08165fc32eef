// Drives the page in real Chromium as a person would: node drive.mjs '{"url", "chromium", "key", …}'.
// Prints a line for each step; ends with 1 and the reason at the first that fails.

import assert from "node:assert/strict";
import { launch, watchedTab } from "./browser.mjs";
import { steps } from "./steps.mjs";

const scene = JSON.parse(process.argv[2]);
const browser = await launch(scene.chromium);
let name = "start";
try {
  const tab = await watchedTab(browser, scene.url);
  for (const [said, step] of Object.entries(steps)) {
    name = said;
    const started = performance.now();
    await step({ ...tab, scene });
    assert.deepEqual(tab.faults, [], "what the page must not do");
    assert.deepEqual(await tab.page.evaluate(() => window.violations), [], "violations of the content security policy");
    console.log(`ok ${name} (${Math.round(performance.now() - started)} ms)`);
  }
} catch (error) {
  console.log(`not ok ${name}\n${error.stack}`);
  process.exitCode = 1;
} finally {
  await browser.close();
}
