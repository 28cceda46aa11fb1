package gemini

import (
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gpusteward/internal/fixture"
)

const soon = time.Minute // limit for events that must happen

// start runs a server on a free port of loopback until the test ends.
func start(t testing.TB, table string, o Options) *Server {
	t.Helper()
	if o.File == "" {
		o.File = filepath.Join(t.TempDir(), "table")
	}
	fixture.Must(t, os.WriteFile(o.File, []byte(table), 0o644))
	if o.Listen == "" {
		o.Listen = "127.0.0.1:0"
	}
	s := fixture.Value(New(o))(t)
	fixture.Running(t, s.Run)
	return s
}

// until waits for statistics that satisfy a condition.
func until(t testing.TB, s *Server, what string, good func(Stats) bool) {
	t.Helper()
	fixture.Until(t, soon, what, func() bool { return good(s.Stats()) })
}

// A hook is a client like Gemini's: it sends a request, then reads its answer.
type hook struct {
	t    testing.TB
	conn net.Conn
	name string
	id   int32
	in   [ResponseSize]byte
	out  []byte
}

func dial(t testing.TB, s *Server, name string) *hook {
	t.Helper()
	c := fixture.Value(net.Dial("tcp", s.address().String()))(t)
	t.Cleanup(func() { _ = c.Close() })
	return &hook{t: t, conn: c, name: name}
}

func (h *hook) send(r Request) {
	h.t.Helper()
	r.Name = []byte(h.name)
	h.out = fixture.Value(r.Append(h.out[:0]))(h.t)
	fixture.Must(h.t, fixture.Error(h.conn.Write(h.out)))
}

func (h *hook) receive(kind Kind) Response {
	h.t.Helper()
	_ = h.conn.SetReadDeadline(time.Now().Add(soon))
	if _, err := io.ReadFull(h.conn, h.in[:]); err != nil {
		h.t.Fatalf("%s: %v", h.name, err)
	}
	return DecodeResponse(kind, &h.in)
}

func (h *hook) call(r Request) Response {
	h.t.Helper()
	h.id++
	r.ID = h.id
	h.send(r)
	a := h.receive(r.Kind)
	fixture.Stop(h.t, a.ID != r.ID, "%s: answer %d to request %d", h.name, a.ID, r.ID)
	return a
}

// ended waits until the server closes the connection.
func (h *hook) ended() {
	h.t.Helper()
	_ = h.conn.SetReadDeadline(time.Now().Add(soon))
	if n, err := h.conn.Read(h.in[:]); n != 0 || err == nil || os.IsTimeout(err) {
		h.t.Fatalf("%s: %d bytes, %v; want the end", h.name, n, err)
	}
}

// silent sends a memory request that gets no answer. The next request of
// another connection of that name would otherwise be answered after it.
func (h *hook) silent(s *Server, r Request) {
	h.t.Helper()
	before := s.Stats().Unknown
	h.send(r)
	until(h.t, s, "an unknown request is seen", func(st Stats) bool { return st.Unknown > before })
	_ = h.conn.SetReadDeadline(time.Now().Add(time.Millisecond))
	n, err := h.conn.Read(h.in[:])
	fixture.Stop(h.t, n != 0 || !os.IsTimeout(err), "%s: %d bytes, %v; want silence", h.name, n, err)
}

func take(bytes uint64) Request { return Request{Kind: MemoryUpdate, Bytes: bytes, Allocate: true} }
func give(bytes uint64) Request { return Request{Kind: MemoryUpdate, Bytes: bytes} }

const two = "2\na 0.5 1 1000\nb 0.5 1 2000\n"

func TestMemoryOfAPodManager(t *testing.T) {
	t.Parallel()
	s := start(t, two, Options{})
	h := dial(t, s, "a")
	fixture.If(t, !h.call(take(600)).Granted || h.call(take(401)).Granted || !h.call(take(400)).Granted,
		"600 and 400 of 1000, but not 401")
	a := h.call(Request{Kind: MemoryLimit})
	fixture.If(t, a.Used != 1000 || a.Limit != 1000, "%+v", a)
	fixture.Equal(t, h.call(give(600)).Granted, true, "600 are not taken back")
	if h.call(give(1 << 63)); s.Stats().Overfreed != 1 || s.Stats().Tenants[0].Used != 0 {
		t.Errorf("a client frees more than it has: %+v", s.Stats())
	}
	a = dial(t, s, "b").call(Request{Kind: MemoryLimit})
	fixture.If(t, a.Used != 0 || a.Limit != 2000, "b: %+v", a)
}

func TestSchedulerKeepsNoBooks(t *testing.T) {
	s := start(t, two, Options{Role: Scheduler})
	h := dial(t, s, "a")
	fixture.Equal(t, h.call(take(5000)).Granted, true, "refused")
	a := h.call(Request{Kind: MemoryLimit})
	fixture.If(t, a.Used != 0 || a.Limit != 1000, "%+v", a)
}

func TestZeroMemoryIsNone(t *testing.T) {
	s := start(t, "1\na 0.5 1 0\n", Options{})
	fixture.Equal(t, dial(t, s, "a").call(take(1)).Granted, false, "granted")
}

func TestRepeatedChangeIsBookedOnce(t *testing.T) {
	s := start(t, two, Options{})
	h := dial(t, s, "a")
	r := take(600)
	r.ID = 7
	for range 6 {
		h.send(r)
		fixture.Stop(t, !h.receive(MemoryUpdate).Granted, "a repeated request is refused")
	}
	st := s.Stats()
	fixture.If(t, st.Tenants[0].Used != 600 || st.Duplicates != 5, "%+v", st)
	for i := range int32(memos) { // the number of remembered names is bounded
		h.send(Request{ID: 100 + i, Kind: MemoryUpdate, Bytes: 1, Allocate: true})
		h.receive(MemoryUpdate)
	}
	h.send(r)
	fixture.If(t, h.receive(MemoryUpdate).Granted, "a number from long ago is still taken for the same request")
}

func TestUnknownNames(t *testing.T) {
	s := start(t, two, Options{})
	h := dial(t, s, "nobody")
	h.silent(s, take(1))
	h.silent(s, Request{Kind: Quota})
	s = start(t, two, Options{Unknown: Deny})
	h = dial(t, s, "nobody")
	fixture.If(t, h.call(take(1)).Granted || h.call(Request{Kind: MemoryLimit}).Limit != 0, "not denied")
	h.silent(s, Request{Kind: Quota})
}

func TestTurnsOverSockets(t *testing.T) {
	t.Parallel()
	s := start(t, two, Options{Turn: 5 * time.Millisecond})
	var wg sync.WaitGroup
	var total [2]float64
	for i, name := range []string{"a", "b"} {
		h := dial(t, s, name)
		wg.Go(func() {
			for range 20 {
				a := h.call(Request{Kind: Quota})
				fixture.If(t, a.Quota <= 0 || a.Quota > 25, "%s: %v ms", name, a.Quota)
				total[i] += a.Quota
				<-time.After(time.Duration(a.Quota * float64(time.Millisecond))) // its kernels
			}
		})
	}
	wg.Wait()
	st := s.Stats()
	fixture.If(t, st.Tenants[0].Turns < 5 || st.Tenants[1].Turns < 5 || st.Requests[Quota] != 40, "%+v", st)
}

func TestSecondClientWaits(t *testing.T) {
	t.Parallel()
	s := start(t, two, Options{Turn: time.Second})
	s.mu.Lock()
	s.tokens.turn = time.Hour // a's turn is over after five seconds otherwise, before b asks on a busy machine
	s.mu.Unlock()
	b := dial(t, s, "b")
	a := spawn(t, s.address().String(), "GEMINI_TEST_TURN=1")
	a.verdict(t)
	b.send(Request{ID: 9, Kind: Quota})
	until(t, s, "b waits", func(st Stats) bool { return st.Tenants[1].Waiting == 1 })
	_ = a.Process.Kill() // its turn ends at once
	fixture.Equal(t, b.receive(Quota).ID, 9, "ID")
	fixture.Equal(t, s.Stats().Expired, 0, "the turn of who died ended by the clock: …")
}

// A client with a connection for each request closes them while its kernels run. Its turn continues.
func TestATurnOutlivesItsConnection(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]Options{"known": {Turn: 50 * time.Millisecond},
		"unseen": {Turn: 50 * time.Millisecond, ProcFS: t.TempDir()}} {
		t.Run(name, func(t *testing.T) {
			s := start(t, two, o)
			a, b := dial(t, s, "a"), dial(t, s, "b")
			began := time.Now()
			quota := time.Duration(a.call(Request{Kind: Quota}).Quota * float64(time.Millisecond))
			b.send(Request{ID: 9, Kind: Quota})
			_ = a.conn.Close()
			if b.receive(Quota); time.Since(began) < quota {
				t.Errorf("b has a turn after %v of a's %v", time.Since(began), quota)
			}
			until(t, s, "the client is forgotten once nothing tells that it lives",
				func(st Stats) bool { return name == "known" || st.Clients == 1 })
			a = dial(t, s, "a")
			a.send(Request{ID: 8, Kind: Quota})
			fixture.Equal(t, a.receive(Quota).ID, 8, "ID")
		})
	}
}

func TestWaitingClientMayHangUp(t *testing.T) {
	t.Parallel()
	s := start(t, two, Options{Turn: time.Second})
	a, b := dial(t, s, "a"), dial(t, s, "b")
	a.call(Request{Kind: Quota})
	b.send(Request{Kind: Quota})
	until(t, s, "b waits", func(st Stats) bool { return st.Tenants[1].Waiting == 1 })
	_ = b.conn.Close()
	until(t, s, "b has gone", func(st Stats) bool { return st.Tenants[1].Waiting == 0 && st.Connections == 1 })
	fixture.Equal(t, s.Stats().Tenants[1].Turns, 0, "a client that left got a turn: …")
}

func TestJunkInTime(t *testing.T) {
	s := start(t, two, Options{Turn: time.Millisecond})
	h := dial(t, s, "a")
	for _, junk := range []uint64{0x7ff8000000000001, 0x7ff0000000000000, 0xfff0000000000000, 0xffffffffffffffff, 1,
		0x7fefffffffffffff} {
		r := Request{ID: 1, Kind: Quota}
		r.Name = []byte("a")
		b, _ := r.Append(nil)
		for at := 25; at < 41; at += 8 { // both numbers
			for i := range 8 {
				b[at-1+i] = byte(junk >> (8 * i))
			}
		}
		fixture.Must(t, fixture.Error(h.conn.Write(b)))
		a := h.receive(Quota)
		fixture.If(t, !(a.Quota > 0 && a.Quota <= 5), "%x: a quota of %v ms", junk, a.Quota)
	}
}

// A manager asks for time as Gemini's pod manager does: it sends, begins to wait a little later, and reads
// the answer only after it was woken. It misses an answer that came before its wait.
type manager struct {
	*hook
	mu      sync.Mutex
	woken   *sync.Cond
	answers map[int32]bool
}

func newManager(h *hook) *manager {
	m := &manager{hook: h, answers: map[int32]bool{}}
	m.woken = sync.NewCond(&m.mu)
	go func() {
		var in [ResponseSize]byte
		for {
			if _, err := io.ReadFull(h.conn, in[:]); err != nil {
				return
			}
			m.mu.Lock()
			m.answers[DecodeResponse(Quota, &in).ID] = true
			m.woken.Broadcast()
			m.mu.Unlock()
		}
	}()
	return m
}

// ask asks for time, begins to wait after a delay, and returns when its answer wakes it.
func (m *manager) ask(after time.Duration) {
	m.id++
	m.send(Request{ID: m.id, Kind: Quota})
	for began := time.Now(); time.Since(began) < after; {
		runtime.Gosched()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for m.woken.Wait(); !m.answers[m.id]; m.woken.Wait() {
	}
	delete(m.answers, m.id)
}

// Pod managers never wait for ever. Each is the only one of its scheduler, so answers come as early as possible.
func TestAPodManagerNeverWaitsForEver(t *testing.T) {
	t.Parallel()
	const managers, requests = 8, 2000
	var group sync.WaitGroup
	var reminded atomic.Uint64
	answered := make(chan struct{}, requests)
	for range managers {
		s := start(t, two, Options{Role: Scheduler, tick: 20 * time.Millisecond})
		m := newManager(dial(t, s, "a"))
		group.Go(func() {
			for range requests / managers {
				m.ask(rand.N(100 * time.Microsecond))
				answered <- struct{}{}
			}
			reminded.Add(s.Stats().Reminded)
		})
	}
	for range requests {
		select {
		case <-answered:
		case <-time.After(soon):
			t.Fatal("one waits for ever")
		}
	}
	group.Wait()
	t.Logf("%d answers were lost and sent again", reminded.Load())
}

// A lost answer is sent again, a few times, and takes no other client's turn.
func TestALostAnswerIsSentAgain(t *testing.T) {
	t.Parallel()
	const tick = 5 * time.Millisecond
	s := start(t, two, Options{Role: Scheduler, Turn: time.Millisecond, tick: tick})
	h := dial(t, s, "a")
	h.send(Request{ID: 5, Kind: Quota})
	h.receive(Quota)
	for i := range reminders {
		again := h.receive(Quota)
		fixture.If(t, again.ID != 5 || again.Quota <= 0 || again.Quota > 2, "%d: %+v", i, again)
	}
	st := s.Stats()
	fixture.If(t, st.Reminded != reminders || st.Tenants[0].Turns != 1, "%+v", st)
	h.send(Request{ID: 6, Kind: MemoryLimit})
	fixture.Equal(t, h.receive(MemoryLimit).ID, 6, "what comes once more")
	d := dial(t, start(t, two, Options{Turn: time.Millisecond, tick: tick}), "a") // a hook loses no answer
	d.call(Request{Kind: Quota})
	_ = d.conn.SetReadDeadline(time.Now().Add(10 * tick))
	n, err := d.conn.Read(d.in[:])
	fixture.If(t, n != 0 || !os.IsTimeout(err), "a hook is answered again: %d bytes, %v", n, err)
}

func TestASchedulerAnswersInAnyOrder(t *testing.T) {
	t.Parallel()
	s := start(t, two, Options{Role: Scheduler, Turn: time.Second})
	a := dial(t, s, "a")
	a.call(Request{Kind: Quota})
	b := dial(t, s, "b")
	for id := range int32(3) {
		b.send(Request{ID: id, Kind: Quota})
	}
	b.send(Request{ID: 9, Kind: MemoryLimit})
	fixture.Equal(t, b.receive(MemoryLimit).ID, 9, "what comes first")
	a.send(Request{ID: 10, Kind: Quota}) // its turn is over
	for range 3 {
		got := b.receive(Quota)
		fixture.If(t, got.ID > 2 || got.Quota <= 0, "%+v", got)
	}
}

// The statistics name the tenants on the GPU of the table, and their processes on this host.
func TestBooks(t *testing.T) {
	t.Parallel()
	s := start(t, "2\na 0.3 0.9 1000\nb 0.7 1 2000\n", Options{File: filepath.Join(t.TempDir(), "GPU-7")})
	h := dial(t, s, "a")
	h.call(take(600))
	h.call(take(600))
	h.call(Request{Kind: Quota})
	b := s.Books()
	for ; b.Tenants[0].Share10s.Actual == 0 || b.Tenants[0].ChargedSeconds == 0; b = s.Books() {
		time.Sleep(time.Millisecond)
	}
	fixture.If(t, b.GPU != "GPU-7" || b.Listen != s.address().String() || b.Clients != 1 || b.Requests["quota"] != 1 ||
		b.Requests["memory_update"] != 2, "%+v", b)
	fixture.If(t, len(b.Processes) != 1 || b.Processes[os.Getpid()] != "gemini:a", "processes %v", b.Processes)
	n := b.Tenants[0]
	fixture.If(t, n.Tenant != "gemini:a" || n.GPU != "GPU-7" || n.Guarantee != 0.3 || n.Limit != 0.9 || n.Sessions != 1 ||
		n.Turns != 1 ||
		n.MemoryCap != 1000 || n.MemoryUsed != 600 || n.MemoryDenied != 1 || n.ChargedSeconds <= 0 ||
		n.Share10s.Actual <= 0, "%+v", n)
	if n := b.Tenants[1]; n.Tenant != "gemini:b" || n.Sessions != 0 || n.Turns != 0 || n.MemoryUsed != 0 {
		t.Errorf("%+v", n)
	}

	s = start(t, two, Options{Role: Scheduler})
	dial(t, s, "a").call(Request{Kind: MemoryLimit})
	if b := s.Books(); b.GPU != "" || b.Clients != 1 || len(b.Processes) != 0 {
		t.Errorf("a pod manager is taken for a process on the GPU: %+v", b)
	}
}

func TestBadOptions(t *testing.T) {
	dir := t.TempDir()
	good, bad := filepath.Join(dir, "good"), filepath.Join(dir, "bad")
	_ = os.WriteFile(good, []byte(two), 0o644)
	_ = os.WriteFile(bad, []byte("two\na 1 1 1\n"), 0o644)
	for want, o := range map[string]Options{
		"lacks an address or":     {File: good, Listen: ":50052"},
		"listen: ":                {File: good, Listen: "localhost"},
		"turn: 1ns":               {File: good, Turn: 1},
		"bad: line 1: \"two\" is": {File: bad, Listen: "127.0.0.1:0"},
		"no such file":            {File: filepath.Join(dir, "none"), Listen: "127.0.0.1:0"},
		"lacks an address or a":   {File: good, Listen: "127.0.0.1:"},
		"unknown port":            {File: good, Listen: "127.0.0.1:no-such-port"},
		"listen: address 70000":   {File: good, Listen: "127.0.0.1:70000"},
		"file: \"table\" is not":  {File: "table"},
		"must not be negative":    {File: good, Connections: -1},
	} {
		fixture.Fails(t, fixture.Error(New(o)), want, "%+v", o)
	}
	o := Options{File: good}
	err := o.Check()
	fixture.If(t, err != nil || o.Listen != "127.0.0.1:50052", "%+v, %v", o, err)
	o = Options{File: good, Role: Scheduler}
	err = o.Check()
	fixture.If(t, err != nil || o.Listen != "127.0.0.1:50051", "%+v, %v", o, err)
}

func TestUnusedAddressIsReported(t *testing.T) {
	t.Parallel()
	var log strings.Builder
	s := start(t, two, Options{Listen: "0.0.0.0:0", Logger: slog.New(slog.NewTextHandler(&log, nil))})
	fixture.Contains(t, log.String(), "no authentication", "the log says")
	_ = s
}
