// Debian's Chromium, and a tab in it that watches for everything a page must not do.

import { createRequire } from "node:module";
import { readFileSync } from "node:fs";
import { chromium } from "playwright-core";

const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

export const launch = (executablePath) =>
  chromium.launch({ executablePath, args: ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"] });

/** A tab of its own; `faults` collects what was wrong in it. `tolerant.now` lets failed answers pass meanwhile. */
export async function watchedTab(browser, origin, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, ...options });
  const faults = [];
  const tolerant = { now: false };
  await context.addInitScript({ content: axe });
  await context.addInitScript(() => {
    window.violations = [];
    document.addEventListener("securitypolicyviolation", (event) => {
      window.violations.push(`${event.violatedDirective}: ${event.blockedURI}`);
    });
  });
  const page = await context.newPage();
  page.setDefaultTimeout(10_000);
  page.on("pageerror", (error) => faults.push(`error in the page: ${error.stack}`));
  page.on("dialog", async (dialog) => {
    faults.push(`a dialog of the browser: ${dialog.message()}`);
    await dialog.dismiss();
  });
  page.on("request", (request) => {
    if (new URL(request.url()).origin !== origin) faults.push(`asked another host: ${request.url()}`);
  });
  page.on("console", (message) => {
    const failed = message.text().startsWith("Failed to load resource");
    const matters = message.type() === "error" || message.type() === "warning";
    if (matters && !(failed && tolerant.now)) faults.push(`console: ${message.text()}, ${message.location().url}`);
  });
  // The console does not say why.
  page.on("response", async (response) => {
    if (response.status() < 500 || tolerant.now) return;
    faults.push(`answered ${response.status()}: ${await response.text().catch(String)}`);
  });
  return { context, page, faults, tolerant };
}

/** What axe finds that is serious or critical, as lines; by some of its rules, or all. */
export async function seriousFindings(page, rules = null) {
  const options = { resultTypes: ["violations"], ...(rules && { runOnly: { type: "rule", values: rules } }) };
  const violations = await page.evaluate(async (how) => (await globalThis.axe.run(document, how)).violations, options);
  const serious = violations.filter((found) => ["serious", "critical"].includes(found.impact));
  return serious.map(({ impact, id, nodes }) => {
    const places = nodes.slice(0, 4).map((node) => node.target.join(" "));
    return `${impact} ${id}: ${places.join(", ")}`;
  });
}
