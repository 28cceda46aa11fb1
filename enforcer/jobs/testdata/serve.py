# A server of each kind prints its port, and the PID of what would use the GPU. It answers until a client asks for
# stop. At that request it stands where the line has a comment, "here" and a word.
import asyncio, http.server, os, socket, sys, threading
lock = threading.Lock()
lock.acquire()
silent = socket.create_server(("127.0.0.1", 0))
peer = socket.create_connection(silent.getsockname())
class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass
    def do_GET(self):
        if self.path == "/stop":
            waits()
        self.send_response(200)
        self.end_headers()
def waits_for_lock():
    lock.acquire()  # here lock
def waits_for_peer():
    peer.recv(1)  # here peer
def asks_peer():
    peer.settimeout(600)
    peer.recv(1)  # here slow peer
def flask(server):
    s = server(("127.0.0.1", 0), Handler)
    print(s.server_address[1], engine, flush=True)
    s.serve_forever()
async def serves(act):
    async def one(r, w):
        text = await r.readuntil(b"\r\n\r\n")
        if b"/stop" in text:
            await act()
        w.write(b"HTTP/1.0 200 OK\r\n\r\n")
        w.close()
    s = await asyncio.start_server(one, "127.0.0.1", 0)
    print(s.sockets[0].getsockname()[1], engine, flush=True)
    await s.serve_forever()
async def never():
    await asyncio.get_running_loop().create_future()
async def blocks():
    lock.acquire()  # here loop
engine = os.getpid()
kind = sys.argv[1]
waits = {"peer": waits_for_peer, "slow peer": asks_peer}.get(kind, waits_for_lock)
if kind in ("lock", "peer", "slow peer"):
    flask(http.server.ThreadingHTTPServer)
elif kind == "one thread":
    flask(http.server.HTTPServer)
elif kind == "await":
    asyncio.run(serves(never))  # here await
elif kind == "loop":
    asyncio.run(serves(blocks))
else:
    api, own = socket.socketpair()
    engine = os.fork()
    if engine == 0:
        own.recv(9)
        lock.acquire()  # here engine
    async def forward():
        own.close()
        await asyncio.get_running_loop().sock_sendall(api, b"request")
        await never()
    asyncio.run(serves(forward))
