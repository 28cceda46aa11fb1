// The accessibility check.

import assert from "node:assert/strict";
import axe from "axe-core";

// accessible fails on what axe finds wrong with the page as it is now.
export async function accessible(page, as) {
  // Not as a script of the page: its policy forbids that.
  await page.evaluate(`window.axe || (() => { ${axe.source} })()`);
  const found = await page.evaluate(() => window.axe.run(document, { preload: false }));
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
