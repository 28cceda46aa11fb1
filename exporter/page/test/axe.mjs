// The accessibility check.

import assert from "node:assert/strict";
import axe from "axe-core";

// accessible fails on what axe finds wrong with the page as it is now. What is gone a frame later
// was the theme's change, of which a busy machine had painted a part.
export async function accessible(page, as) {
  // Not as a script of the page: its policy forbids that.
  await page.evaluate(`window.axe || (() => { ${axe.source} })()`);
  const look = () => page.evaluate(() => window.axe.run(document, { preload: false }));
  let found = await look();
  for (let tries = 0; found.violations.length > 0 && tries < 2; tries++) {
    await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));
    found = await look();
  }
  assert.deepEqual(
    found.violations.map(
      (v) =>
        `${v.id}: ${v.nodes
          .map((n) => n.target.join(" "))
          .slice(0, 5)
          .join("; ")}`,
    ),
    [],
    `axe, ${as}`,
  );
  console.log(`axe, ${as}: ${found.passes.length} rules pass`);
}

// everywhere checks the page in both themes and on a phone, on which nothing
// is wider than the screen.
export async function everywhere(page, as) {
  const theme = async (colorScheme) => {
    await page.emulateMedia({ colorScheme });
    await page.waitForFunction((is) => document.documentElement.dataset.theme === is, colorScheme);
  };
  const before = page.viewportSize();
  for (const colorScheme of ["light", "dark"]) {
    await theme(colorScheme);
    await accessible(page, `${as}, ${colorScheme}`);
  }
  await page.setViewportSize({ width: 390, height: 844 });
  await accessible(page, `${as}, on a phone`);
  await page.waitForFunction(() => document.documentElement.scrollWidth <= innerWidth);
  await page.setViewportSize(before);
  await theme("light");
}
