// The page's policy holds, and the tests' watch on it sees what it forbids: a
// script that got into the document does not run, and nothing reaches another
// host.

import assert from "node:assert/strict";
import { open, test } from "./browser.mjs";

await test(async (browser, url) => {
  const page = await open(browser, url);
  assert.deepEqual(page.wrong, []);
  const elsewhere = url.replace("127.0.0.1", "127.0.0.2");
  const fetched = await page.evaluate(async (elsewhere) => {
    const script = document.createElement("script");
    script.textContent = "window.intruder = true";
    const image = document.createElement("img");
    image.setAttribute("onerror", "window.intruder = true");
    image.src = `${elsewhere}/picture.png`;
    document.body.append(script, image);
    await new Promise((refused) => image.addEventListener("error", refused));
    return fetch(elsewhere).then(() => "fetched", () => "refused");
  }, elsewhere);
  assert.equal(fetched, "refused");
  assert.equal(await page.evaluate(() => window.intruder), undefined, "a script within the document ran");
  for (const what of ["script-src-elem", "script-src-attr", "img-src", "connect-src"]) {
    assert.ok(
      page.wrong.some((w) => w.startsWith(`policy: ${what}`)),
      `${what}: the watch has only ${page.wrong.join("; ")}`,
    );
  }
});
