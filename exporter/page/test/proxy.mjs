// A way to an agent that can be cut, and lead to another one: as if the agent
// had been started again on its port.

import net from "node:net";

// proxy returns one that leads to the agent at url.
export async function proxy(url) {
  let to = new URL(url);
  let bytes = 0;
  const open = new Set();
  const server = net.createServer((client) => {
    if (!to) return client.destroy();
    const agent = net.connect(Number(to.port), to.hostname);
    agent.on("data", (some) => (bytes += some.length));
    for (const [from, into] of [[client, agent], [agent, client]]) {
      open.add(from);
      from.on("error", () => into.destroy());
      from.on("close", () => open.delete(from) && into.destroy());
      from.pipe(into);
    }
  });
  await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
  return {
    url: `http://127.0.0.1:${server.address().port}`,
    cut() {
      to = null;
      for (const socket of open) socket.destroy();
    },
    bytes: () => bytes, // that came from an agent
    lead(url) {
      to = new URL(url);
    },
    close() {
      this.cut();
      server.close();
    },
  };
}
