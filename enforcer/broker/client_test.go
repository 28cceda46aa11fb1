package broker

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gpusteward/internal/fixture"
	"gpusteward/internal/wire"
)

// patience is how long a test waits for an event that must come.
const patience = time.Minute

// A book is a policy with quotas by tenant; that of "" is for all others. A process is the tenant that it
// asks for, except for nobody, unless the book names its tenant.
type book struct {
	who    func(f Facts, wished string) (string, error)
	quotas map[string]Quota
}

func (b book) Tenant(f Facts, wished string) (string, error) {
	switch {
	case b.who != nil:
		return b.who(f, wished)
	case wished == "nobody":
		return "", errors.New("there is no such tenant")
	}
	return orElse(wished, "default"), nil
}

func (b book) Quota(tenant, _ string) Quota {
	if q, is := b.quotas[tenant]; is {
		return q
	}
	return b.quotas[""]
}

func (b book) Tenants() []string { return slices.Collect(maps.Keys(b.quotas)) }

// everybody returns a book with one quota for all tenants.
func everybody(q Quota) book { return book{quotas: map[string]Quota{"": q}} }

// start runs a broker until the test ends; change may be nil.
func start(tb testing.TB, o Options, change func(*Broker)) *Broker {
	tb.Helper()
	if o.Socket == "" {
		o.Socket = socket(tb)
	}
	if o.Policy == nil {
		o.Policy = book{}
	}
	o.MaxPerPID = orElse(o.MaxPerPID, 1<<20) // all clients of a test are one process
	b, err := New(o)
	fixture.Must(tb, err)
	b.timing.callsOfProcess, b.timing.callsOfUser = 1e6, 1e6
	if change != nil {
		change(b)
	}
	fixture.Running(tb, b.Run)
	return b
}

// newJob names another one each time.
func newJob(Facts) string { return fmt.Sprint(random()) }

// stopClock stops the broker's clock, so that a test sees a rate within one moment.
func (b *Broker) stopClock() {
	now := b.clock.now()
	b.clock = func() time.Duration { return now }
}

// clockThatJumps gives the broker a clock that a test can put forward.
func (b *Broker) clockThatJumps() (jump func(by time.Duration)) {
	var ahead atomic.Int64
	clock := b.clock
	b.clock = func() time.Duration { return clock() + time.Duration(ahead.Load()) }
	return func(by time.Duration) { ahead.Add(int64(by)) }
}

// socket returns a path for a socket.
func socket(tb testing.TB) string { return filepath.Join(fixture.ShortDir(tb), "s") }

// A client speaks to a broker as the hook does.
type client struct {
	tb                  testing.TB
	conn                *net.UnixConn
	flags               uint32 // of its frames
	session, seq, token uint64
	page                wire.Page
	fd                  int // of the page, if it was kept
	welcome             wire.Welcome
	in, out             [wire.FrameMax]byte
}

func connect(tb testing.TB, path string) *client {
	tb.Helper()
	conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
	fixture.Must(tb, err)
	c := &client{tb: tb, conn: conn, fd: -1}
	tb.Cleanup(c.close)
	return c
}

func (c *client) close() {
	_ = c.conn.Close()
	if c.fd >= 0 {
		_ = unix.Close(c.fd)
		c.fd = -1
	}
}

// dial opens a session of a tenant, with a context on each of the GPUs of these numbers.
func dial(tb testing.TB, b *Broker, tenant string, gpus ...byte) *client {
	tb.Helper()
	c := look(tb, b, tenant, gpus...)
	for i := range gpus {
		c.send(wire.TypeUsage, &wire.Usage{GPU: uint16(i)})
	}
	c.sync()
	return c
}

// look opens a session that has no context yet.
func look(tb testing.TB, b *Broker, tenant string, gpus ...byte) *client {
	tb.Helper()
	c := connect(tb, b.options.Socket)
	c.hello(wire.TypeHello, hello(tenant, gpus...))
	return c
}

func hello(tenant string, gpus ...byte) *wire.Hello {
	h := &wire.Hello{PID: uint32(os.Getpid()), GPUs: uint32(len(gpus)), CUDA: 13000, Unknown: 2}
	copy(h.Hook[:], "0.1")
	copy(h.Tenant[:], tenant)
	for i, g := range gpus {
		h.UUID[i] = [16]byte{15: g}
	}
	return h
}

// hello sends HELLO or RESUME and receives the WELCOME.
func (c *client) hello(t wire.Type, h *wire.Hello) {
	c.tb.Helper()
	c.send(t, h)
	header, payload := c.receive()
	if header.Type != wire.TypeWelcome {
		c.tb.Fatalf("%s instead of welcome: %s", header.Type, payload)
	}
	c.welcome.Decode(payload)
	c.session, c.token = header.Session, c.welcome.Token
	if c.fd < 0 {
		c.tb.Fatal("no page")
	}
	page, err := unix.Mmap(c.fd, 0, int(c.welcome.PageBytes), unix.PROT_READ, unix.MAP_SHARED)
	fixture.Must(c.tb, err)
	c.page = page
	c.tb.Cleanup(func() { _ = unix.Munmap(page) })
	if c.page.Session() != c.session {
		c.tb.Fatalf("the page is of session %d, not %d", c.page.Session(), c.session)
	}
}

type appender interface{ Append([]byte) []byte }

// frame returns the frame of a message; a nil message is empty.
func (c *client) frame(t wire.Type, m appender) []byte {
	c.seq++
	b := wire.Header{Type: t, Flags: c.flags, Seq: c.seq, Session: c.session}.Append(c.out[:0])
	if m != nil {
		b = m.Append(b)
	}
	return b
}

func (c *client) send(t wire.Type, m appender) {
	c.tb.Helper()
	c.write(c.frame(t, m))
}

func (c *client) write(frame []byte) {
	c.tb.Helper()
	if _, err := c.conn.Write(frame); err != nil {
		c.tb.Fatal(err)
	}
}

// next returns the next message, or io.EOF. It keeps a descriptor that comes with it.
func (c *client) next(limit time.Duration) (wire.Header, []byte, error) {
	_ = c.conn.SetReadDeadline(time.Now().Add(limit))
	var oob [64]byte
	n, o, _, _, err := c.conn.ReadMsgUnix(c.in[:], oob[:])
	if err != nil || n == 0 {
		if err == nil || errors.Is(err, unix.ECONNRESET) {
			err = io.EOF
		}
		return wire.Header{}, nil, err
	}
	if messages, err := unix.ParseSocketControlMessage(oob[:o]); err == nil && len(messages) == 1 {
		if fds, err := unix.ParseUnixRights(&messages[0]); err == nil {
			c.fd = fds[0]
		}
	}
	return wire.Decode(c.in[:n])
}

// receive returns the next message.
func (c *client) receive() (wire.Header, []byte) {
	c.tb.Helper()
	h, payload, err := c.next(patience)
	fixture.Must(c.tb, err)
	return h, payload
}

// hears expects a message of a type.
func (c *client) hears(want wire.Type) {
	c.tb.Helper()
	h, payload := c.receive()
	fixture.Equal(c.tb, h.Type, want, "the message %q", payload)
}

// ask sends a message and returns its answer, after checking its number.
func (c *client) ask(t wire.Type, m appender) (wire.Type, []byte) {
	c.tb.Helper()
	c.send(t, m)
	h, payload := c.receive()
	if h.Seq != c.seq {
		c.tb.Fatalf("%s answers %d, not %d", h.Type, h.Seq, c.seq)
	}
	return h.Type, payload
}

// reserve asks for memory of the first GPU.
func (c *client) reserve(bytes uint64) (wire.Type, wire.Memory) {
	c.tb.Helper()
	t, payload := c.ask(wire.TypeReserve, &wire.Memory{Bytes: bytes})
	var m wire.Memory
	if t == wire.TypeGrant || t == wire.TypeDeny {
		m.Decode(payload)
	}
	return t, m
}

// take reserves and commits.
func (c *client) take(bytes uint64) {
	c.tb.Helper()
	t, m := c.reserve(bytes)
	if t != wire.TypeGrant {
		c.tb.Fatalf("%d bytes: %s", bytes, t)
	}
	c.send(wire.TypeCommit, &m)
	c.sync()
}

// sync returns after the broker has handled all earlier messages.
func (c *client) sync() {
	c.tb.Helper()
	if t, p := c.ask(wire.TypePing, nil); t != wire.TypePong {
		c.tb.Fatalf("%s %q instead of pong", t, p)
	}
}

// refused expects ERR with a code.
func (c *client) refused(want wire.Code) {
	c.tb.Helper()
	h, payload := c.receive()
	var e wire.Err
	if h.Type == wire.TypeErr {
		e.Decode(payload)
	}
	if e.Code != want || len(wire.Text(e.Text[:])) == 0 {
		c.tb.Fatalf("%s with %s %q instead of err with %s", h.Type, e.Code, wire.Text(e.Text[:]), want)
	}
}

// gone expects the connection to end.
func (c *client) gone() {
	c.tb.Helper()
	for limit := time.Now().Add(patience); time.Now().Before(limit); {
		if _, _, err := c.next(patience); errors.Is(err, io.EOF) || errors.Is(err, unix.EPIPE) {
			return
		}
	}
	c.tb.Fatal("the connection goes on")
}

// until waits for a state of the page's slot, woken by the bell alone, and returns the slot.
func (c *client) until(slot int, what string, want func(wire.Turn) bool) wire.Turn {
	c.tb.Helper()
	limit := time.Now().Add(patience)
	for {
		bell := c.page.Bell()
		t := c.page.Turn(slot)
		if want(t) {
			return t
		}
		if time.Now().After(limit) {
			c.tb.Fatalf("the slot does not become %s: %+v", what, t)
		}
		c.page.Wait(bell, int64(time.Second))
	}
}

func (c *client) mode(slot int, m wire.Mode) wire.Turn {
	c.tb.Helper()
	return c.until(slot, string(rune('0'+m)), func(t wire.Turn) bool { return t.Mode == m })
}

// acquire reports work.
func (c *client) acquire(slot int) {
	c.tb.Helper()
	c.send(wire.TypeAcquire, &wire.Acquire{GPU: uint32(slot)})
}

// queue reports work, and drains whenever another session goes first.
func (c *client) queue(slot int) {
	c.tb.Helper()
	before := c.page.Turn(slot).Turn
	c.acquire(slot)
	turn := c.until(slot, "paused", func(t wire.Turn) bool { return t.Mode == wire.ModePause || t.Turn != before })
	if turn.Mode == wire.ModePause { // else its next turn has begun
		c.yield(slot, wire.WhyDrained)
	}
}

// later waits for a turn after the one of this number, which may be over by now.
func (c *client) later(slot int, turn uint64) wire.Turn {
	c.tb.Helper()
	return c.until(slot, "another turn", func(t wire.Turn) bool { return t.Turn > turn })
}

// bounded waits until the session does not have the GPU to itself.
func (c *client) bounded(slot int) {
	c.tb.Helper()
	c.until(slot, "bounded", func(t wire.Turn) bool { return t.Mode != wire.ModeOpen })
}

// yield reports that there is no more work, or that the work has drained, in the turn that the page named last.
func (c *client) yield(slot int, why wire.Why) {
	c.tb.Helper()
	c.send(wire.TypeYield, &wire.Usage{GPU: uint16(slot), Why: why, Turn: c.page.Turn(slot).Turn,
		Last: uint64(newClock().now()), Launched: 10, Overhead: 1000})
}

// drain yields whenever one of the places is paused, as the hook does, until the condition is true.
func drain(tb testing.TB, what string, is func() bool, places ...place) {
	tb.Helper()
	yielded := make([]uint64, len(places))
	eventually(tb, what, func() bool {
		for i, p := range places {
			if turn := p.page.Turn(p.slot); turn.Mode == wire.ModePause && turn.Turn != yielded[i] {
				yielded[i] = turn.Turn
				p.yield(p.slot, wire.WhyDrained)
			}
		}
		return is()
	})
}

// A place is a slot of a client's page.
type place struct {
	*client
	slot int
}

func (p place) runs() bool { return p.page.Turn(p.slot).Mode == wire.ModeRun }

// eventually polls a condition that no event announces.
func eventually(tb testing.TB, what string, is func() bool) time.Duration {
	tb.Helper()
	return fixture.Until(tb, patience, what, is)
}

// tenant returns a tenant's statistics on its only GPU.
func (b *Broker) tenant(name string) wire.TenantStats {
	for _, t := range b.Stats().Tenants {
		if t.Tenant == name {
			return t
		}
	}
	return wire.TenantStats{}
}

// first returns the statistics of the GPU with the lowest UUID.
func (b *Broker) first() wire.GPUStats { return b.Stats().GPUs[0] }

// requests returns the number of requests with a result.
func (b *Broker) requests(op, result string) uint64 {
	for _, r := range b.Stats().Requests {
		if r.Op == op && r.Result == result {
			return r.Count
		}
	}
	return 0
}
