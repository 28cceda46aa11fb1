// What a reader does with the page: the filter, the themes, an open card, by
// keyboard too, and on a phone; axe finds nothing wrong with any of it.

import assert from "node:assert/strict";
import { accessible } from "./axe.mjs";
import { clean, live, open, test } from "./browser.mjs";

const theme = (page) => page.getAttribute("html", "data-theme");
const ground = (page) => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
const visible = (page) => page.locator("[data-gpu]:visible").count();

async function filter(page) {
  const all = await visible(page);
  await page.keyboard.press("/");
  await page.keyboard.type("gpu 2");
  await page.waitForFunction(() => document.querySelectorAll("[data-gpu]:not([hidden])").length === 1);
  assert.equal(await page.getAttribute("[data-gpu]:visible", "data-gpu"), "2");
  assert.equal(await page.inputValue("#filter"), "gpu 2", "the key that comes to the filter is not typed into it");
  await page.fill("#filter", "<nothing>");
  await page.waitForFunction(
    () => document.querySelectorAll("[data-gpu]:not([hidden]), #workloads tbody tr").length === 0,
  );
  await page.focus("#filter");
  await page.keyboard.press("Escape");
  await page.waitForFunction((n) => document.querySelectorAll("[data-gpu]:not([hidden])").length === n, all);
}

async function themes(page) {
  assert.equal(await theme(page), "light");
  const light = await ground(page);
  await page.emulateMedia({ colorScheme: "dark" });
  await page.waitForFunction(() => document.documentElement.dataset.theme === "dark");
  assert.notEqual(await ground(page), light, "dark looks as light does");
  await page.click("#theme");
  assert.equal(await theme(page), "light", "light was chosen");
  await page.click("#theme");
  assert.equal(await theme(page), "dark", "dark was chosen");
  await page.emulateMedia({ colorScheme: "light" });
  await page.reload();
  await live(page);
  assert.equal(await theme(page), "dark", "the choice is remembered");
  await page.click("#theme");
  assert.equal(await theme(page), "light", "as the system again");
}

// card opens and closes a card by keyboard; it stays open for what comes next.
async function card(page) {
  const head = page.locator('[data-gpu="1"] button.head');
  await head.focus();
  await page.keyboard.press("Enter");
  assert.equal(await head.getAttribute("aria-expanded"), "true");
  await page.waitForSelector('[data-gpu="1"] .uplot canvas');
  assert.equal(await page.locator('[data-gpu="1"] .uplot').count(), 6, "charts of an open card");
  await page.keyboard.press("Escape");
  assert.equal(await head.getAttribute("aria-expanded"), "false");
  await page.keyboard.press("Enter");
  await page.waitForSelector('[data-gpu="1"] .uplot canvas');
}

await test(async (browser, url) => {
  const page = await open(browser, url, { colorScheme: "light" });
  await filter(page);
  await themes(page);
  await card(page);
  await accessible(page, "light, a card open");
  await page.emulateMedia({ colorScheme: "dark" });
  await page.waitForFunction(() => document.documentElement.dataset.theme === "dark");
  await accessible(page, "dark, a card open");
  await page.setViewportSize({ width: 390, height: 844 });
  await accessible(page, "on a phone");
  // Nothing is wider than the phone.
  await page.waitForFunction(() => document.documentElement.scrollWidth <= innerWidth);
  clean(page);
});
