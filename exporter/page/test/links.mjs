// A URL for each GPU, workload and tenant, which another tab opens and the
// history of the browser goes through: sixteen GPUs and 208 workloads.

import assert from "node:assert/strict";
import { accessible, everywhere } from "./axe.mjs";
import { clean, live, open, seen, test } from "./browser.mjs";
import { feed } from "./feed.mjs";

const cards = (page) => page.locator("[data-gpu]:visible").count();
const title = (page, words) => page.waitForFunction((w) => document.getElementById("scope-title").textContent === w &&
  !document.getElementById("scope").hidden, words);

// sorting sorts the workloads by name, down and up, and as before; by keyboard,
// too.
async function sorting(page) {
  const first = () => page.textContent("#workloads tbody tr td");
  const head = (i) => page.locator("#workloads th").nth(i);
  const all = () => document.querySelector('[data-field="workloads-shown"]').textContent === "208";
  await page.waitForFunction(all); // a busy agent reads them one after the other
  const before = await first();
  await head(0).locator("button").click();
  assert.equal(await head(0).getAttribute("aria-sort"), "ascending");
  assert.equal(await first(), "pod:crowd/worker-0/worker");
  await head(0).locator("button").focus();
  await page.keyboard.press("Enter");
  assert.equal(await head(0).getAttribute("aria-sort"), "descending");
  assert.equal(await first(), "pod:crowd/worker-972/worker", "numbers in names are ordered as numbers");
  await page.keyboard.press("Enter");
  assert.equal(await head(0).getAttribute("aria-sort"), null);
  assert.equal(await first(), before);
  await head(3).locator("button").click(); // SM
  assert.equal(await head(3).getAttribute("aria-sort"), "descending");
  await page.click("#workloads .more button");
  await page.waitForFunction(() => document.querySelectorAll("#workloads tbody tr").length === 208);
  const used = await seen(page, "#workloads tbody tr", (r) => Number.parseInt(r.cells[3].textContent));
  assert.deepEqual(used, [...used].sort((a, b) => b - a), "the largest number comes first");
  await page.click("#workloads .more button");
  await head(3).locator("button").click();
  await head(3).locator("button").click();
}

await test(async (browser, url) => {
  const page = await open(browser, url, { colorScheme: "light" });
  assert.equal(await cards(page), 16);
  await sorting(page);

  // From a workload to its GPU and its processes.
  await page.fill("#filter", "worker-192");
  await page.waitForFunction(() => document.querySelectorAll("#workloads tbody tr").length === 1);
  await page.click("#workloads tbody a");
  const workload = "pod:crowd/worker-192/worker";
  await title(page, workload);
  assert.equal(await page.evaluate(() => decodeURIComponent(location.hash)), `#workload=${workload}`);
  assert.equal(await page.evaluate(() => document.activeElement.id), "scope-title", "a screen reader is told");
  await page.fill("#filter", "");
  assert.match(await page.title(), /^pod:crowd\/worker-192\/worker/);
  assert.equal(await cards(page), 1);
  await page.waitForSelector("#processes [data-pid]");
  assert.deepEqual(await seen(page, "#processes [data-pid]", (r) => r.cells[3].textContent), [workload]);
  assert.equal(await page.locator("#workloads tbody tr").count(), 1);
  await accessible(page, "a workload");

  // To its GPU, with the processes of all its workloads.
  const uuid = await page.getAttribute("[data-gpu]:visible", "data-uuid");
  await page.click('[data-field="scope-links"] a');
  await title(page, "GPU 3");
  assert.equal(await page.evaluate(() => location.hash), `#gpu=${uuid}`);
  await page.waitForFunction(() => document.querySelectorAll('[data-gpu="3"] [data-pid]').length === 13);
  await page.waitForSelector('[data-gpu="3"] .uplot canvas');
  assert.equal(await cards(page), 1);
  assert.equal(await page.locator("#workloads tbody tr").count(), 13);
  assert.equal(await page.locator("#processes").isVisible(), false);
  await everywhere(page, "a GPU");

  // Back and forward.
  await page.goBack();
  await title(page, workload);
  await page.goBack();
  await page.waitForSelector("#scope", { state: "hidden" });
  assert.equal(await cards(page), 16);
  assert.equal(await page.locator(".card.open").count(), 0, "the card that the URL opened is closed");
  await page.goForward();
  await title(page, workload);
  await page.click(".crumb a");
  await page.waitForSelector("#scope", { state: "hidden" });
  clean(page);

  // Another tab, and the link on a card.
  const other = await open(browser, `${url}/#gpu=${uuid}`);
  await title(other, "GPU 3");
  await other.reload();
  await live(other);
  await title(other, "GPU 3");
  await other.goto(`${url}/#gpu=GPU-none`);
  await other.waitForFunction(() => /There is no GPU GPU-none/.test(document.getElementById("scope").textContent));
  assert.equal(await cards(other), 0);
  await other.click(".crumb a");
  await other.click('[data-gpu="7"] a.alone');
  await title(other, "GPU 7");
  clean(other);
  await other.context().close();

  // Tenants, whose workloads the broker knows; suspended workloads; a Grafana.
  const agent = await feed(url, (state) => {
    state.host.grafana_url = "https://grafana.example/g/?orgId=2";
    state.host.fleet = true;
    state.tenants = [{ tenant: "<research>", uuid, gpu: 3, sessions: 1, share_ratio: 0.1 }];
    state.workloads.forEach((w) => (w.tenants = w.gpus?.[0].uuid === uuid ? ["<research>"] : []));
    const [one, two] = state.workloads.filter((w) => w.gpus && w.workload.endsWith("2/worker"));
    if (!two) return; // an ended workload has counters and no GPU
    one.gpus[0].suspended = { phase: "suspended", seconds: 90, memory_bytes: 3.5 * 2 ** 30 };
    two.gpus[0].suspended = { phase: "resuming", seconds: 1, memory_bytes: 2 ** 30 };
  });
  try {
    const third = await open(browser, agent.url, { colorScheme: "light" });
    await third.fill("#filter", "2/worker");
    const away = "#workloads tr[data-suspended]";
    await third.waitForFunction((at) => document.querySelectorAll(at).length === 2, away);
    const of = (phase) => third.textContent(`#workloads tr[data-suspended="${phase}"] td:nth-child(5)`);
    assert.equal(await of("suspended"), "suspended, 3.5 GiB");
    assert.equal(await of("resuming"), "resuming, 1.0 GiB");
    await third.fill("#filter", "");
    await third.click('[data-tenant="<research>"] a');
    await title(third, "Tenant <research>");
    assert.equal(await cards(third), 1);
    assert.equal(await third.locator("#workloads tbody tr").count(), 13);
    await accessible(third, "a tenant");
    const to = (at) => third.getAttribute(at, "href");
    assert.equal(await to("#fleet"), "fleet");
    assert.equal(await to("#grafana"), "https://grafana.example/g/d/gpusteward-host?orgId=2");
    assert.equal(await to('[data-field="scope-links"] a[rel]'),
      "https://grafana.example/g/d/gpusteward-quotas?orgId=2&var-tenant=%3Cresearch%3E");
    await third.click('[data-field="scope-links"] a:not([rel])');
    await title(third, "GPU 3");
    assert.equal(await to('[data-field="scope-links"] a[rel]'),
      "https://grafana.example/g/d/gpusteward-gpu?orgId=2&var-gpu=3");
    clean(third); // nothing was asked of Grafana
  } finally {
    agent.close();
  }
});
