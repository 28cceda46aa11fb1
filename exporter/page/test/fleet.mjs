// The page of all hosts, of a simulated fleet: the hosts with faults come first, each leads to its
// own page, and axe finds nothing wrong.

import assert from "node:assert/strict";
import { everywhere } from "./axe.mjs";
import { clean, live, open, patience, test } from "./browser.mjs";

await test(async (browser, url) => {
  const page = await open(browser, `${url}/hosts/node-001/`);
  const lost = page.locator("tbody tr", { hasText: "gpu_lost" });
  for (const began = Date.now(); Date.now() - began < patience; ) { // a simulated GPU is lost after 20 s
    await page.goto(url);
    if ((await lost.count()) > 0) break;
    await page.waitForTimeout(1000);
  }
  assert.match(await lost.textContent(), /cluster-1\/node-046\s+critical\s*rack-05/);
  const states = await page.locator("tbody .mark").allTextContents();
  assert.equal(states[0], "critical", `the first of ${states}`);
  await everywhere(page, "all hosts");
  await page.evaluate(() => (document.querySelector("h1").textContent = "old")); // it is not replaced
  const time = await page.textContent(".driver");
  await page.waitForFunction((was) => document.querySelector(".driver").textContent !== was, time);
  assert.equal(await page.textContent("h1"), "old", "the page is renewed without a reload");
  await page.click("summary");
  const hosts = await page.evaluate(() => document.querySelectorAll("tbody .mark, details a").length); // of one moment
  assert.equal(hosts, 101, "hosts");
  await lost.locator("a").click();
  await live(page);
  assert.equal(await page.textContent("h1"), "node-046");
  clean(page);
});
