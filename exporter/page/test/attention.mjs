// What a stranger sees in the first three seconds: the strip of what needs
// attention, whose worst line is within the first 400 pixels of a laptop and of a
// phone; the GPUs of a job that hangs, tinted and first; sixteen GPUs at once. What
// is over is told as over, a filter finds whose it is, and no text is cut or has a
// false plural.

import assert from "node:assert/strict";
import { everywhere } from "./axe.mjs";
import { clean, open, seen, test, whole } from "./browser.mjs";
import { feed } from "./feed.mjs";

const laptop = { width: 1440, height: 900 };
const phone = { width: 390, height: 844 };
const deep = 400; // pixels
const ago = (seconds) => new Date(Date.now() - 1000 * seconds).toISOString();
const hour = { hour: "2-digit", minute: "2-digit", hourCycle: "h23" };
const minute = (time) => new Date(time).toLocaleTimeString("en-GB", hour);

const fault = (check, what, more) => ({ check, what, severity: "warning", last: ago(300), value: 0.25, worst: 0.5, worst_at: ago(200),
  limit: "> 0.05, 6 of 6 in 1m", action: "Look.", runbook: "https://example.org/RUNBOOK.md", ...more });
const over = { severity: "info", recovered: ago(60), clears: ago(-180) };
const job = (g, more) => ({ index: g.index, uuid: g.uuid, job: { stepping: true, step_seconds: 0.05, ...more } });
const hang = { seconds: 75, rank: "1", reason: "absent", where: "/home/frank/tune.py:142 in load_batch",
  what: "it did not enter a collective that the others have entered" };
const steps = { seconds: 0.05, part_seconds: { launching: 0.01, waiting: 0.04, copying: 0, held: 0, host: 0 }, goodput_ratio: 0.9 };

// hosts make a state one that a test is about.
const hosts = {
  well: () => {},
  ill(state) {
    const [, hot, one, two] = state.gpus;
    hot.faults = [fault("hot", "GPU 1 is hot.", { entity: "gpu=1", command: "gpusteward check --only=hot --gpu=1" })];
    hot.temperature_margin_celsius = -3;
    hot.throttled = ["sw_power_cap", "hw_thermal", "hw_slowdown"];
    state.faults = [fault("host_kernel", "The kernel reported a machine check.", { command: "gpusteward check --only=host_kernel" })];
    state.tenants = [{ tenant: "lab", uuid: two.uuid, gpu: 3, share_ratio: 0.5 }];
    state.workloads = [
      { workload: "slurm:4716.0", steps, info: { slurm_user: "frank" }, tenants: ["lab"],
        gpus: [job(one), job(two, { hang, pid: 4711 })] },
      { workload: "pod:serving/small-7-3/model", info: { namespace: "serving", pod: "small-7-3" }, gpus: [job(state.gpus[0])] },
    ];
  },
  over(state) {
    state.gpus[1].faults = [fault("hot", "Until a while ago, GPU 1 was hot.", { entity: "gpu=1", ...over })];
    state.workloads = [];
  },
  many(state) {
    state.gpus = Array.from({ length: 16 }, (_, i) => ({ ...state.gpus[i % 4], index: i, uuid: `GPU-${i}`,
      throttled: ["sw_power_cap"], temperature_margin_celsius: i ? 25 : undefined }));
    hosts.ill(state);
  },
};

// words fails on a text that no native speaker would write.
async function words(page) {
  const texts = await seen(page, "body *:not(script, option)", (n) =>
    [...n.childNodes].filter((c) => c.nodeType === 3 && n.checkVisibility()).map((c) => c.textContent.trim()).join(" "));
  const odd = /\b1 (GPUs|faults|ranks|notices|events|jobs|workloads|processes|errors)\b|– left|-\d+ °C|NaN|undefined|null|\.\. |[.!?] (?!\w+:)[a-z]/;
  assert.deepEqual(texts.filter((t) => odd.test(t)), [], "texts that read badly");
  await whole(page);
}

const box = (page, selector) => page.evaluate((at) => {
  const all = [...document.querySelectorAll(at)].map((n) => n.getBoundingClientRect()).filter((r) => r.height);
  return { top: Math.min(...all.map((r) => r.top)), bottom: Math.max(...all.map((r) => r.bottom)), count: all.length };
}, selector);
const order = (page) => seen(page, "[data-gpu]:not([hidden])", (n) => n.dataset.gpu);
const shows = (page, selector, n) =>
  page.waitForFunction(([at, count]) => document.querySelectorAll(at).length === count, [selector, n]);

await test(async (browser, url) => {
  let host = "well";
  const agent = await feed(url, (state) => hosts[host](state));
  try {
    const page = await open(browser, agent.url, { colorScheme: "light", viewport: laptop, timezoneId: "Europe/London" });
    assert.equal(await page.locator("#attention").isVisible(), false, "nothing needs attention");
    assert.deepEqual(await order(page), ["0", "1", "2", "3"]);
    await words(page);

    host = "ill";
    await shows(page, "[data-attention]", 3);
    assert.deepEqual(await seen(page, "[data-attention]", (n) => [n.dataset.attention, n.dataset.severity]),
      [["job", "critical"], ["host", "warning"], ["gpu", "warning"]]);
    const worst = "[data-attention]:first-child";
    const text = await page.textContent(worst);
    for (const want of [/^◆ criticalslurm:4716\.0 \(frank\) hangs because of rank 1 on GPU 3/, /tune\.py:142 in load_batch/, /for 1 min/, /sudo gpusteward stack 4711/])
      assert.match(text, want);
    for (const size of [laptop, phone]) {
      await page.setViewportSize(size);
      const { top, bottom } = await box(page, worst);
      console.log(`${size.width} pixels wide: the worst fault is from ${top.toFixed(0)} to ${bottom.toFixed(0)}`);
      assert.ok(top >= 0 && bottom <= deep, `the worst fault ends at ${bottom} of a screen that is ${size.width} wide`);
      assert.ok(top < (await box(page, ".strip")).top, "it is above the tiles");
      await words(page);
    }
    await page.setViewportSize(laptop);
    assert.equal(await page.getAttribute('[data-tile="health"]', "data-severity"), "critical");
    assert.equal(await page.textContent('[data-field="health"]'), "◆ 1 job fault");
    assert.deepEqual(await seen(page, "[data-job-fault]", (n) => [n.dataset.gpu, n.dataset.health, n.dataset.jobFault]),
      [["2", "ok", "critical"], ["3", "ok", "critical"]]);
    assert.deepEqual(await order(page), ["2", "3", "1", "0"], "the worst comes first");
    assert.match(await page.textContent('[data-gpu="1"] [data-field="temperature"]'), /3 above its limit/);
    await everywhere(page, "faults that need attention");

    // By owner, tenant, pod and workload.
    for (const [filter, gpus, jobs, faults] of [["frank", 2, 1, 1], ["lab", 2, 1, 1], ["small-7-3", 1, 0, 0], ["4716", 2, 1, 1]]) {
      await page.fill("#filter", filter);
      await shows(page, "[data-gpu]:not([hidden])", gpus);
      assert.equal(await page.locator("[data-job]").count(), jobs, `jobs of ${filter}`);
      assert.equal(await page.locator("[data-attention]").count(), faults, `faults of ${filter}`);
    }
    await page.fill("#filter", "nobody");
    await shows(page, "[data-gpu]:not([hidden])", 0);
    assert.equal(await page.textContent("#gpus-section .empty"), "No GPU matches the filter.");
    const section = await box(page, "#gpus-section");
    assert.ok(section.bottom - section.top < 100, "where no GPU matches is a hole");
    for (const head of ["#tenants .scroll", "#workloads .scroll", ".jobs-head"])
      assert.equal(await page.locator(head).isVisible(), false, `${head} is above nothing`);
    await page.fill("#filter", "");

    // The link leads to the job; a GPU that is not there is said not to be.
    await page.click(`${worst} a`);
    await page.waitForFunction(() => document.getElementById("scope-title").textContent === "slurm:4716.0");
    assert.equal(await page.locator(".strip").isVisible(), false, "tiles of the host are above a job");
    await page.goto(`${agent.url}/#gpu=nope`);
    await page.waitForFunction(() => document.getElementById("scope-title").textContent === "There is no GPU nope");
    assert.match(await page.textContent('[data-field="scope-facts"]'), /It has GPU 0–3\./);
    assert.equal(await page.locator("#gpus-section").isVisible(), false);
    await page.goto(`${agent.url}/#gpu=3`); // by its index
    await page.waitForFunction(() => document.getElementById("scope-title").textContent === "GPU 3");
    await page.goto(`${agent.url}/#`);

    host = "over";
    await page.waitForSelector('[data-gpu="1"][data-health="info"]');
    assert.equal(await page.locator("#attention").isVisible(), false, "what is over needs attention");
    assert.equal(await page.getAttribute('[data-tile="health"]', "data-severity"), "info");
    assert.equal(await page.textContent('[data-field="health-note"]'), "a fault is over");
    assert.ok((await page.textContent('[data-gpu="1"] [data-field="reason"]'))
      .startsWith(`Recovered ${minute(over.recovered)}, clears ${minute(over.clears)}. Until`));
    assert.deepEqual(await order(page), ["0", "1", "2", "3"]);
    await page.click('[data-gpu="1"] button.head');
    assert.match(await page.textContent('[data-gpu="1"] [data-check="hot"]'), /info.*recovered \d\d:\d\d, clears \d\d:\d\d/);
    await words(page);
    await page.click('[data-gpu="1"] button.head');

    host = "many";
    const other = await open(browser, agent.url, { colorScheme: "light", viewport: laptop });
    await shows(other, ".cards[data-compact] [data-gpu]", 16);
    const fold = await box(other, "[data-gpu]");
    console.log(`sixteen GPUs end at ${fold.bottom.toFixed(0)} of ${laptop.height}`);
    assert.ok(fold.bottom <= laptop.height, `sixteen GPUs end at ${fold.bottom}`);
    await words(other);
    await everywhere(other, "sixteen GPUs");
    await other.setViewportSize(phone);
    const small = await box(other, "[data-gpu]");
    console.log(`on a phone they are ${(small.bottom - small.top).toFixed(0)} pixels high`);
    assert.ok(small.count === 16 && small.bottom - small.top <= phone.height, `sixteen GPUs are ${small.bottom - small.top} high`);
    await words(other);
    clean(other);
    clean(page);
  } finally {
    agent.close();
  }
});
