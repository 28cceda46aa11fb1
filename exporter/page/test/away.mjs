// The driver is unloaded and loaded again: the models stay, and the feed has one
// line for it. What cannot be read is said until it can. Then hosts without a
// driver and without GPUs: the page says what to do.

import assert from "node:assert/strict";
import { everywhere } from "./axe.mjs";
import { clean, live, open, seen, test } from "./browser.mjs";
import { feed } from "./feed.mjs";

await test(async (browser, url, without, none) => {
  const page = await open(browser, url, { colorScheme: "light" });
  await page.waitForSelector('[data-note="driver"]');
  const late = await open(browser, url); // while the driver is away
  assert.deepEqual(await seen(late, "[data-gpu] .name", (n) => n.textContent), ["H100 80GB HBM3", "H100 80GB HBM3"]);
  clean(late);
  await late.context().close();

  for (const [host, is, title] of [[without, "driver", /No NVIDIA driver/], [none, "gpus", /lists no GPU/]]) {
    const guide = await open(browser, host, { colorScheme: "light" });
    await guide.waitForSelector(`#guide[data-case="${is}"]`);
    assert.match(await guide.textContent("#guide-title"), title);
    assert.match(await guide.textContent("#guide ol"), /lspci -d 10de:.*gpusteward --demo/s);
    assert.doesNotMatch(await guide.textContent("main"), /0 of 0|all are read|✓ ok/);
    assert.equal(await guide.textContent('[data-field="gpus"]'), "none");
    if (is === "driver") assert.match(await guide.textContent('[data-field="guide-why"]'), /driver_not_loaded/);
    await everywhere(guide, `a host without ${is}`);
    clean(guide);
    await guide.context().close();
  }

  const fold = "[data-fold]";
  await page.waitForFunction((at) => /had no data from \d\d:\d\d:\d\d to \d\d:\d\d:\d\d/
    .test(document.querySelector(at)?.textContent), fold);
  const { events } = await (await fetch(`${url}/api/v1/events?limit=400`)).json();
  const gaps = events.filter((e) => e.from === "unknown" || e.to === "unknown").length;
  assert.ok(gaps > 1, `only ${gaps} events are about data`);
  await page.waitForFunction(([at, n]) => Number(document.querySelector(at)?.dataset.fold) >= n, [fold, gaps]);
  assert.equal(await page.locator(fold).count(), 1, "one line for the driver");
  assert.ok((await page.locator("[data-event]").count()) <= events.length - gaps + 1);
  assert.equal(await page.getAttribute(fold, "data-severity"), "info");
  await page.click(`${fold} summary`);
  await page.waitForFunction((at) => {
    const node = document.querySelector(at);
    return node.querySelectorAll("li").length === Number(node.dataset.fold);
  }, fold);
  await everywhere(page, "a fold of the feed");
  clean(page);

  // What cannot be read is said.
  const agent = await feed(url, () => {});
  try {
    agent.refuse = /api\/v1\/(history|events\?limit)/;
    const poor = await open(browser, agent.url);
    for (const what of ["history", "list of events"])
      await poor.waitForFunction((w) => /cannot be read: 503 out of order\. Trying again\./
        .test(document.querySelector(`[data-failure="${w}"]`)?.textContent), what);
    agent.refuse = null;
    await poor.waitForFunction(() => document.getElementById("failures").children.length === 0);
    clean(poor, /^console: Failed to load resource/);
    await live(poor);
  } finally {
    agent.close();
  }
});
