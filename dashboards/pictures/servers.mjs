// Starts the servers behind the pictures: two agents on simulated hosts, one
// healthy and one with faults, and a Prometheus that scrapes both.
import { spawn } from 'node:child_process';
import { mkdirSync, mkdtempSync, openSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

// hosts maps the names in the pictures to scenarios.
const hosts = { 'gpu-01': 'mixed', 'gpu-02': 'dashboards/testdata/host.yml' };

// patience is the time in which a server must answer, in milliseconds.
const patience = 60_000;

export const pause = (ms) => new Promise((done) => setTimeout(done, ms));

// freeAddress returns an unused loopback address.
function freeAddress() {
  return new Promise((done, fail) => {
    const s = createServer().on('error', fail);
    s.listen(0, '127.0.0.1', () => {
      const { port } = s.address();
      s.close(() => done(`127.0.0.1:${port}`));
    });
  });
}

// start starts the servers, with the agent built in root. It returns the URL of
// Prometheus and a function that stops all servers.
export async function start(root) {
  const dir = mkdtempSync(join(tmpdir(), 'pic')); // short, for the sockets in it
  const children = [];
  const stop = async () => {
    children.forEach((c) => c.kill('SIGINT'));
    await Promise.all(children.map((c) => c.ended));
    rmSync(dir, { recursive: true, force: true });
  };
  const launch = async (name, address, program, args) => {
    const path = join(dir, `${name}.log`);
    const log = openSync(path, 'w');
    const child = spawn(program, args, { cwd: root, stdio: ['ignore', log, log] });
    children.push(child);
    let failure;
    child.ended = new Promise((done) => {
      child.on('error', (err) => done((failure = err)));
      child.on('exit', (code) => done((failure = `ended with ${code}: ${readFileSync(path, 'utf8').slice(-2000)}`)));
    });
    const until = Date.now() + patience;
    while (!(await fetch(`http://${address}/-/ready`).then((r) => r.ok, () => false))) {
      if (failure || Date.now() > until) {
        throw new Error(`${name}: ${failure ?? 'does not answer'}`);
      }
      await pause(50);
    }
  };
  try {
    const targets = [];
    for (const [host, scenario] of Object.entries(hosts)) {
      const address = await freeAddress();
      mkdirSync(join(dir, host));
      await launch(host, address, join(root, 'gpusteward'), [
        `--demo=${scenario}`, '--config.file=dashboards/pictures/agent.yml', `--state.dir=${join(dir, host, 'state')}`,
        `--runtime.dir=${join(dir, host)}`, `--web.listen-address=${address}`,
      ]);
      targets.push({ targets: [address], labels: { instance: host, cluster: 'demo' } });
    }
    const address = await freeAddress();
    writeFileSync(join(dir, 'prometheus.yml'), JSON.stringify({
      global: { scrape_interval: '1s', evaluation_interval: '1s' },
      rule_files: [join(root, 'alerts/*.rules.yml')],
      scrape_configs: [{ job_name: 'gpusteward', static_configs: targets }],
    }));
    await launch('prometheus', address, 'prometheus', [
      `--config.file=${join(dir, 'prometheus.yml')}`, `--storage.tsdb.path=${join(dir, 'data')}`,
      `--web.listen-address=${address}`,
    ]);
    return { url: `http://${address}`, stop };
  } catch (err) {
    await stop();
    throw err;
  }
}
