// Package schedule shares one GPU's time among tenants: turns in virtual time,
// as long as more than one of them wants the GPU and it is saturated. Who goes
// first is a matter of class, then of weight. It is pure: no clock, no input or
// output; whoever drives it hands in the time.
package schedule

import (
	"slices"
	"strings"
	"time"
)

// A Class says who goes first among those who want the GPU.
type Class int8

// The classes.
const (
	Idle     Class = -1 // only where nobody else wants the GPU
	Normal   Class = 0  // by weight
	Realtime Class = 1  // at once, as long as its limit leaves it something
)

// A Share is what a tenant may use of one GPU.
type Share struct {
	Weight float64 // its part beside other tenants' weights; 0 is 1
	Limit  float64 // of the GPU's time, 0 to 1, even when nobody else wants it; 0 and 1 are none
	Class  Class
	Wait   time.Duration // a wait for a turn that is longer is late; 0 none is
	Held   bool          // it gets no turns, and nobody counts that as waiting
}

// clean returns s with what cannot be meant replaced by none. The bounds keep
// virtual time within a float's precision for years. Who could go first without
// a limit would leave the others nothing.
func (s Share) clean() Share {
	if !(s.Weight > 0) {
		s.Weight = 1
	}
	if !(s.Limit > 0 && s.Limit < 1) {
		s.Limit = 1
	}
	s.Weight = min(max(s.Weight, 1e-3), 1e6)
	s.Limit = max(s.Limit, 1e-3)
	s.Class = min(max(s.Class, Idle), Realtime)
	if s.Class == Realtime && s.Limit == 1 {
		s.Class = Normal
	}
	return s
}

// A Config holds the lengths that a GPU is shared by. What is 0 is its default.
type Config struct {
	Turn    time.Duration // the longest turn beside others: 10 ms
	Round   time.Duration // in which everybody who wants gets a turn: 100 ms
	Minimum time.Duration // what nobody is interrupted before: 2 ms
	Drain   time.Duration // how long a paused tenant's last kernels are waited for: 50 ms
}

// Usage is what a tenant's processes say they did. It is a hint: the charge is
// bounded by the scheduler's own clock.
type Usage struct {
	Turn     uint64        // that it was done in
	Busy     time.Duration // first launch to last completion
	Launched uint64        // kernels
	Marks    uint32        // markers that completed
	Behind   uint32        // of them, how many the GPU reached late
}

// A Mode is what a tenant's processes may do; the numbers are the page's.
type Mode uint32

// What the page can say of a slot.
const (
	Open  Mode = iota // launch at will
	Run               // launch, with little queued
	Pause             // do not launch
)

// A State is what holds for one tenant.
type State struct {
	Mode  Mode
	Watch bool          // Open beside others: Report every 100 ms
	Turn  uint64        // a new number with each turn
	End   time.Duration // of the turn, unless it is extended; 0 open
}

// A GPU shares the time of one. It belongs to one goroutine. Times are from
// any monotonic clock; one that is earlier than the last is taken for the last.
//
// Inputs (Join, Leave, Change, Ask, Yield, Report) only take note: Decide draws
// the conclusions, and State then says them.
type GPU struct {
	config   Config
	now      time.Duration
	tenants  []*tenant // by name
	sessions int
	floors   [3]float64 // virtual time of who is furthest behind in each class: it never goes back
	turns    uint64

	on       []*tenant     // who have the GPU: one in a turn, several together
	granted  time.Duration // to on
	settled  time.Duration // until when on is charged
	end      time.Duration // of the turn; 0 open
	draining bool          // on is paused, and waited for
	deadline time.Duration // of the drain

	together trial
	system   System
}

// A tenant is the book of one.
type tenant struct {
	name     string
	share    Share
	sessions int
	wants    bool
	began    bool // to want, since the last Decide
	opened   bool // this turn was, for a part, without markers
	state    State
	use      Usage // in this turn

	v      float64       // charged seconds by weight
	burst  time.Duration // what is left of the predicted one; 0 unknown
	bucket time.Duration // what the limit leaves
	dry    bool          // it was empty, and is not full enough yet
	asked  time.Duration // when it began to wait
	barred time.Duration // stats.Throttled then
	rested time.Duration // when it ceased to want
	late   time.Duration // since when it is past the drain's deadline; 0 it is not

	pace  pace
	stats Stats
	past  history
}

// New returns a GPU that nobody uses.
func New(c Config) *GPU {
	set := func(d *time.Duration, otherwise time.Duration) {
		if *d <= 0 {
			*d = otherwise
		}
	}
	set(&c.Turn, 10*time.Millisecond)
	set(&c.Round, 100*time.Millisecond)
	set(&c.Minimum, 2*time.Millisecond)
	set(&c.Drain, 50*time.Millisecond)
	return &GPU{config: c}
}

func byName(t *tenant, name string) int { return strings.Compare(t.name, name) }

// floor returns the virtual time that t is measured by. Each class has its own:
// who waits because others go first must not be what those are measured by.
func (g *GPU) floor(t *tenant) float64 { return g.floors[t.share.Class-Idle] }

// find returns the tenant of that name, nil where there is none.
func (g *GPU) find(name string) *tenant {
	i, ok := slices.BinarySearchFunc(g.tenants, name, byName)
	if !ok {
		return nil
	}
	return g.tenants[i]
}

// Join says that a session of the tenant came. The share holds for all its
// sessions.
func (g *GPU) Join(now time.Duration, name string, s Share) {
	g.advance(now)
	g.sweep()
	i, ok := slices.BinarySearchFunc(g.tenants, name, byName)
	if !ok {
		t := &tenant{name: name, share: s.clean(), state: State{Mode: Pause}, rested: g.now}
		t.v, t.bucket = g.floor(t), g.enough(t)
		g.tenants = slices.Insert(g.tenants, i, t)
	}
	t := g.tenants[i]
	if t.sessions == 0 {
		g.together.reset(g.now)
	}
	t.sessions++
	g.sessions++
	g.Change(now, name, s)
}

// Change gives a tenant another share. What it is ahead of the others or
// behind them, in GPU time, stays.
func (g *GPU) Change(now time.Duration, name string, s Share) {
	g.advance(now)
	t := g.find(name)
	if t == nil || t.share == s.clean() {
		return
	}
	old, ahead := t.share, t.v-g.floor(t)
	if s.Held {
		g.waited(t)
	}
	t.share = s.clean()
	t.v = g.floor(t) + ahead*old.Weight/t.share.Weight
	t.bucket = min(t.bucket, g.brim(t))
	if old.Limit == 1 {
		t.bucket = g.enough(t)
	}
	if t.share.Limit == 1 {
		t.dry = false
	}
	t.began = t.wants
	if old.Held && !s.Held && t.wants && !g.has(t) {
		g.wait(t)
		g.lift(t)
	}
}

// Leave says that one of the tenant's sessions went. The last one takes the
// tenant's turn with it.
func (g *GPU) Leave(now time.Duration, name string) {
	g.advance(now)
	t := g.find(name)
	if t == nil || t.sessions == 0 {
		return
	}
	t.sessions--
	g.sessions--
	if t.sessions > 0 {
		return
	}
	g.waited(t)
	t.wants, t.began, t.late, t.burst = false, false, 0, 0
	t.rested = g.now
	if g.has(t) {
		g.finish(t, wholly)
	}
	g.together.reset(g.now)
	g.sweep()
}

// sweep forgets who has no session and owes nothing. Who owes is remembered,
// so that a program is not better off for starting anew; but not too many.
func (g *GPU) sweep() {
	const most = 256
	debtors := 0
	g.tenants = slices.DeleteFunc(g.tenants, func(t *tenant) bool {
		if t.sessions > 0 {
			return false
		}
		debtors++
		return debtors > most || t.v <= g.floor(t) && (t.share.Limit == 1 || t.bucket >= g.brim(t))
	})
}

// Ask says that the tenant wants the GPU, and where it knows so, for how long
// (burst), and how long after that again (window); 0 is unknown. Nothing
// follows from the window: what a tenant does not use goes to others anyway.
func (g *GPU) Ask(now time.Duration, name string, burst, _ time.Duration) {
	g.advance(now)
	t := g.find(name)
	if t == nil || t.sessions == 0 {
		return
	}
	t.burst = max(burst, 0)
	if t.wants {
		return
	}
	rest := g.now - t.rested
	if rest <= reportTime {
		t.pace.latest.time += rest
	}
	if rest > backoffLeast {
		g.together.reset(g.now)
	}
	t.wants, t.began = true, true
	g.wait(t)
	g.lift(t)
}

// Yield says that all sessions of the tenant have drained, what they did in
// the turn, and whether they are idle: if so it wants no more until it asks
// again. Of another turn than the latest it says nothing any more.
func (g *GPU) Yield(now time.Duration, name string, u Usage, idle bool) {
	g.advance(now)
	t := g.find(name)
	if t == nil || u.Turn != t.state.Turn {
		return
	}
	g.forgive(t)
	if idle && t.wants {
		g.waited(t)
		t.wants, t.began, t.burst = false, false, 0
		t.rested = g.now
	}
	switch {
	case !g.has(t):
	case g.together.on && t.wants && !g.draining: // nobody asked it to
	default:
		t.use.add(u)
		g.finish(t, t.use.Busy)
	}
}

// Report says what the sessions of the tenant did since the last Report, or
// since the turn began.
func (g *GPU) Report(now time.Duration, name string, u Usage) {
	g.advance(now)
	t := g.find(name)
	switch {
	case t == nil || u.Turn != t.state.Turn || !g.has(t):
	case g.together.on:
		g.watch(t, u)
	default:
		t.use.add(u)
	}
}

// Wants says whether the tenant wants the GPU, as far as is known. One that
// made no launch together with others is seen to be idle without a Yield.
func (g *GPU) Wants(name string) bool {
	t := g.find(name)
	return t != nil && t.wants
}

// State returns what holds for the tenant since the last Decide. Who is
// unknown is paused.
func (g *GPU) State(name string) State {
	if t := g.find(name); t != nil {
		return t.state
	}
	return State{Mode: Pause}
}

func (u *Usage) add(more Usage) {
	u.Busy += max(more.Busy, 0)
	u.Launched += more.Launched
	u.Marks += more.Marks
	u.Behind += more.Behind
}
