// Beside a fault are its evidence, its action, the runbook and since when. A
// finding in shadow mode is marked, and looks like no warning. A fault of a
// workload is none of its GPU.

import assert from "node:assert/strict";
import { everywhere } from "./axe.mjs";
import { clean, field, open, seen, test } from "./browser.mjs";
import { feed } from "./feed.mjs";

await test(async (browser, url) => {
  const began = new Date(Date.now() - 300_000).toISOString();
  const runbook = "https://example.org/RUNBOOK.md#gpuhot";
  const found = (more) => ({ severity: "warning", last: began, runbook, action: "Look at <b>it</b>.", value: 0.25,
    limit: "> 0.05, 6 of 6 in 1m", worst: 0.5, worst_at: began, ...more });
  const agent = await feed(url, (state) => {
    const [hot, slow, odd] = state.gpus;
    hot.faults = [found({ what: "GPU 0 is hot.", check: "hot", entity: "gpu=0", latched: true })];
    slow.faults = [found({ what: "Steps of it are slow.", check: "job_slow", entity: "gpu=1", workload: "unit:it" })];
    state.shadow = [found({ what: "GPU 2 is odd.", check: "drift", entity: "gpu=2", uuid: odd.uuid, shadow: true })];
    state.tenants = [{ tenant: "a", uuid: odd.uuid, gpu: 2, sessions: 1, rung: "pause", shadow: true }];
    const slower = { ratio: 0.5, what: "its own code", cause: "host", rank: "1" };
    state.workloads = ["unit:it", "unit:that"].map((workload) =>
      ({ workload, gpus: [{ index: 1, uuid: slow.uuid, job: { stepping: true, straggler: slower } }] }));
    state.shadow.push(found({ what: "One is late.", check: "job_straggler", workload: "unit:that", shadow: true }));
    state.ladder = [{ tenant: "a", workload: "unit:it", rung: "pause", shadow: true }];
  });
  try {
    const page = await open(browser, agent.url, { colorScheme: "light" });
    const health = (gpu) => page.getAttribute(`[data-gpu="${gpu}"]`, "data-health");
    assert.deepEqual([await health(0), await health(1), await health(2)], ["warning", "ok", "ok"]);
    assert.equal(await page.textContent('[data-field="health-note"]'), "1 fault on 1 of 4 GPUs; 1 of jobs and tenants");
    assert.match(await page.textContent(field(1, "reason")), /Steps of it are slow/);

    await page.click('[data-gpu="0"] button.head');
    const line = page.locator('[data-gpu="0"] [data-check="hot"]');
    const words = await line.textContent();
    for (const want of [/▲ warning/, /GPU 0 is hot\./, /since .*\d\d:\d\d:\d\d, for 5 min/, /The last reading is 0\.25; the check hot fails above 0\.05 in 6 of 6 samples in 1m\./,
      /The worst was 0\.5, at .*\d\d:\d\d:\d\d\./, /It is latched/, /To do: Look at <b>it<\/b>\./]) assert.match(words, want);
    assert.equal(await line.locator("a:visible").getAttribute("href"), runbook);
    assert.equal(await page.locator(".faults b").count(), 0, "an action became markup");

    const shadow = page.locator("#shadow [data-check='drift']");
    assert.match(await shadow.textContent(), /◌ shadow.*GPU 2 is odd/);
    const colour = (at) => page.evaluate((a) => getComputedStyle(document.querySelector(a)).color, at);
    const warning = await colour('[data-gpu="0"] [data-check="hot"] .mark');
    for (const at of ["#shadow .mark", "#tenants tr[data-shadow] td:last-child"])
      assert.notEqual(await colour(at), warning, `${at} looks like a warning`);
    const lines = await seen(page, "[data-job]", (n) => [n.dataset.severity, n.querySelector(".troubles .mark").textContent]);
    assert.deepEqual(lines, [["warning", "▲ straggler"], ["shadow", "◌ straggler"]]);
    assert.match(await page.textContent("#escalation tr[data-shadow]"), /pause \(shadow\)/);
    assert.equal(await shadow.locator("a").first().textContent(), "GPU 2");
    await everywhere(page, "faults, and findings in shadow mode");
    clean(page);
  } finally {
    agent.close();
  }
});
