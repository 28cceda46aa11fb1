// The page is live, and a fault is on it within two seconds of the agent's
// knowing it: on the card, in the feed, and said to a screen reader.

import assert from "node:assert/strict";
import { changes, clean, field, open, test } from "./browser.mjs";

const within = 2000; // milliseconds
const ill = '[data-gpu="2"][data-health="emergency"]';

// known waits until the agent's health names the fault, and says when it did.
async function known(url) {
  for (;;) {
    const { findings } = await (await fetch(`${url}/api/v1/health`)).json();
    if (findings?.some((f) => f.check === "gpu_lost")) return Date.now();
    await new Promise((again) => setTimeout(again, 20));
  }
}

await test(async (browser, url) => {
  const page = await open(browser, url);
  assert.equal(await page.locator("[data-gpu]").count(), 4);
  assert.equal(
    await page.locator(ill).count(),
    0,
    "the fault was there before the page: the machine is too slow for this test",
  );

  await changes(page, field(0, "power"));
  await changes(page, '[data-field="pulse"]');

  const [told, seen] = await Promise.all([known(url), page.waitForSelector(ill).then(() => Date.now())]);
  console.log(`a fault is on the page ${seen - told} ms after the agent's health has it`);
  assert.ok(seen - told <= within, `that is more than ${within} ms`);
  assert.match(await page.textContent(field(2, "reason")), /fallen off the bus/);
  assert.match(await page.textContent('[data-field="health"]'), /emergency/);
  await page.waitForFunction(() => document.getElementById("say").textContent.includes("GPU 2 is emergency"));
  await page.waitForSelector('#events [data-severity="emergency"]');
  clean(page);
});
