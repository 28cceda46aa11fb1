package broker

import (
	"errors"
	"testing"
	"time"

	"gpusteward/enforcer/wire"
)

func acquire(c *client) { c.send(wire.TypeAcquire, &wire.Acquire{}) }

// TestTurns passes the GPU between two tenants that always want it.
func TestTurns(t *testing.T) {
	b := start(t, Options{Turn: 5 * time.Millisecond}, nil)
	c := dial(t, b, "a", 1)
	d := dial(t, b, "b", 1)
	if turn := c.page.Turn(0); turn.Mode != wire.ModeRun || turn.Share != 500 {
		t.Errorf("who was alone is bounded: %+v", turn)
	}
	if turn := d.page.Turn(0); turn.Mode != wire.ModePause {
		t.Errorf("the newcomer begins with %+v", turn)
	}
	acquire(d)
	acquire(c)
	var last [2]uint64
	for range 5 {
		for i, pair := range [][2]*client{{d, c}, {c, d}} {
			next, holder := pair[0], pair[1]
			holder.mode(0, wire.ModePause)
			if next.page.Turn(0).Mode == wire.ModeRun {
				t.Fatal("the next has its turn before the holder has drained")
			}
			holder.yield(0, wire.WhyDrained)
			turn := next.mode(0, wire.ModeRun)
			if turn.Turn == last[i] || turn.End == 0 || turn.InFlight != 750 {
				t.Fatalf("turn %+v after %d", turn, last[i])
			}
			last[i] = turn.Turn
		}
	}
	s := b.tenant("a")
	if s.Turns < 5 || s.Launches != 50 || s.ThrottledSeconds == 0 || s.ChargedSeconds == 0 || s.WaitSeconds == 0 {
		t.Errorf("books: %+v", s)
	}
}

// TestIdle gives the GPU on at once, and takes no turn from who asks again.
func TestIdle(t *testing.T) {
	b := start(t, Options{Turn: time.Hour}, nil)
	c, d := dial(t, b, "a", 1), dial(t, b, "b", 1)
	c.yield(0, wire.WhyIdle)
	c.mode(0, wire.ModePause)
	acquire(d)
	if turn := d.mode(0, wire.ModeRun); turn.End != 0 {
		t.Errorf("who alone wants the GPU has %+v", turn)
	}
	d.yield(0, wire.WhyIdle)
	d.mode(0, wire.ModePause)
	acquire(c)
	c.mode(0, wire.ModeRun)
}

// TestTenantOfTwo has two sessions share a tenant's turn: it is over when both
// have drained.
func TestTenantOfTwo(t *testing.T) {
	b := start(t, Options{Turn: 5 * time.Millisecond}, nil)
	c, c2, d := dial(t, b, "a", 1), dial(t, b, "a", 1), dial(t, b, "b", 1)
	acquire(c2)
	c2.mode(0, wire.ModeRun)
	acquire(d)
	c.mode(0, wire.ModePause)
	c2.mode(0, wire.ModePause)
	c.yield(0, wire.WhyDrained)
	c.sync()
	b.Stats() // asks the GPU's goroutine: it knows by now
	if d.page.Turn(0).Mode == wire.ModeRun {
		t.Fatal("one of two sessions has not drained")
	}
	c2.yield(0, wire.WhyIdle)
	d.mode(0, wire.ModeRun)
	// The one that was idle has to ask before it gets the tenant's next turn.
	d.mode(0, wire.ModePause)
	d.yield(0, wire.WhyDrained)
	c.mode(0, wire.ModeRun)
	if c2.page.Turn(0).Mode != wire.ModePause {
		t.Error("who is idle has a turn")
	}
	acquire(c2)
	c2.mode(0, wire.ModeRun)
}

// TestDrainDeadline gives the turn on though nobody yields; what comes late or
// is of another turn changes nothing.
func TestDrainDeadline(t *testing.T) {
	b := start(t, Options{Turn: 5 * time.Millisecond}, nil)
	c, d := dial(t, b, "a", 1), dial(t, b, "b", 1)
	acquire(d)
	c.mode(0, wire.ModePause)
	d.send(wire.TypeYield, &wire.Usage{Why: wire.WhyDrained, Turn: c.page.Turn(0).Turn})
	d.mode(0, wire.ModeRun)
	if s := b.tenant("a"); s.OverrunSeconds < 0.03 {
		t.Errorf("overrun %v", s.OverrunSeconds)
	}
}

// TestDeathPassesTheTurn ends the holder's connection: the other one has the
// GPU at once.
func TestDeathPassesTheTurn(t *testing.T) {
	b := start(t, Options{Turn: time.Hour}, nil)
	c, d := dial(t, b, "a", 1), dial(t, b, "b", 1)
	acquire(d)
	d.sync()
	began := time.Now()
	c.close()
	d.mode(0, wire.ModeOpen)
	took := time.Since(began)
	t.Logf("the turn passed on after %v", took)
	if took > time.Second {
		t.Errorf("it took %v", took)
	}
}

// TestTwoGPUs are shared each on its own.
func TestTwoGPUs(t *testing.T) {
	b := start(t, Options{}, nil)
	c := dial(t, b, "a", 1, 2)
	d := dial(t, b, "b", 2)
	if c.page.Turn(0).Mode != wire.ModeOpen || c.page.Turn(1).Mode != wire.ModeRun || d.page.Turn(0).Mode != wire.ModePause {
		t.Errorf("%+v, %+v, %+v", c.page.Turn(0), c.page.Turn(1), d.page.Turn(0))
	}
	if !c.page.Gated() {
		t.Error("one slot of two is not open, and the page not gated")
	}
}

// TestHeartbeat is what the pages show of the broker's life.
func TestHeartbeat(t *testing.T) {
	b := start(t, Options{}, func(b *Broker) { b.timing.beat = time.Millisecond })
	c := dial(t, b, "a", 1)
	was := c.page.Heartbeat()
	if now := uint64(newClock().now()); was == 0 || was > now {
		t.Errorf("heartbeat at %d, now it is %d", was, now)
	}
	eventually(t, "another heartbeat", func() bool { return c.page.Heartbeat() > was })
}

// TestStale has a session fall silent: it keeps its memory, loses its turn and
// its wish, and has both again when it speaks.
func TestStale(t *testing.T) {
	b := start(t, Options{Turn: time.Hour}, func(b *Broker) {
		b.timing.beat, b.timing.stale = time.Millisecond, 100*time.Millisecond
	})
	c, d := dial(t, b, "a", 1), dial(t, b, "b", 1)
	c.take(5)
	stop := speak(d)
	eventually(t, "a session is stale", func() bool { return b.Stats().Sessions["stale"] == 1 })
	if c.page.Turn(0).Mode != wire.ModePause || b.tenant("a").MemoryUsed != 5 {
		t.Errorf("%+v, %+v", c.page.Turn(0), b.Stats())
	}
	acquire(d)
	d.mode(0, wire.ModeRun)
	stop()
	// Its wish is remembered: when it speaks again it gets a turn.
	defer speak(c)()
	c.mode(0, wire.ModeRun)
	eventually(t, "the other one is stale", func() bool { n := b.Stats().Sessions; return n["stale"] == 1 && n["active"] == 1 })
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

// TestAloneAgain opens the GPU for who is left.
func TestAloneAgain(t *testing.T) {
	b := start(t, Options{}, nil)
	c := dial(t, b, "a", 1)
	d := dial(t, b, "b", 1)
	d.close()
	c.mode(0, wire.ModeOpen)
	c.until(0, "all of the GPU", func(turn wire.Turn) bool { return turn.Share == 1000 })
	if c.page.Gated() {
		t.Error("alone again, and gated")
	}
}

// TestReloadKeepsTheWish moves a session that waits to another tenant: it does
// not ask again, and gets its turn.
func TestReloadKeepsTheWish(t *testing.T) {
	b := start(t, Options{Turn: 5 * time.Millisecond}, nil)
	c, d := dial(t, b, "a", 1), dial(t, b, "b", 1)
	acquire(d)
	d.sync()
	b.Reload(book{who: func(Facts, string) (string, error) { return "c", nil }})
	acquire(d) // says nothing new
	c.mode(0, wire.ModeRun)
	d.mode(0, wire.ModeRun)
}

func TestReload(t *testing.T) {
	b := start(t, Options{}, nil)
	c, d := dial(t, b, "a", 1), dial(t, b, "b", 1)
	c.take(70)
	b.Reload(book{func(_ Facts, wished string) (string, error) {
		if wished == "a" {
			return "a2", nil
		}
		return "", errors.New("not you") // whatever b wishes
	}, map[string]Quota{"a2": {Weight: 3, Memory: 100}}})
	h, payload := c.receive()
	var m wire.Memory
	if h.Type == wire.TypeLimitsChanged {
		m.Decode(payload)
	}
	if m.Bytes != 100 {
		t.Errorf("%s %+v", h.Type, m)
	}
	if used, limit := c.page.Memory(0); used != 70 || limit != 100 || c.page.Turn(0).Share != 750 {
		t.Errorf("the page says %d of %d, %+v", used, limit, c.page.Turn(0))
	}
	if typ, m := c.reserve(31); typ != wire.TypeDeny || m.Bytes != 30 {
		t.Errorf("%s %+v", typ, m)
	}
	if s := b.tenant("a2"); s.Weight != 3 || s.MemoryUsed != 70 || s.Sessions != 1 || b.tenant("a").MemoryUsed != 0 {
		t.Errorf("books: %+v", b.Stats().Tenants)
	}
	if h, _ := d.receive(); h.Type != wire.TypeNotice {
		t.Errorf("%s instead of a notice", h.Type)
	}
	d.sync()
	if s := b.tenant("b"); s.Sessions != 1 {
		t.Errorf("who is refused now is not what it was: %+v", s)
	}
	d.until(0, "part of a turn", func(turn wire.Turn) bool { return turn.Share == 250 })
}

// TestTogether shows two tenants whose kernels are never late as open and
// watched, and pauses both when one of them reports that its are.
func TestTogether(t *testing.T) {
	b := start(t, Options{Turn: 5 * time.Millisecond}, nil)
	c, d := dial(t, b, "a", 1), dial(t, b, "b", 1)
	use := runTogether(t, c, d)
	if c.page.Turn(0).Mode != wire.ModeOpen || d.page.Turn(0).Mode != wire.ModeOpen || !c.page.Gated() {
		t.Errorf("%+v, %+v", c.page.Turn(0), d.page.Turn(0))
	}
	use(c, wire.TypeUsage, 0, 60)
	c.mode(0, wire.ModePause)
	d.mode(0, wire.ModePause)
	use(c, wire.TypeYield, wire.WhyDrained, 0)
	c.sync()
	b.Stats()
	if c.page.Turn(0).Mode == wire.ModeRun || d.page.Turn(0).Mode == wire.ModeRun {
		t.Error("a turn begins before both have drained")
	}
	use(d, wire.TypeYield, wire.WhyDrained, 0)
	eventually(t, "one has a turn", func() bool { return c.page.Turn(0).Mode == wire.ModeRun || d.page.Turn(0).Mode == wire.ModeRun })
}

// TestRestsTogether shows that a tenant which was found idle while it ran
// together with another gets the GPU when it asks again.
func TestRestsTogether(t *testing.T) {
	b := start(t, Options{Turn: 5 * time.Millisecond}, nil)
	c, d := dial(t, b, "a", 1), dial(t, b, "b", 1)
	runTogether(t, c, d)
	for c.page.Turn(0).Mode != wire.ModePause { // reports of launches from d alone
		d.send(wire.TypeUsage, &wire.Usage{Turn: d.page.Turn(0).Turn, Launched: 100, Marks: 10})
		c.send(wire.TypeUsage, &wire.Usage{Turn: c.page.Turn(0).Turn})
		d.page.Wait(d.page.Bell(), int64(20*time.Millisecond))
	}
	c.send(wire.TypeYield, &wire.Usage{Why: wire.WhyDrained, Turn: c.page.Turn(0).Turn})
	d.sync()
	acquire(c)
	d.send(wire.TypeYield, &wire.Usage{Why: wire.WhyIdle, Turn: d.page.Turn(0).Turn})
	c.until(0, "a turn", func(turn wire.Turn) bool { return turn.Mode != wire.ModePause })
}

// runTogether has two tenants ask, and take turns as those do whose kernels
// are never late, until they run together. It returns how to tell of them.
func runTogether(t *testing.T, c, d *client) func(c *client, typ wire.Type, why wire.Why, behind uint32) {
	t.Helper()
	use := func(c *client, typ wire.Type, why wire.Why, behind uint32) {
		now := newClock().now()
		c.send(typ, &wire.Usage{Why: why, Turn: c.page.Turn(0).Turn, First: uint64(now - 5*time.Millisecond), Last: uint64(now),
			Launched: 100, Marks: 60, Behind: behind})
	}
	acquire(c)
	acquire(d)
	together := func() bool { return c.page.Turn(0).Flags == wire.Watch && d.page.Turn(0).Flags == wire.Watch }
	for limit, yielded := time.Now().Add(patience), [2]uint64{}; !together(); {
		if time.Now().After(limit) {
			t.Fatal("they never run together")
		}
		for i, x := range []*client{c, d} {
			bell := x.page.Bell()
			turn := x.page.Turn(0)
			if turn.Mode == wire.ModePause && turn.Turn != yielded[i] {
				yielded[i] = turn.Turn
				use(x, wire.TypeYield, wire.WhyDrained, 0)
			}
			x.page.Wait(bell, int64(time.Millisecond))
		}
	}
	return use
}
