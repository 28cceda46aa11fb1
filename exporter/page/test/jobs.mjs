// The jobs: one that the simulated host has, with its step, its parts and its
// ranks; then those of a made-up host, which hang, are slow, are many, or are
// none.

import assert from "node:assert/strict";
import { accessible } from "./axe.mjs";
import { changes, clean, open, seen, test, whole } from "./browser.mjs";
import { feed } from "./feed.mjs";

const real = '[data-job="slurm:4711.0"]';
const said = (page, words) =>
  page.waitForFunction((what) => document.getElementById("say").textContent.includes(what), words);
const dark = async (page) => {
  await page.emulateMedia({ colorScheme: "dark" });
  await page.waitForFunction(() => document.documentElement.dataset.theme === "dark");
};
const phone = async (page, as) => {
  await page.setViewportSize({ width: 390, height: 844 });
  await accessible(page, as);
  await page.waitForFunction(() => document.documentElement.scrollWidth <= innerWidth); // nothing is wider
};

// simulated reads the job of the simulated host, and opens it by keyboard.
async function simulated(browser, url) {
  const page = await open(browser, url, { colorScheme: "light" });
  const field = (name) => page.textContent(`${real} [data-field="${name}"]`);
  await page.waitForSelector(`${real} [data-part="waiting"]:not(:empty)`);
  assert.match(await field("place"), /^GPU 0–3 · 4 ranks( · \w+)?$/);
  assert.match(await field("step"), /^1\.[12]\d s$/);
  await page.waitForFunction((at) => /^\d+ %$/.test(document.querySelector(at)?.textContent), // after a step
    `${real} [data-field="goodput"]`);
  assert.match(await page.getAttribute(`${real} .stack`, "aria-label"), /launching 8 %, waiting (80|7\d) %, copying 2 %/);
  const widths = await seen(page, `${real} .stack span`, (s) => s.clientWidth);
  assert.ok(widths[1] > 5 * widths[0] && widths[3] === 0, `the parts are ${widths} pixels wide`);
  await page.waitForFunction((at) => /now 1\.[12]\d s/.test(document.querySelector(at)?.ariaLabel), `${real} canvas`);

  const head = page.locator(`${real} button.head`);
  await head.focus();
  await page.keyboard.press("Enter");
  assert.equal(await head.getAttribute("aria-expanded"), "true");
  await page.waitForSelector(`${real} .uplot canvas`);
  assert.equal(await page.locator(`${real} .uplot`).count(), 3, "charts of an open job");
  await page.waitForFunction((at) => /straggler.*the other ranks wait 12 % of a step for rank 3 on GPU 3: its own code/
    .test(document.querySelector(at)?.textContent), `${real}.open .troubles`);
  const ranks = await seen(page, `${real} [data-rank]`, (r) => r.lastChild.textContent);
  assert.deepEqual(ranks, ["–", "–", "–", "▲ comes last"]);

  const moved = await page.evaluate(() => {
    window.moved = 0;
    new PerformanceObserver((all) => all.getEntries().forEach((e) => (window.moved += e.value)))
      .observe({ type: "layout-shift" });
  });
  assert.equal(moved, undefined);
  for (let i = 0; i < 2; i++) await changes(page, '[data-field="pulse"]');
  assert.equal(await page.evaluate(() => window.moved), 0, "an update moves what is on the page");

  await accessible(page, "light, a job open");
  await dark(page);
  await accessible(page, "dark, a job open");
  await phone(page, "a job open, on a phone");
  await head.press("Escape"); // a job that was gone for a moment has lost the focus
  assert.equal(await head.getAttribute("aria-expanded"), "false");
  assert.equal(await page.locator(`${real} .uplot`).count(), 0);
  clean(page);
}

const long = "pod:team-of-many-words/training-of-a-large-model-0123456789/trainer-with-sidecars";
const job = (index, more = {}) => ({ index, uuid: `GPU-${index}`, job: { stepping: true, step_seconds: 0.05, ...more } });
const steps = (host) => ({
  seconds: 0.05, part_seconds: { launching: 0.01, waiting: 0.04 - host, copying: 0, held: 0, host },
  goodput_ratio: 0.9, slow_ratio: { storage: 0.002, cpu: 0.05, power: 0 },
});
const named = (i) => `job-${String(i).padStart(2, "0")}`;
const many = Array.from({ length: 64 }, (_, i) => ({ workload: named(i), steps: steps(0.02), gpus: [job(i % 8)] }));
const hang = { seconds: 75, rank: "3", reason: "absent", what: "it is not there", where: "<b>train.py</b>:42 in load" };

// madeUp shows what a simulated host does not do.
async function madeUp(browser, url) {
  let workloads = many;
  const agent = await feed(url, (state) => (state.workloads = workloads));
  try {
    const page = await open(browser, agent.url, { colorScheme: "light" });
    const rows = page.locator("[data-job]");
    assert.equal(await rows.count(), 20, "rows before anybody asks for all");
    assert.equal(await page.textContent('[data-job="job-00"] [data-field="slow"]'), "5.0 % cpu, 0.2 % storage");
    await page.click('[data-job="job-05"] button.head');
    await page.click("#jobs .more button");
    await page.waitForFunction(() => document.querySelectorAll("[data-job]").length === 64);
    await changes(page, '[data-field="pulse"]');
    const cost = await page.evaluate(() => performance.getEntriesByName("update").at(-1).duration);
    console.log(`an update with 64 jobs shown: ${cost.toFixed(1)} ms of script`);
    await accessible(page, "64 jobs");

    workloads = many.map((w, i) => (i === 63 ? { ...w, gpus: [job(0), job(5, { hang })] } : w));
    await page.waitForSelector("[data-job]:first-child[data-hangs]");
    const first = "[data-job]:first-child";
    assert.equal(await page.getAttribute(first, "data-job"), "job-63", "the job that hangs is the first");
    assert.match(await page.textContent(`${first} .troubles`),
      /hangs.*for 1 min because of rank 3 on GPU 5: it is not there\. It stands at <b>train\.py<\/b>:42 in load\./);
    assert.equal(await page.locator("#jobs b").count(), 0, "a place became markup");
    await said(page, "job-63 hangs: because of rank 3 on GPU 5");
    assert.equal(await page.getAttribute('[data-job="job-05"] button.head', "aria-expanded"), "true", "it stays open");
    const present = workloads;
    workloads = present.filter((w) => w.workload !== "job-05");
    await page.waitForSelector('[data-job="job-05"]', { state: "detached" });
    workloads = present;
    await page.waitForSelector('[data-job="job-05"].open .uplot'); // it comes back as it was
    assert.equal(await page.getAttribute('[data-job="job-05"] button.head', "aria-expanded"), "true");
    await accessible(page, "a job that hangs");
    await page.fill("#filter", "hangs");
    await page.waitForFunction(() => document.querySelectorAll("[data-job]").length === 2); // with the open one
    await dark(page);
    await accessible(page, "a job that hangs, dark");
    await phone(page, "a job that hangs, on a phone");
    await page.fill("#filter", "");

    workloads = [{
      workload: "slow", steps: steps(0.03), info: { namespace: long },
      gpus: [job(0, { slow: { ratio: 0.2, cause: "cpu", evidence: "a" } }),
        job(1, { slow: { ratio: 0.5, cause: "cpu", evidence: "b; c" } }),
        job(3, { slow: { ratio: 0.1, cause: "power", what: "the power limit reduces its clocks" } })],
    }, { workload: long, gpus: [job(0)] }];
    await page.waitForSelector('[data-job="slow"][data-severity="warning"]');
    await said(page, "job-63 no longer hangs");
    const lines = await seen(page, ".troubles li", (li) => li.textContent);
    assert.deepEqual(lines, [
      "▲ slowon GPU 0–1, a step takes 2.00 times its usual time: cpu. Evidence: b; c.",
      "▲ slowon GPU 3, a step takes 1.11 times its usual time: the power limit reduces its clocks. ",
    ]);
    assert.ok((await whole(page)) > 1, "no long name is cut");
    assert.match(await page.textContent("#jobs .others"), /^1 more workload runs under the hook without steps/);

    workloads = [{ workload: "server", gpus: [job(0)] }];
    await page.waitForFunction(() => document.querySelectorAll("[data-job]").length === 0);
    assert.match(await page.textContent("#jobs .others"), /^1 workload runs/);
    assert.equal(await page.locator(".jobs-head").isVisible(), false);
    workloads = [];
    await page.waitForSelector("#jobs", { state: "hidden" });
    clean(page);
  } finally {
    agent.close();
  }
}

await test(async (browser, url) => {
  await simulated(browser, url);
  await madeUp(browser, url);
});
