// What the tests of the page share: a browser, and a watch on what a page must
// never do. A test is `node NAME.mjs URL...`: it exits with 1 where it fails.

import assert from "node:assert/strict";
import { chromium } from "playwright-core";

export const patience = 180_000; // milliseconds until a test gives up waiting: a busy machine takes its time

// test runs body with a browser, whose profile is its own, and what stands on
// the command line.
export async function test(body) {
  const browser = await chromium.launch({
    executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
    args: ["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
  });
  try {
    await body(browser, ...process.argv.slice(2));
  } catch (err) {
    console.error(err);
    process.exitCode = 1;
  } finally {
    await browser.close();
  }
}

// open opens the live page and waits for its first state. What it must never do
// is gathered in page.wrong: requests of other hosts, errors on the console,
// dialogs, what its policy forbids. options are those of a browser's context.
export async function open(browser, url, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1440, height: 1100 }, ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(patience);
  page.wrong = [];
  page.asked = [];
  const note = (what) => page.wrong.push(what);
  page.on("console", (m) => ["error", "warning"].includes(m.type()) && note(`console: ${m.text()}`));
  page.on("pageerror", (err) => note(`exception: ${err}`));
  page.on("dialog", (d) => d.dismiss().then(() => note(`dialog: ${d.message()}`)));
  context.on("request", (r) => {
    page.asked.push(r.url());
    if (new URL(r.url()).host !== new URL(url).host) note(`request: ${r.url()}`);
  });
  await page.exposeFunction("forbidden", (what) => note(`policy: ${what}`));
  await page.addInitScript(() => {
    document.addEventListener("securitypolicyviolation", (e) =>
      window.forbidden(`${e.violatedDirective} ${e.blockedURI}`),
    );
  });
  await page.goto(url);
  await live(page);
  return page;
}

// live waits until the page is.
export const live = (page) => page.waitForSelector('#pulse[data-state="live"]');

// field is the selector of a value on the card of a GPU.
export const field = (gpu, name) => `[data-gpu="${gpu}"] [data-field="${name}"]`;

// seen maps all nodes of a selector by read, at one moment. Playwright's $$eval
// finds them in one call and reads them in the next: the page may have moved
// them in between.
export const seen = (page, selector, read) =>
  page.evaluate(`[...document.querySelectorAll(${JSON.stringify(selector)})].map(${read})`);

// changes waits until a text differs from what it was, and returns it.
export async function changes(page, selector) {
  const was = await page.textContent(selector);
  await page.waitForFunction(([at, old]) => document.querySelector(at).textContent !== old, [selector, was]);
  return page.textContent(selector);
}

// whole fails if a text is cut and no title has all of it.
export async function whole(page) {
  const cut = await page.evaluate(() =>
    [...document.querySelectorAll("main *, header *")]
      .filter((n) => n.scrollWidth > n.clientWidth && getComputedStyle(n).textOverflow === "ellipsis")
      .map((n) => [n.textContent.trim(), n.closest("[title]")?.title ?? ""]),
  );
  assert.deepEqual(cut.filter(([text, title]) => !title.includes(text)), [], "texts that are cut, and their titles");
  return cut.length;
}

// clean fails if the page did what it must not, but for what allowed matches.
export function clean(page, allowed = /^$/) {
  assert.deepEqual(page.wrong.filter((w) => !allowed.test(w)), []);
}
