// An agent whose states a test may change: what it serves is another agent's,
// but for the states, and they come four times a second.

import http from "node:http";

// feed returns one before the agent at url. change is given each state.
export async function feed(url, change) {
  const streams = new Set();
  const agent = { refuse: null }; // what matches this is answered with 503
  const state = async () => {
    const is = await (await fetch(`${url}/api/v1/state`)).json();
    change(is);
    return is;
  };
  const server = http.createServer(async (request, answer) => {
    if (agent.refuse?.test(request.url)) {
      answer.writeHead(503);
      return answer.end("out of order\n");
    }
    if (request.url === "/api/v1/live") {
      answer.writeHead(200, { "content-type": "text/event-stream" });
      streams.add(answer);
      answer.on("close", () => streams.delete(answer));
      return;
    }
    const from = await fetch(url + request.url, { headers: { "accept-encoding": "identity" } });
    answer.writeHead(from.status, {
      "content-type": from.headers.get("content-type"),
      "content-security-policy": from.headers.get("content-security-policy") ?? "",
    });
    if (!request.url.includes("follow=1")) return answer.end(Buffer.from(await from.arrayBuffer()));
    from.body.cancel(); // a stream in which nothing happens
    streams.add(answer);
    answer.on("close", () => streams.delete(answer));
  });
  const timer = setInterval(async () => {
    const text = `event: state\ndata: ${JSON.stringify(await state())}\n\n`;
    for (const stream of streams) stream.write(text);
  }, 250);
  await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
  return Object.assign(agent, {
    url: `http://127.0.0.1:${server.address().port}`,
    close() {
      clearInterval(timer);
      for (const stream of streams) stream.destroy();
      server.close();
    },
  });
}
