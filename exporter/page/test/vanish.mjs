// A GPU is taken off the bus while its card is open, and has the focus. Then the
// browser sleeps for an hour, and knows it when it wakes.

import assert from "node:assert/strict";
import { changes, clean, field, open, test } from "./browser.mjs";

await test(async (browser, url) => {
  const page = await open(browser, url);
  const head = page.locator('[data-gpu="1"][data-health="ok"] button.head');
  await head.click();
  await page.waitForSelector('[data-gpu="1"] .uplot canvas');
  const uuid = await page.getAttribute('[data-gpu="1"]', "data-uuid");
  const card = `[data-uuid="${uuid}"]`;

  await page.waitForSelector(`${card}[data-health="down"]`);
  await page.waitForFunction(
    (at) => document.querySelector(at).textContent.includes("no longer listed by the driver"),
    `${card} [data-field="reason"]`,
  );
  assert.equal(await page.getAttribute(`${card} button.head`, "aria-expanded"), "true", "the card is still open");
  assert.equal(
    await page.evaluate((at) => document.activeElement === document.querySelector(at), `${card} button.head`),
    true,
    "and has the focus",
  );
  await changes(page, field(0, "power"));
  clean(page);

  const sleeper = await browser.newContext();
  const asleep = await sleeper.newPage();
  await asleep.clock.install();
  const histories = [];
  asleep.on("response", (r) => r.url().endsWith("/api/v1/history") && histories.push(r.status()));
  await asleep.goto(url);
  await asleep.waitForSelector('#pulse[data-state="live"]');
  await asleep.clock.fastForward("01:00:00");
  await asleep.waitForResponse((r) => r.url().endsWith("/api/v1/history"));
  await asleep.waitForSelector('#pulse[data-state="live"]');
  assert.deepEqual(histories, [200, 200], "the history was fetched again, once");
});
