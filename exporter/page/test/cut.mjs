// The stream is cut: the page says that it is stale, and since when. It comes
// back by itself, with the history that it missed. What comes back is an agent
// with a GPU less, whose card is open: the card stays, and says so.

import assert from "node:assert/strict";
import { changes, clean, field, live, open, test } from "./browser.mjs";
import { proxy } from "./proxy.mjs";

const gap = 10_000; // milliseconds without the stream, after which the history is fetched again

await test(async (browser, before, after) => {
  const way = await proxy(before);
  try {
    const page = await open(browser, way.url);
    const last = page.locator('[data-gpu="3"] button.head');
    await last.click();
    await page.waitForSelector('[data-gpu="3"] .uplot canvas');
    const histories = () => page.asked.filter((url) => url.endsWith("/api/v1/history")).length;
    assert.equal(histories(), 1);

    const cut = Date.now();
    way.cut();
    await page.waitForSelector("#stale:visible");
    console.log(`stale ${Date.now() - cut} ms after the cut`);
    assert.match(await page.textContent("#stale"), /Stale since \d/);
    assert.equal(await page.getAttribute("#pulse", "data-state"), "stale");
    assert.equal(await page.locator("body[data-stale]").count(), 1);
    clean(page, /^console: Failed to load resource/);

    await page.waitForFunction((until) => Date.now() > until, cut + gap + 1000);
    const back = Date.now();
    const history = page.waitForResponse((r) => r.url().endsWith("/api/v1/history") && r.ok());
    way.lead(after);
    await live(page);
    await history;
    console.log(`live ${Date.now() - back} ms after the agent was back`);
    assert.equal(await page.locator("#stale").isVisible(), false);
    await changes(page, field(0, "power"));

    await page.waitForSelector('[data-gpu="3"][data-health="gone"][data-gone]');
    assert.match(await page.textContent(field(3, "reason")), /gone since/);
    assert.equal(await last.getAttribute("aria-expanded"), "true", "the card is still open");
    assert.equal(await last.evaluate((node) => document.activeElement === node), true, "and has the focus");
    clean(page, /^console: Failed to load resource/);
  } finally {
    way.close();
  }
});
