// Server-sent events that come back: after a cut, after a refusal (which an
// EventSource takes for good), and after a page was hidden. A page that nobody
// sees costs the agent nothing, nor its browser one of six connections.

const hiddenFor = 5000; // milliseconds until a hidden page lets go

// follow hands on what url streams. Handlers are by the event's name; open is
// called when the stream is there.
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
