// Takes the pictures of docs/: node shoot.mjs '{"url", "chromium", "key", "folder", …}'.

import { launch, watchedTab } from "./browser.mjs";

const scene = JSON.parse(process.argv[2]);
const PICTURES = [
  ["ui-fleet", "#/fleet"],
  ["ui-request", `#/requests/${scene.answered}`],
  ["ui-dead", "#/dead"],
];

const browser = await launch(scene.chromium);
const { page } = await watchedTab(browser, scene.url);
await page.addInitScript((key) => sessionStorage.setItem("streamfleet-operator-key", key), scene.key);
await page.goto(`${scene.url}/ui`);
await page.locator("#lane-rows tr").first().waitFor();
// The plots need some minutes of their own before they show anything.
await page.waitForTimeout(scene.watch_s * 1000);
await page.emulateMedia({ colorScheme: "light", reducedMotion: "reduce" });
await page.setViewportSize({ width: 1280, height: 900 });
for (const [name, fragment] of PICTURES) {
  await page.evaluate((wanted) => { location.hash = wanted; scrollTo(0, 0); }, fragment);
  await page.waitForTimeout(2_500);
  await page.screenshot({ path: `${scene.folder}/${name}.png` });
}
await browser.close();
