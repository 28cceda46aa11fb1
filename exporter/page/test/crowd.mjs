// Two hundred workloads, some of whose names are markup: all can be found, a
// name is text, and axe finds nothing wrong.

import assert from "node:assert/strict";
import { accessible } from "./axe.mjs";
import { changes, clean, field, open, test, whole } from "./browser.mjs";

await test(async (browser, url) => {
  let names = [];
  for (const began = Date.now(); names.length < 200 && Date.now() - began < 60_000; ) { // a busy agent reads them later
    const { workloads } = await (await fetch(`${url}/api/v1/state`)).json();
    names = workloads.map((w) => w.workload);
  }
  const markup = names.filter((name) => name.includes("<"));
  assert.ok(names.length >= 200, `${names.length} workloads`);
  assert.ok(markup.length >= 2, `the agent knows ${markup.length} workloads with markup in their names`);

  const page = await open(browser, url);
  const rows = page.locator("#workloads tbody tr");
  const few = await rows.count();
  assert.ok(few < 50, `${few} rows before anybody asks for all`);
  for (const name of markup) {
    await page.fill("#filter", name);
    await page.waitForFunction(() => document.querySelectorAll("#workloads tbody tr").length === 1);
    assert.equal(await rows.first().locator("td").first().textContent(), name);
  }
  await page.fill("#filter", "");
  await page.click("#workloads .more button");
  await page.waitForFunction((n) => document.querySelectorAll("#workloads tbody tr").length === n, names.length);
  assert.equal(await page.locator("#workloads :is(img, b, script)").count(), 0, "a name became markup");

  assert.ok((await whole(page)) > 0, "no name is cut");
  const first = await page.evaluateHandle(() => document.querySelector("#workloads tbody tr"));
  await changes(page, field(0, "power"));
  assert.ok(await first.evaluate((node) => node.isConnected), "a row is kept from one state to the next");
  const cost = await page.evaluate(() => performance.getEntriesByName("update").at(-1).duration);
  console.log(`an update with ${names.length} workloads shown: ${cost.toFixed(1)} ms of script`);
  await accessible(page, "200 workloads");
  clean(page);
});
