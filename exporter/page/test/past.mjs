// The charts have the values of their legends without a cursor, and the last day
// beside the last 15 minutes. Times are local or in UTC.

import assert from "node:assert/strict";
import { everywhere } from "./axe.mjs";
import { clean, live, open, test } from "./browser.mjs";

const legends = '[data-gpu="1"] .plot:first-of-type .u-legend .u-series:not(:first-child) .u-value';

await test(async (browser, url) => {
  const page = await open(browser, url, { colorScheme: "light", timezoneId: "Asia/Kolkata" });
  const times = () => page.evaluate(() => [document.querySelector('[data-field="pulse"]').textContent,
    document.querySelector("#events time").textContent, document.querySelector("#events time").dateTime]);
  await page.waitForSelector("#events time");
  const [pulse, local, date] = await times();
  assert.match(pulse, /GMT\+5:30$/);
  const there = new Intl.DateTimeFormat("en-GB", { timeZone: "Asia/Kolkata", timeStyle: "medium" }).format(new Date(date));
  assert.equal(local, there);
  await page.click("#zone");
  assert.equal(await page.textContent("#zone"), "Time: UTC");
  const [now, utc] = await times();
  assert.match(now, /UTC$/);
  assert.equal(utc, date.slice(11, 19));
  await page.reload();
  await live(page);
  await page.waitForSelector("#events time");
  assert.equal((await times())[1], date.slice(11, 19), "the choice is remembered");

  await page.click('[data-gpu="1"] button.head');
  await page.waitForFunction((at) => {
    const all = [...document.querySelectorAll(at)].map((n) => n.textContent);
    return all.length === 4 && all.every((v) => /^\d+\.\d %$/.test(v));
  }, legends);

  const day = page.waitForResponse((r) => r.url().includes("/api/v1/history/day?gpu=GPU-"));
  await page.click('[data-gpu="1"] [data-span="day"]');
  const { step_seconds: step, series, end } = await (await day).json();
  assert.equal(step, 60);
  assert.equal(series.power_watts.length, 1440, "24 hours of minutes");
  assert.ok(Date.now() - Date.parse(end) < 180_000);
  const chart = page.locator('[data-gpu="1"] .plot').first();
  await page.waitForFunction(() => /of the last 24 hours/
    .test(document.querySelector('[data-gpu="1"] .plot').getAttribute("aria-label")));
  assert.equal(await page.getAttribute('[data-gpu="1"] [data-span="day"]', "aria-pressed"), "true");
  await everywhere(page, "the last day of a GPU");
  await page.click('[data-gpu="1"] [data-span="quarter"]');
  await page.waitForFunction(() => /of the last 15 minutes/
    .test(document.querySelector('[data-gpu="1"] .plot').getAttribute("aria-label")));
  assert.ok(await chart.isVisible());
  clean(page, /ERR_EMPTY_RESPONSE/); // of a connection that the browser left unused for ten seconds of axe
});
