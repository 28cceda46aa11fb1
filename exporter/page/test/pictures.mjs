// Makes the page's pictures: node pictures.mjs URL DIRECTORY.

import { join } from "node:path";
import { clean, open, test } from "./browser.mjs";

await test(async (browser, url, directory) => {
  for (const colorScheme of ["light", "dark"]) {
    const viewport = { width: 1440, height: 1500 }; // down to the tables
    const page = await open(browser, url, { colorScheme, viewport, deviceScaleFactor: 1 });
    await page.waitForSelector("[data-event]");
    await page.waitForSelector('[data-attention][data-severity="critical"]', { timeout: 240_000 }); // a job of the demo hangs
    await page.screenshot({ path: join(directory, `page-${colorScheme}.png`) });
    clean(page);
    await page.context().close();
  }
});
