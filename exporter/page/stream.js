// Server-sent events that reconnect: after a cut, after a refusal (which an
// EventSource takes as final), and after a page was hidden. A hidden page costs
// the agent nothing, and its browser none of six connections.

const hiddenFor = 5000; // milliseconds until a hidden page disconnects

// follow passes on the events of url. Handlers are by the event's name; open is
// called when the stream is connected.
export function follow(url, { open, events, every }) {
  let source = null;
  let again = 0;
  let hiding = 0;

  const close = () => {
    clearTimeout(again);
    source?.close();
    source = null;
  };
  const connect = () => {
    close();
    source = new EventSource(url);
    if (open) source.addEventListener("open", open);
    for (const [name, handle] of Object.entries(events)) source.addEventListener(name, (e) => handle(e.data));
    source.addEventListener("error", () => {
      if (source?.readyState === EventSource.CLOSED) again = setTimeout(connect, every);
    });
  };

  document.addEventListener("visibilitychange", () => {
    clearTimeout(hiding);
    if (document.hidden) hiding = setTimeout(close, hiddenFor);
    else if (!source) connect();
  });
  connect();
  return { retry: () => { if (source?.readyState !== EventSource.OPEN && !document.hidden) connect(); } };
}
