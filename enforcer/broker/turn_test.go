package broker

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"gpusteward/enforcer/schedule"
	"gpusteward/internal/fixture"
	"gpusteward/internal/quota"
	"gpusteward/internal/span"
	"gpusteward/internal/wire"
)

// endless gives drains unlimited time.
func endless(b *Broker) { b.times.scheduler = schedule.New(schedule.Config{Drain: time.Hour}) }

// inTurns has tenants run one at a time, and waits for drains; 0: as long as usual.
func inTurns(drain time.Duration) func(*Broker) {
	return func(b *Broker) { b.times.scheduler = schedule.New(schedule.Config{Drain: drain, Turns: true}) }
}

// TestTurns lets a second tenant want the GPU. Each has it alone for a while,
// to learn its pace, and not before the other has drained.
func TestTurns(t *testing.T) {
	t.Parallel()
	var b *Broker
	var c, d *client
	var before uint64
	first := wire.Turn{Mode: wire.ModePause}
	for first.Mode == wire.ModePause { // or the test stood still for longer than the turn
		b = start(t, Options{}, endless)
		c, d = dial(t, b, "a", 1), dial(t, b, "b", 1)
		if turn := d.page.Turn(0); turn.Mode != wire.ModeRun || turn.Flags != 0 || turn.End != 0 ||
			turn.InFlight != 10_000 {
			t.Errorf("the first turn of an idle tenant is %+v", turn)
		}
		fixture.Equal(t, c.page.Turn(0).Mode, wire.ModeOpen, "the turn is bounded beside an idle tenant: …")
		before = d.page.Turn(0).Turn
		d.queue(0)
		first = c.page.Turn(0)
	}
	fixture.If(t, first.Flags&wire.Haste == 0 || first.InFlight != 10_000 || first.End == 0 || first.Share != 500,
		"the turn of a tenant for which another waits is %+v", first)
	c.mode(0, wire.ModePause)
	c.sync()
	fixture.Equal(t, d.page.Turn(0).Mode, wire.ModePause, "before the other has drained, it has …")
	c.yield(0, wire.WhyDrained)
	fixture.Equal(t, d.later(0, before).Share, 500, "the share")
	if s := b.tenant("a"); s.Turns < 1 || s.Launches != 10 || s.ThrottledSeconds != 1e-6 || s.ChargedSeconds == 0 ||
		s.ServedSeconds == 0 || s.WantedSeconds == 0 {
		t.Errorf("books: %+v", s)
	}
	s := b.tenant("b")
	fixture.If(t, s.Turns < 2 || s.Waits == 0 || s.WaitSeconds == 0, "books: %+v", s)
	fixture.Equal(t, b.first().Preempted, 2, "books: …")
	d.yield(0, wire.WhyIdle)
	c.until(0, "free again", func(turn wire.Turn) bool {
		return turn.Mode == wire.ModeRun && turn.Flags == 0 && turn.End == 0 && turn.InFlight == 10_000
	})
}

// A tenant beside one whose launches must not wait may queue little, even if
// the latter is idle. The urgent tenant's own queue is not limited by that.
func TestUrgent(t *testing.T) {
	b := start(t, Options{InFlight: 300 * time.Microsecond, Turn: 5 * time.Millisecond,
		Policy: book{quotas: map[string]Quota{"a": {},
			"b": {Quota: quota.Quota{LaunchWait: quota.Wait(time.Millisecond)}}}}}, nil)
	c := dial(t, b, "a", 1)
	if turn := c.page.Turn(0); turn.Mode != wire.ModeOpen || turn.InFlight != 5_000 {
		t.Errorf("alone: %+v", turn)
	}
	d := dial(t, b, "b", 1)
	c.until(0, "little", func(turn wire.Turn) bool { return turn.Mode == wire.ModeRun && turn.InFlight == 300 })
	fixture.Equal(t, d.page.Turn(0).InFlight, 5_000, "the turn of a tenant that must not wait: …")
}

// TestIdleNeighbours holds that idle neighbours cost nothing, and those with a past wish no more.
func TestIdleNeighbours(t *testing.T) {
	t.Parallel()
	b := start(t, Options{}, nil)
	c := dial(t, b, "a", 1)
	c.acquire(0)
	c.sync()
	was := c.page.Bell()
	var d *client
	for i := range 5 {
		d = dial(t, b, fmt.Sprint("b", i), 1)
	}
	turn := c.page.Turn(0)
	fixture.If(t, turn.Mode != wire.ModeOpen || turn.Share != 1000 || c.page.Gated() ||
		c.page.Bell() != was, "beside who wants nothing: %+v", turn)
	d.acquire(0)
	c.bounded(0)
	d.yield(0, wire.WhyIdle)
	c.mode(0, wire.ModeOpen)
	s := b.tenant("a")
	fixture.If(t, s.Turns > 2 || s.Overruns != 0, "books: %+v", s)
}

// TestAlone checks that a session without a context does not count as present.
func TestAlone(t *testing.T) {
	b := start(t, Options{}, nil)
	c, d := dial(t, b, "a", 1), look(t, b, "b", 1)
	d.sync()
	if c.page.Turn(0).Share != 1000 || c.page.Gated() || d.page.Turn(0).Mode != wire.ModeOpen || d.page.Gated() ||
		b.tenant("b").Tenant != "" {
		t.Errorf("%+v, %+v, %+v", c.page.Turn(0), d.page.Turn(0), b.tenant("b"))
	}
	d.acquire(0) // USAGE makes no difference
	c.bounded(0)
	eventually(t, "it wants it", func() bool { s := b.tenant("b"); return s.Sessions == 1 && s.WantedSeconds > 0 })
	d.close()
	c.until(0, "all of the GPU", func(turn wire.Turn) bool { return turn.Mode == wire.ModeOpen && turn.Share == 1000 })
	fixture.Equal(t, c.page.Gated(), false, "alone again, and gated")
}

// TestTenantOfTwo pauses two sessions of a tenant together. The other tenant waits for those of them that had work.
func TestTenantOfTwo(t *testing.T) {
	t.Parallel()
	b := start(t, Options{Policy: book{quotas: map[string]Quota{"b": {Weight: 3}}}}, endless)
	c, c2, d := dial(t, b, "a", 1), dial(t, b, "a", 1), dial(t, b, "b", 1)
	d.queue(0)
	c.mode(0, wire.ModePause)
	c2.mode(0, wire.ModePause)
	// it is let launch to drain
	drain(t, "it is said twice", func() bool { return b.tenant("a").Launches >= 20 }, place{c, 0})
	fixture.Stop(t, d.page.Turn(0).Mode == wire.ModeRun, "one of two sessions has not drained")
	drain(t, "both have drained", place{d, 0}.runs, place{c, 0}, place{c2, 0})
	c2.yield(0, wire.WhyIdle)
	d.yield(0, wire.WhyIdle)
	c.mode(0, wire.ModeRun) // it still wants the GPU
	d.acquire(0)
	c.mode(0, wire.ModePause)
	drain(t, "who had work has drained", place{d, 0}.runs, place{c, 0})
}

// contended starts a broker whose tenant a has the GPU, and is to drain for b.
func contended(t *testing.T, change func(*Broker)) (b *Broker, c, d *client) {
	t.Helper()
	b = start(t, Options{}, change)
	c, d = dial(t, b, "a", 1), dial(t, b, "b", 1)
	c.acquire(0)
	c.sync()
	d.queue(0)
	c.mode(0, wire.ModePause)
	return b, c, d
}

// TestUndrained checks that a drain report about another turn or another tenant, or a repeated one, lets nobody run.
func TestUndrained(t *testing.T) {
	_, c, d := contended(t, inTurns(time.Hour))
	before, turn := d.page.Turn(0).Turn, c.page.Turn(0).Turn
	c.yield(0, wire.WhyUndrained)
	c.send(wire.TypeYield, &wire.Usage{Why: wire.WhyDrained, Turn: turn + 1})
	c.send(wire.TypeYield, &wire.Usage{Turn: turn})
	c.sync()
	d.send(wire.TypeYield, &wire.Usage{Why: wire.WhyDrained, Turn: turn})
	d.sync()
	fixture.Equal(t, d.page.Turn(0).Mode, wire.ModePause, "the next tenant's mode while no session has drained")
	c.yield(0, wire.WhyDrained)
	d.later(0, before)
}

// TestDrainDeadline lets the next tenant run even if the paused one does not drain; the delay is charged.
func TestDrainDeadline(t *testing.T) {
	t.Parallel()
	b, _, d := contended(t, inTurns(0))
	d.mode(0, wire.ModeRun)
	fixture.AtLeast(t, b.tenant("a").Overruns, 1, "overruns")
	eventually(t, "it is charged", func() bool { return b.tenant("a").OverrunSeconds > 0.005 })
}

// TestSilentTurn refuses another turn to a tenant that was silent in its turn, such as a stopped one, until
// it speaks again. This also holds if it missed its turn and does not report that.
func TestSilentTurn(t *testing.T) {
	t.Parallel()
	b, c, d := contended(t, inTurns(0))
	d.mode(0, wire.ModeRun)
	turns := b.tenant("a").Turns
	end := time.Now().Add(500 * time.Millisecond)
	drain(t, "half a second has passed", func() bool { return time.Now().After(end) }, place{d, 0})
	if s := b.tenant("a"); s.Turns != turns || s.Overruns != 1 {
		t.Errorf("the silent tenant had %d turns, and the broker waited for it %d times", s.Turns-turns, s.Overruns)
	}
	before := c.page.Turn(0).Turn
	c.sync()
	drain(t, "who is heard of has a turn", func() bool { return c.page.Turn(0).Turn > before }, place{d, 0})
}

// TestStoppedTurn charges a tenant that is stopped with work on the GPU until it
// goes on and has drained. The other one has the GPU meanwhile.
func TestStoppedTurn(t *testing.T) {
	t.Parallel()
	proc := t.TempDir()
	self := filepath.Join(proc, strconv.Itoa(os.Getpid()))
	fixture.Must(t, os.Mkdir(self, 0o755))
	for _, name := range []string{"status", "cgroup", "stat"} {
		text := fixture.Value(os.ReadFile("/proc/self/" + name))(t)
		if i := bytes.LastIndexByte(text, ')'); name == "stat" {
			text[i+2] = 'T'
		}
		fixture.Must(t, os.WriteFile(filepath.Join(self, name), text, 0o644))
	}
	b := start(t, Options{ProcFS: proc}, inTurns(0))
	c, d := dial(t, b, "a", 1), dial(t, b, "b", 1)
	c.acquire(0)
	c.sync()
	d.queue(0)
	d.mode(0, wire.ModeRun)
	fixture.Equal(t, b.tenant("a").Overruns, 1, "… overruns")
	for from := range 3 { // until it says something
		eventually(t, "it is charged", func() bool { return b.tenant("a").OverrunSeconds > 0.02*float64(from+1) })
	}
	c.sync()
	c.yield(0, wire.WhyDrained)
	c.sync()
	was := b.tenant("a").OverrunSeconds
	d.sync()
	fixture.Equal(t, b.tenant("a").OverrunSeconds, was, "it has drained, and is charged for")
}

// TestDeath ends the connection of a tenant that does not drain. The other one has the GPU without the drain.
func TestDeath(t *testing.T) {
	_, c, d := contended(t, endless)
	c.close()
	d.mode(0, wire.ModeOpen)
}

// TestTwoGPUs shares each GPU separately.
func TestTwoGPUs(t *testing.T) {
	b := start(t, Options{}, nil)
	c := dial(t, b, "a", 1, 2)
	d := dial(t, b, "b", 2)
	d.acquire(0)
	c.bounded(1)
	turn := c.page.Turn(0)
	fixture.If(t, turn.Mode != wire.ModeOpen || turn.Share != 1000, "alone on one GPU: %+v", turn)
	fixture.Equal(t, c.page.Gated(), true, "one slot of two is not open, and the page not gated")
}

// TestGang has a tenant with ranks of one communicator on two GPUs. It is paused
// on both and resumed on both, even if no other tenant wants one of them.
func TestGang(t *testing.T) {
	t.Parallel()
	b := start(t, Options{Policy: book{quotas: map[string]Quota{"b": {Weight: 3}}}}, endless)
	c, d, e := dial(t, b, "a", 1, 2), dial(t, b, "b", 1), dial(t, b, "c", 2)
	d.acquire(0)
	e.acquire(0)
	gangs := func() (n uint64) {
		for _, g := range b.Stats().GPUs {
			n += g.Gangs
		}
		return n
	}
	for slot := range uint16(2) {
		c.send(wire.TypeUsage, &wire.Usage{GPU: slot, Group: 7})
	}
	eventually(t, "it is a gang", func() bool { return gangs() > 0 })
	both := []place{{c, 0}, {c, 1}}
	drain(t, "the others run", func() bool { return place{d, 0}.runs() && place{e, 0}.runs() },
		append(both, place{d, 0}, place{e, 0})...)
	d.yield(0, wire.WhyIdle)
	e.yield(0, wire.WhyIdle)
	eventually(t, "it runs on both", func() bool { return both[0].runs() && both[1].runs() })
	e.close()
	d.acquire(0)
	held := func() bool { return c.page.Turn(0).Mode == wire.ModePause && c.page.Turn(1).Mode == wire.ModePause }
	drain(t, "it is held on both", func() bool { return held() && place{d, 0}.runs() }, append(both, place{d, 0})...)
	d.close()
	eventually(t, "alone on both", func() bool {
		return c.page.Turn(0).Mode == wire.ModeOpen && c.page.Turn(1).Mode == wire.ModeOpen
	})
	fixture.Equal(t, gangs(), 1, "… gangs were found")
}

// TestAGangHasOneOwner has sessions of a tenant name one communicator, on a GPU each.
func TestAGangHasOneOwner(t *testing.T) {
	for owners, want := range map[int64]uint64{1: 1, 2: 0} {
		var n atomic.Int64
		owner := func(Facts) string { return fmt.Sprint(n.Add(1) % owners) }
		b := start(t, Options{Owner: owner}, endless)
		for gpu := range 2 {
			c := dial(t, b, "a", byte(1+gpu))
			c.send(wire.TypeUsage, &wire.Usage{Group: 7})
			c.sync()
		}
		got := uint64(0)
		for _, g := range b.Stats().GPUs {
			got += g.Gangs
		}
		fixture.Equal(t, got, want, "gangs of %d owners", owners)
	}
}

// TestHeartbeat checks the heartbeat on the pages.
func TestHeartbeat(t *testing.T) {
	b := start(t, Options{}, func(b *Broker) { b.timing.heartbeat = time.Millisecond })
	c := dial(t, b, "a", 1)
	was := c.page.Heartbeat()
	now := uint64(newClock().now())
	fixture.If(t, was == 0 || was > now, "heartbeat at %d, now it is %d", was, now)
	eventually(t, "another heartbeat", func() bool { return c.page.Heartbeat() > was })
}

// TestStale has a session that falls silent while it has the GPU to itself. It
// keeps its memory, and does not count until it speaks.
func TestStale(t *testing.T) {
	t.Parallel()
	b := start(t, Options{}, func(b *Broker) {
		b.timing.heartbeat, b.timing.stale = time.Millisecond, 100*time.Millisecond
	})
	c, d := dial(t, b, "a", 1), dial(t, b, "b", 1)
	c.take(5)
	stop := speak(d)
	eventually(t, "a session is stale", func() bool { return b.Stats().Sessions["stale"] == 1 })
	c.mode(0, wire.ModePause)
	fixture.Equal(t, b.tenant("a").MemoryUsed, 5, "it has … bytes")
	d.acquire(0)
	d.mode(0, wire.ModeOpen)
	stop()
	// The session counts as having work until it reports otherwise, and runs when it speaks again.
	defer speak(c)()
	c.until(0, "running", func(turn wire.Turn) bool { return turn.Mode != wire.ModePause })
	eventually(t, "the other one is stale", func() bool {
		n := b.Stats().Sessions
		return n["stale"] == 1 && n["active"] == 1
	})
	c.mode(0, wire.ModeOpen)
}

// TestAbsent has a session whose process is suspended. It gets no turn although it has work and speaks, and the other
// one has the GPU to itself until the process is back. So it is with a session that takes its seat only then.
func TestAbsent(t *testing.T) {
	t.Parallel()
	b, c, d := contended(t, endless)
	for _, s := range b.roll.begun() {
		if s.tenant == "a" {
			s.setAbsent(true)
		}
	}
	fixture.If(t, !c.page.Suspended() || d.page.Suspended(),
		"the page of the suspended process does not say so, or that of the other one does")
	d.mode(0, wire.ModeOpen)
	c.sync()
	c.acquire(0)
	if turn := d.page.Turn(0); turn.Mode != wire.ModeOpen || c.page.Turn(0).Mode != wire.ModePause {
		t.Errorf("while the other is suspended: %+v, and its own %+v", turn, c.page.Turn(0))
	}
	b.Reload(book{who: func(_ Facts, wished string) (string, error) { return wished + "2", nil }})
	d.sync()
	fixture.Equal(t, d.page.Turn(0).Mode, wire.ModeOpen, "after a change of its tenant: …")
	b.Absent(nil)
	drain(t, "it runs again", place{c, 0}.runs, place{d, 0})
}

// TestAbsentFromTheStart has a process open a session that is suspended: its first look at the page says so.
func TestAbsentFromTheStart(t *testing.T) {
	b := start(t, Options{}, endless)
	b.Absent(map[int]bool{os.Getpid(): true})
	c := dial(t, b, "a", 1)
	if !c.page.Suspended() || c.page.Turn(0).Mode != wire.ModePause {
		t.Errorf("suspended %v, %+v", c.page.Suspended(), c.page.Turn(0))
	}
	b.Absent(nil)
	c.mode(0, wire.ModeOpen)
	fixture.Equal(t, c.page.Suspended(), false, "it is still suspended")
}

// speak sends PING until stop is called.
func speak(c *client) (stop func()) {
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		frame := append([]byte(nil), c.frame(wire.TypePing, nil)...)
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				_, _ = c.conn.Write(frame)
			}
		}
	}()
	return func() { close(done); <-ended }
}

// TestReloadKeepsTheWish moves a waiting session to another tenant. It need not ask again, and is waited for.
func TestReloadKeepsTheWish(t *testing.T) {
	t.Parallel()
	b, c, d := contended(t, endless)
	b.Reload(book{who: func(_ Facts, wished string) (string, error) {
		return map[string]string{"a": "a", "b": "c"}[wished], nil
	}})
	d.acquire(0) // the same wish again
	drain(t, "it runs", place{d, 0}.runs, place{c, 0})
	eventually(t, "it wants it", func() bool { return b.tenant("c").WantedSeconds > 0 })
	fixture.If(t, b.tenant("b").Sessions != 0 || b.tenant("c").Sessions != 1, "books: %+v", b.Stats().Tenants)
}

// TestReload moves sessions to other tenants, and changes a cap.
func TestReload(t *testing.T) {
	b := start(t, Options{}, nil)
	c, d := dial(t, b, "a", 1), dial(t, b, "b", 1)
	c.take(70)
	c.acquire(0)
	d.queue(0)
	who := func(_ Facts, wished string) (string, error) {
		if wished == "a" {
			return "a2", nil
		}
		return "", errors.New("not you") // regardless of b's request
	}
	for _, limit := range []uint64{100, 80} {
		b.Reload(book{who, map[string]Quota{"a2": {Quota: quota.Quota{Memory: limit}, Weight: 3}}})
		h, payload := c.receive()
		var m wire.Memory
		if h.Type == wire.TypeLimitsChanged {
			m.Decode(payload)
		}
		fixture.Equal(t, m.Bytes, limit, "%s … bytes", h.Type)
		if used, most := c.page.Memory(0); used != 70 || most != limit || c.page.Turn(0).Share != 750 {
			t.Errorf("the page says %d of %d, %+v", used, most, c.page.Turn(0))
		}
		if typ, m := c.reserve(limit - 69); typ != wire.TypeDeny || m.Bytes != limit-70 {
			t.Errorf("%s %+v", typ, m)
		}
	}
	if s := b.tenant("a2"); s.Weight != 3 || s.MemoryUsed != 70 || s.Sessions != 1 || b.tenant("a").MemoryUsed != 0 {
		t.Errorf("books: %+v", b.Stats().Tenants)
	}
	d.hears(wire.TypeNotice)
	d.sync()
	fixture.Equal(t, b.tenant("b").Sessions, 1, "after the notice, b's books are …, want 1 session")
	d.until(0, "a part of the GPU", func(turn wire.Turn) bool { return turn.Share == 250 })
}

// TestUsage adds up the usage that a tenant's sessions report. Some values are totals since their begin.
func TestUsage(t *testing.T) {
	b := start(t, Options{}, nil)
	c, d := dial(t, b, "a", 1), dial(t, b, "a", 1)
	for _, u := range []struct {
		c *client
		u wire.Usage
	}{
		{c, wire.Usage{Passed: 3, Errors: 1, Uncounted: 10, Longest: 5e6, Launched: 1}},
		{d, wire.Usage{Slice: 500, Refused: 1, Passed: 2, Uncounted: 1, Longest: 2e6, Launched: 2, Overhead: 1e6}},
		{c, wire.Usage{Passed: 4, Errors: 3, Uncounted: 10, Launched: 4, Refused: 2}},
		{c, wire.Usage{Passed: 1}}, // a smaller total counts as no change
	} {
		u.c.send(wire.TypeUsage, &u.u)
		u.c.sync()
	}
	if s := b.tenant("a"); s.GatePassed != 6 || s.GateErrors != 3 || s.Uncounted != 11 || s.LongestSeconds != 0.005 ||
		s.Launches != 7 || s.ThrottledSeconds != 0.001 {
		t.Errorf("books: %+v", s)
	}
	if s := b.tenant("a"); s.SlicesRefused != 3 || s.SliceSeconds != 0 { // c has another slice than d
		t.Errorf("%d refusals of slices, slice %v s", s.SlicesRefused, s.SliceSeconds)
	}
	c.send(wire.TypeUsage, &wire.Usage{Slice: 500})
	c.sync()
	fixture.Equal(t, b.tenant("a").SliceSeconds, 0.0005, "slice … s")
	c.send(wire.TypeUsage, &wire.Usage{Longest: 1 << 63}) // an impossible length
	c.sync()
	fixture.Equal(t, b.tenant("a").LongestSeconds, 60, "a launch of … s")
}

// TestBooksOutliveTheScheduleOfATenant holds that the books continue when the tenant returns, even if the schedule has forgotten it.
func TestBooksOutliveTheScheduleOfATenant(t *testing.T) {
	b := start(t, Options{}, nil)
	for range 3 {
		c := dial(t, b, "a", 1)
		c.yield(0, wire.WhyIdle)
		c.close()
		eventually(t, "it has left", func() bool { // without reading the books
			b.times.mu.Lock()
			defer b.times.mu.Unlock()
			return len(b.times.gpus[0].parties) == 0
		})
	}
	s := b.tenant("a")
	fixture.If(t, s.Turns != 3 || s.Launches != 30, "books: %+v", s)
}

const traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"

// traced starts a broker whose spans are all recorded, and returns those of a name.
func traced(t *testing.T, change func(*Broker)) (*Broker, func(name string) []span.Span) {
	t.Helper()
	r := span.New()
	r.Set(1)
	b := start(t, Options{Spans: r, Policy: everybody(Quota{Quota: quota.Quota{Memory: 100}})}, change)
	return b, func(name string) []span.Span {
		return slices.DeleteFunc(r.Read(0).Spans, func(s span.Span) bool { return s.Name != "broker."+name })
	}
}

// say writes a traceparent into a HELLO.
func say(h *wire.Hello, traceparent string) *wire.Hello {
	for i := range len(traceparent) {
		h.UUID[wire.CallerAt+i/16][i%16] = traceparent[i]
	}
	return h
}

// TestASessionJoinsItsCallersTrace has a program whose environment has a traceparent, and programs that lie.
func TestASessionJoinsItsCallersTrace(t *testing.T) {
	b, spans := traced(t, (*Broker).stopClock)
	c := connect(t, b.options.Socket)
	h := say(hello("a", 1), traceparent)
	h.Old, h.Token, h.Committed[0] = 4711, 4711, 10 // of an earlier broker
	c.hello(wire.TypeResume, h)
	_, _ = c.reserve(60)
	_, _ = c.reserve(60)
	c.send(wire.TypeReserve, &wire.Memory{GPU: 1})
	c.refused(wire.CodeGPU)
	for i, want := range []struct {
		name, failed string
		bytes, uuid  any
	}{{"resume", "", nil, nil}, {"reserve", "", uint64(60), b.first().GPU}, {"reserve", "denied", uint64(60), b.first().GPU},
		{"reserve", "gpu", uint64(0), nil}} {
		s := spans(want.name)[max(i-1, 0)]
		tags := s.Tags
		fixture.If(t, s.Parent != span.ParseParent(traceparent) || s.Failed != want.failed || tags["bytes"] != want.bytes ||
			tags["uuid"] != want.uuid || tags["tenant"] != "a" || tags["session"] != c.session, "span %d: %+v", i, s)
	}
	full := say(hello("a", 1), traceparent)
	full.GPUs = wire.CallerAt + 4
	for i, lie := range []*wire.Hello{hello("a", 1), say(hello("a", 1), `00-{tenant="b"}`), full, say(hello("nobody", 1), "zz")} {
		connect(t, b.options.Socket).send(wire.TypeHello, lie)
		eventually(t, "it is recorded", func() bool { return len(spans("hello")) > i })
		s := spans("hello")[i]
		fixture.If(t, s.Parent.ID != [8]byte{} || s.Trace == [16]byte{} || s.Trace == span.ParseParent(traceparent).Trace ||
			(s.Failed == "tenant") != (i == 3), "%d: %+v", i, s)
	}
	for range 2 * spansOfUser { // whoever asks a lot does not push out the spans of others
		_, _ = c.reserve(1000)
	}
	fixture.Equal(t, len(spans("reserve")), spansOfUser-5, "spans of RESERVE beside the five of others")
}

// TestTurnsAreSpans ends a tenant's turn when its work has drained, in time or too late.
func TestTurnsAreSpans(t *testing.T) {
	t.Parallel()
	for failed, limit := range map[string]time.Duration{"": time.Hour, "late": 0} {
		b, spans := traced(t, inTurns(limit))
		c, d := dial(t, b, "a", 1), dial(t, b, "b", 1)
		c.acquire(0)
		c.sync()
		d.queue(0)
		turn := c.mode(0, wire.ModePause).Turn
		if failed != "" {
			d.mode(0, wire.ModeRun)
		}
		is := func(s span.Span) bool {
			return s.Tags["turn"] == turn && s.Tags["tenant"] == "a" && s.Failed == failed && s.Took > 0
		}
		fixture.If(t, slices.ContainsFunc(spans("turn"), is), "%q: the span of a turn ends before its work has drained", failed)
		c.yield(0, wire.WhyDrained)
		c.sync()
		fixture.If(t, !slices.ContainsFunc(spans("turn"), is), "%q: no span of turn %d: %+v", failed, turn, spans("turn"))
	}
}
