package broker

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"gpusteward/enforcer/ledger"
	"gpusteward/enforcer/schedule"
	"gpusteward/internal/fixture"
	"gpusteward/internal/quota"
	"gpusteward/internal/wire"
)

// A live policy changes without a Reload.
type live struct{ atomic.Pointer[book] }

func (l *live) Tenant(f Facts, wished string) (string, error) { return l.Load().Tenant(f, wished) }
func (l *live) Quota(tenant, gpu string) Quota                { return l.Load().Quota(tenant, gpu) }
func (l *live) Tenants() []string                             { return l.Load().Tenants() }

// alive returns a live policy with quotas by tenant.
func alive(quotas map[string]Quota) *live {
	l := new(live)
	l.Store(&book{quotas: quotas})
	return l
}

// hold holds every tenant, or none.
func (l *live) hold(b *Broker, held bool) {
	l.Store(&book{quotas: map[string]Quota{"a": {Held: held}}})
	b.Refresh()
}

// TestHeldAlone pauses a tenant that has the GPU alone, and releases it again.
func TestHeldAlone(t *testing.T) {
	p := alive(nil)
	b := start(t, Options{Policy: p}, nil)
	c := dial(t, b, "a", 1)
	p.hold(b, true)
	turn := c.page.Turn(0)
	fixture.Stop(t, turn.Mode != wire.ModePause || !c.page.Gated(), "held, and the page says %+v", turn)
	c.take(70) // its memory is not held
	c.yield(0, wire.WhyDrained)
	c.acquire(0)
	c.sync()
	fixture.Need(t, c.page.Turn(0).Mode, wire.ModePause, "held, it asks, and the page says …")
	s := b.tenant("a")
	fixture.If(t, s.WaitSeconds != 0 || s.Waits != 0, "held: %+v", s)
	p.hold(b, false)
	fixture.Equal(t, c.page.Turn(0).Mode, wire.ModeOpen, "held no more, and the page says …")
}

// TestHeldBesideAnother pauses a tenant while it is held, and then resumes with its earlier wish.
func TestHeldBesideAnother(t *testing.T) {
	p := alive(nil)
	b := start(t, Options{Policy: p}, endless)
	c, d := dial(t, b, "a", 1), dial(t, b, "b", 1)
	d.acquire(0)
	d.sync()
	p.hold(b, true)
	drain(t, "the other runs", place{d, 0}.runs, place{c, 0})
	if turn := d.page.Turn(0); c.page.Turn(0).Mode != wire.ModePause || turn.Flags != 0 || turn.End != 0 {
		t.Errorf("the other tenants may not run: %+v", turn)
	}
	p.hold(b, false)
	d.until(0, "not alone", func(turn wire.Turn) bool { return turn.Flags != 0 || turn.Mode == wire.ModePause })
	drain(t, "it runs again", place{c, 0}.runs, place{d, 0})
}

// TestIdleWaits passes classes to the schedule: an idle tenant has the GPU only when no other tenant wants it.
func TestIdleWaits(t *testing.T) {
	b := start(t, Options{Turn: time.Millisecond, Policy: book{quotas: map[string]Quota{
		"a": {}, "b": {Quota: quota.Quota{LaunchWait: quota.Wait(time.Nanosecond)}, Class: schedule.Idle, Weight: 1e-3},
	}}}, nil)
	c, d := dial(t, b, "a", 1), dial(t, b, "b", 1)
	fixture.Equal(t, d.page.Turn(0).Share, 1, "without a broker it goes on with … of 1000")
	d.acquire(0)
	d.sync()
	if turn := c.page.Turn(0); turn.Mode != wire.ModeRun || turn.End != 0 {
		t.Errorf("for who is idle another's turn has an end: %+v", turn)
	}
	c.yield(0, wire.WhyIdle)
	d.mode(0, wire.ModeRun)
	s := b.tenant("b")
	fixture.If(t, s.Waits != 1 || s.LateWaits != 1 || s.WaitSeconds == 0, "%+v", s)
}

// TestWaitUnderWay holds that a wait counts before it ends.
func TestWaitUnderWay(t *testing.T) {
	b := start(t, Options{Policy: book{quotas: map[string]Quota{"b": {Class: schedule.Idle}}}}, nil)
	dial(t, b, "a", 1) // and keeps the GPU
	d := dial(t, b, "b", 1)
	d.acquire(0)
	d.sync()
	was := b.tenant("b").WaitSeconds
	eventually(t, "it has waited for longer", func() bool { return b.tenant("b").WaitSeconds > was+0.005 })
	fixture.Equal(t, b.tenant("b").Waits, 0, "Waits")
}

// TestRates divides a tenant's copy rate equally among its sessions.
func TestRates(t *testing.T) {
	p := alive(map[string]Quota{"a": {Link: 100, Copy: 1}})
	b := start(t, Options{Policy: p}, nil)
	c, d := dial(t, b, "a", 1), dial(t, b, "a", 2, 1)
	other := dial(t, b, "b", 1)
	for _, r := range []struct {
		what       string
		c          *client
		slot       int
		link, copy uint64
	}{{"one of two", c, 0, 50, 1}, {"the other of two", d, 1, 50, 1}, {"alone on its GPU", d, 0, 100, 1},
		{"without a rate", other, 0, 0, 0}} {
		link, copies := r.c.page.Rates(r.slot)
		fixture.If(t, link != r.link || copies != r.copy, "%s: %d, %d", r.what, link, copies)
	}
	d.close()
	eventually(t, "who is left has all", func() bool { link, _ := c.page.Rates(0); return link == 100 })
	p.Store(&book{quotas: map[string]Quota{"a": {Copy: 30}}})
	b.Refresh()
	if link, copies := c.page.Rates(0); link != 0 || copies != 30 {
		t.Errorf("after a change: %d, %d", link, copies)
	}
	c.send(wire.TypeUsage, &wire.Usage{Copied: 7})
	c.send(wire.TypeUsage, &wire.Usage{Copied: 1 << 63}) // an impossible amount
	c.sync()
	fixture.Equal(t, b.tenant("a").CopiedBytes, 7+mostBytes, "… bytes copied")
}

// TestReserved keeps memory for an absent tenant.
func TestReserved(t *testing.T) {
	var capacity atomic.Uint64
	capacity.Store(100)
	p := alive(map[string]Quota{"a": {}, "b": {Quota: quota.Quota{Reserved: 40}}})
	b := start(t, Options{Policy: p, Capacity: func(uuid string) uint64 {
		fixture.If(t, !strings.HasSuffix(uuid, "01"), "the capacity of %s is asked", uuid)
		return capacity.Load()
	}}, nil)
	c := dial(t, b, "a", 1)
	typ, m := c.reserve(61)
	fixture.If(t, typ != wire.TypeDeny || m.Bytes != 60, "61 of 100, of which 40 are another's: %s %+v", typ, m)
	c.take(60)
	d := dial(t, b, "b", 1)
	d.take(30)
	if typ, m := d.reserve(10); typ == wire.TypeGrant { // the driver has no memory left
		d.send(wire.TypeAbort, &m)
		d.sync()
	}
	s := b.tenant("b")
	fixture.If(t, s.MemoryAsked != 2 || s.MemoryMissed != 1 || s.MemoryUsed != 30, "%+v", s)
	capacity.Store(200)
	b.Refresh()
	c.take(100)
	p.Store(&book{})
	b.Refresh()
	c.take(10) // it is not reserved any more
	capacity.Store(0)
	b.Refresh()
	c.take(1000) // the GPU's size is unknown
}

// TestRefreshOfNothing holds that a refresh without a change writes and sends nothing, and repeats no refusal.
func TestRefreshOfNothing(t *testing.T) {
	p := alive(map[string]Quota{"a": {Quota: quota.Quota{Memory: 100}, Link: 5}})
	b := start(t, Options{Policy: p}, nil)
	c, d := dial(t, b, "a", 1), dial(t, b, "b", 1)
	p.Store(&book{func(_ Facts, wished string) (string, error) {
		if wished == "a" {
			return "a", nil
		}
		return "", errors.New("not you")
	}, p.Load().quotas})
	b.Refresh()
	d.hears(wire.TypeNotice)
	before := []any{c.page.Bell(), d.page.Bell(), b.tenant("a").Turns}
	for range 3 {
		b.Refresh()
	}
	after := []any{c.page.Bell(), d.page.Bell(), b.tenant("a").Turns}
	fixture.If(t, !slices.Equal(before, after), "bells and turns: %v, then %v", before, after)
	c.sync() // an earlier message would come first
	d.sync()
}

func TestSessions(t *testing.T) {
	var said fixture.Transcript
	b := start(t, Options{Logger: slog.New(slog.NewTextHandler(&said, nil)), Enforcer: func() *wire.EnforcerStats {
		return &wire.EnforcerStats{Actions: []wire.ActionStats{{Tenant: "a"}}}
	}}, nil)
	began := time.Now()
	c := dial(t, b, "a", 1, 0, 2)
	connect(t, b.options.Socket) // it has no tenant
	c.take(30)
	c.reserve(10)
	for _, c.flags = range []uint32{20_000, 0, 20_000} {
		c.send(wire.TypeUsage, &wire.Usage{})
	}
	c.flags = 0
	c.sync()
	fixture.Equal(t, strings.Count(said.String(), "gave itself longer time slices"), 1, "lines on time slices")
	all := b.Sessions()
	fixture.Need(t, len(all), 1, "%+v", all)
	s := all[0]
	want := []SessionGPU{{"GPU-00000000-0000-0000-0000-000000000001", 40, 20 * time.Millisecond},
		{"GPU-00000000-0000-0000-0000-000000000002", 0, 0}}
	fixture.If(t, s.PID != os.Getpid() || int(s.UID) != os.Getuid() || s.Tenant != "a" || s.Hook != "0.1" || s.Stale ||
		s.Since.Before(began) || s.Since.After(time.Now()) || !slices.Equal(s.GPUs, want), "%+v", s)
	e := b.Stats().Enforcer
	fixture.If(t, e == nil || len(e.Actions) != 1, "%+v", e)
	c.close()
	eventually(t, "it is gone", func() bool { return len(b.Sessions()) == 0 })
}

func TestNotice(t *testing.T) {
	b := start(t, Options{}, nil)
	c := dial(t, b, "a", 1)
	b.Notice("of another", os.Getpid()+1)
	b.Notice(strings.Repeat("you take too much ", 100), 1, os.Getpid())
	h, payload := c.receive()
	var n wire.Notice
	if h.Type == wire.TypeNotice {
		n.Decode(payload)
	}
	if text := wire.Text(n.Text[:]); !strings.HasPrefix(text, "you take too much you") || len(text) != len(n.Text)-1 {
		t.Errorf("%s %q", h.Type, text)
	}
	c.sync()
}

// TestTenantsThatComeAndGo has 300 short-lived tenants, as a batch system has
// jobs. Nothing of them remains. A tenant that may return keeps its books.
func TestTenantsThatComeAndGo(t *testing.T) {
	t.Parallel()
	stays := map[string]Quota{"stays": {Quota: quota.Quota{Memory: 1 << 30}}}
	p := alive(stays)
	b := start(t, Options{Policy: p}, nil)
	dial(t, b, "stays", 1).close()
	for i := range 300 {
		name := fmt.Sprint("job-", i)
		p.Store(&book{quotas: map[string]Quota{"stays": stays["stays"],
			name: {Quota: quota.Quota{Memory: 1 << 20, Reserved: 1 << 10}}}})
		b.Refresh()
		c := dial(t, b, name, 1)
		if i%2 == 0 { // its session ends first, or its tenant does
			c.close()
		}
		p.Store(&book{quotas: stays})
		b.Refresh()
		c.close()
	}
	eventually(t, "nobody is left", func() bool {
		b.Refresh()
		return len(b.roll.begun()) == 0 && len(b.Stats().Tenants) == 1
	})
	fixture.Equal(t, b.tenant("stays").Tenant, "stays", "a tenant that may come back")
	g := b.gpus.list()[0]
	fixture.If(t, len(g.past) != 1 || len(g.parties) != 0 || len(g.kept) != 0,
		"the GPU knows %d tenants and %d that left, and memory is kept for %d", len(g.parties), len(g.past), len(g.kept))
	for i := range 300 {
		fixture.Need(t, g.memory.Usage(fmt.Sprint("job-", i)), ledger.Usage{}, "the ledger knows job %d", i)
	}
}
