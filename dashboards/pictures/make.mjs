// Takes the pictures of the dashboards ("make pictures-dashboards"): Grafana's
// own panel components draw the data of a real Prometheus in Chromium.
import { execFileSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { chromium } from 'playwright-core';
import UPNG from 'upng-js';
import { Source } from './data.mjs';
import { pause, start } from './servers.mjs';

const here = dirname(fileURLToPath(import.meta.url));
const root = join(here, '../..');
const find = createRequire(import.meta.url);

const history = 80; // seconds of data in the pictures
const before = 20; // seconds of data before them, which rates need
const width = 1440; // pixels
const rows = 33; // height of a picture, in rows of Grafana's grid

// bundle builds the script and the style sheet of the page.
function bundle() {
  const dir = mkdtempSync(join(tmpdir(), 'pic'));
  execFileSync(find.resolve('@esbuild/linux-x64/bin/esbuild'), [
    join(here, 'page.jsx'), '--bundle', '--minify', '--jsx=automatic', `--outfile=${join(dir, 'page.js')}`,
    '--loader:.woff2=dataurl', '--loader:.woff=empty', '--loader:.svg=dataurl', '--loader:.ttf=empty',
    '--define:process.env.NODE_ENV="production"', '--define:global=window', '--log-level=error',
  ], { stdio: 'inherit' });
  const [script, style] = ['page.js', 'page.css'].map((name) => readFileSync(join(dir, name), 'utf8'));
  rmSync(dir, { recursive: true });
  return { script, style };
}

// filled waits until Prometheus has the history of all targets.
async function filled(url) {
  const wanted = before + history;
  const source = new Source(url);
  for (const until = Date.now() + 2 * wanted * 1000; Date.now() < until; await pause(500)) {
    const { result } = await source.get('query', { query: `min(count_over_time(up[${2 * wanted}s]))` });
    if (Number(result[0]?.value[1]) >= wanted) {
      return;
    }
  }
  throw new Error('Prometheus did not collect enough history');
}

// open opens a page. It serves Grafana's icons from the package and blocks all
// other requests.
async function open(browser, { script, style }) {
  const page = await browser.newPage({ viewport: { width, height: 800 } });
  page.on('pageerror', (err) => { throw err; });
  const icons = join(dirname(find.resolve('@grafana/ui/package.json')), 'dist');
  await page.route('**/*', (route) => {
    const { pathname } = new URL(route.request().url());
    return pathname === '/'
      ? route.fulfill({ contentType: 'text/html', body: '<!doctype html><meta charset="utf-8"><body>' })
      : pathname.startsWith('/public/img/') ? route.fulfill({ path: join(icons, pathname) }) : route.abort();
  });
  await page.goto('http://pictures.invalid/');
  await page.addStyleTag({ content: style });
  await page.addScriptTag({
    content: `window.__grafana_public_path__ = '/public/'; window.grafanaBootData = { settings: {} };`,
  });
  await page.addScriptTag({ content: script });
  return page;
}

// smaller reduces a picture to 256 colours, which halves its size.
function smaller(png) {
  const { buffer, byteOffset, byteLength } = png;
  const decoded = UPNG.decode(buffer.slice(byteOffset, byteOffset + byteLength));
  return Buffer.from(UPNG.encode(UPNG.toRGBA8(decoded), decoded.width, decoded.height, 256));
}

// take draws a dashboard and takes its picture. It returns the kinds of panels
// for which Grafana publishes no component.
async function take(browser, bundled, source, dashboard, mode, path) {
  const set = await source.variables(dashboard);
  let panels = dashboard.panels.filter((p) => p.gridPos.y + p.gridPos.h <= rows);
  while (panels.at(-1).type === 'row') {
    panels.pop();
  }
  for (const p of panels) {
    p.answers = await source.answer(p, set);
  }
  const times = [];
  for (let t = source.from; t <= source.to; t += source.step) {
    times.push(t * 1000);
  }
  const page = await open(browser, bundled);
  const ours = await page.evaluate((model) => window.draw(model), {
    title: dashboard.title, description: dashboard.description, panels, set, width, mode,
    span: { from: source.from * 1000, to: source.to * 1000, times },
  });
  // Tables draw only the rows in view.
  await page.setViewportSize({ width, height: await page.evaluate(() => document.documentElement.scrollHeight) });
  await page.waitForFunction(() => window.settled());
  await page.waitForLoadState('networkidle');
  writeFileSync(path, smaller(await page.screenshot({ animations: 'disabled' })));
  await page.close();
  return ours;
}

const bundled = bundle();
const out = join(root, 'docs/pictures');
mkdirSync(out, { recursive: true });
const servers = await start(root);
try {
  await filled(servers.url);
  const to = Math.floor(Date.now() / 1000);
  const source = new Source(servers.url, to - history, to);
  const browser = await chromium.launch({
    executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium',
    args: ['--headless', '--no-sandbox', '--disable-gpu', '--disable-background-networking'],
  });
  try {
    for (const file of readdirSync(join(here, '..')).filter((name) => /^gpusteward-.*\.json$/.test(name))) {
      const [, name] = file.match(/^gpusteward-(.*)\.json$/);
      for (const mode of name === 'fleet' ? ['dark', 'light'] : ['dark']) {
        const picture = `dashboard-${name}${mode === 'light' ? '-light' : ''}.png`;
        const dashboard = JSON.parse(readFileSync(join(here, '..', file)));
        const ours = await take(browser, bundled, source, dashboard, mode, join(out, picture));
        const note = ours.length ? `; not drawn by Grafana's components: ${ours.join(', ')}` : '';
        console.log(`docs/pictures/${picture}${note}`);
      }
    }
  } finally {
    await browser.close();
  }
} finally {
  await servers.stop();
}
