package schedule

import (
	"slices"
	"strings"
	"time"
)

// A Class decides who goes first among the tenants that want the GPU.
type Class int8

// The classes.
const (
	Idle     Class = -1 // only if nobody else wants the GPU
	Normal   Class = 0  // by weight
	Realtime Class = 1  // at once, as long as its limit leaves it something
)

// A Share is what a tenant may use of one GPU.
type Share struct {
	Weight float64 // its part beside other tenants' weights; 0 is 1
	Limit  float64 // of the GPU's time, 0 to 1, even when nobody else wants it; 0 and 1 are none
	Class  Class
	// the longest that its launches should wait: it goes first until it is
	// ahead by a turn; 0 is no objective
	Wait time.Duration
	Held bool // it gets nothing, and nobody counts that as waiting
}

// clean returns s without nonsensical values. The bounds keep sums within a
// float's precision. A tenant that goes first without a limit would leave the
// others nothing.
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

// A Config holds the lengths of turns and waits; 0 is the default.
type Config struct {
	Turn    time.Duration // of one of two equal tenants that run in turns: 10 ms
	Minimum time.Duration // nobody is interrupted sooner, except for a higher class: 2 ms
	Drain   time.Duration // the longest wait for a paused tenant's last kernels: 50 ms
	// tenants never run together, and nobody runs without a bound; a tenant
	// reports only after its turn, possibly a little late, that it wants the
	// GPU
	Turns      bool
	Slices     bool // time slices may be set
	Concurrent bool // programs run at once, as clients of CUDA MPS do: their launches are paced instead
}

// Usage is what a tenant's processes report for the time since the last Usage.
// It is a hint: a tenant that understates is owed no more than its part.
type Usage struct {
	Launched uint64        // kernels and graphs
	Solo     uint64        // of them, those that tell its lone pace: made while nobody else ran, in
	SoloTime time.Duration // so long
	Busy     time.Duration // with outstanding work; requested if nobody else is active
	Longest  time.Duration // of one launch
	Ago      time.Duration // since its last work ended; of Rest and Drained
}

// A Mode is what a tenant's processes may do; the numbers are the page's.
type Mode uint32

// Modes of a slot.
const (
	Open  Mode = iota // launch at will
	Run               // launch, with little queued
	Pause             // do not launch
)

// A State is the present decision for one tenant.
type State struct {
	Mode   Mode
	Beside bool          // others run as well: Report every 10 ms, or every second if it is open
	Haste  bool          // others wait: Rest as soon as there is nothing to do, or Report every 100 ms if it is open
	Urgent bool          // others must not wait when they come: queue little
	Late   bool          // it has not drained by the deadline, and is on this GPU alone
	Mute   bool          // it said nothing in its last turn, nor since: Hear when it is there again
	Turn   uint64        // a new number each time that it may launch again
	End    time.Duration // when others are expected to go first; 0 open
	Slice  time.Duration // time slice of its contexts; 0 the driver's default
	Pace   float64       // part of the time that its launches may take, by their lone cost; 0 all
}

// A Scheduler shares the time of the GPUs of a host. It belongs to one
// goroutine. Times are from any monotonic clock; a time before the last one
// counts as the last.
//
// Inputs (Join, Leave, Change, Hear, Want, Rest, Drained, Report) only record:
// Decide makes the decisions, and State then returns them.
type Scheduler struct {
	config Config
	gpus   []*GPU
	turns  uint64
	units  []*unit // Decide's own
}

// A GPU is one of a scheduler's.
type GPU struct {
	scheduler  *Scheduler
	domain     *domain
	now        time.Duration
	tenants    []*tenant     // by name
	weights    float64       // of those who are active
	dirty      bool          // there was an input since the last Decide
	changed    bool          // a state did, since Changed was asked
	together   bool          // those who contend gain by running together, as far as is known; else they take turns
	triedAt    time.Duration // when that was tried last
	trying     bool          // it is tried now
	tried      bool          // and nothing followed from that yet
	measured   *tenant       // runs alone, so that its lone pace is known; nil nobody does
	measuredAt time.Duration // when that began last
	freedom    freedom
	uncharged  time.Duration // of the time in which all are open
	system     System
}

// A domain is a set of GPUs with common decisions, because a gang spans them.
type domain struct {
	gpus []*GPU
	wake time.Duration // 0 not before the next input
	open bool          // all tenants are
}

// A unit runs or is held as one: a tenant on one GPU, or a gang.
type unit struct {
	members []*tenant
	rank    rank
	granted bool
	blocked bool // it is owed on its one GPU, and cannot run beside those who go before it: nobody else may pass it

	nudged time.Duration // when it was nudged last, or made
	again  time.Duration // when it may be nudged next
}

// A tenant is the account of one tenant on one GPU.
type tenant struct {
	name     string
	gpu      *GPU
	unit     *unit
	share    Share
	sessions int

	wants   bool
	assumed bool          // that it wants: it was open, and has not said what it does since
	began   time.Duration // to want
	rested  time.Duration // when it ceased to
	ever    bool          // it wanted once
	came    time.Duration // when it began to, after a long rest
	duty    float64       // part of the time in which it wants, over about a second
	burst   time.Duration // for how long it wanted last
	longest time.Duration // launch that it told of lately

	state   State
	opened  time.Duration // when it was let run last
	looked  time.Duration // up to when it was told for how long it was busy, nobody else being active
	closed  time.Duration // when that ended: it may tell of the time before a little later
	drains  bool          // it was paused, and may have work outstanding
	paused  time.Duration // since when
	held    time.Duration // the same, or since it was nudged last
	nudge   time.Duration // until when it may launch though it drains; 0 it may not
	settled bool          // its drain had its time, and others go on
	overran time.Duration // how long the others waited for it to drain, the longest since it was not ahead last
	crowded bool          // others shared the GPU when its turn began
	debt    time.Duration // what it used after its drains had their time in such turns, since it was not ahead last

	answered bool // it said something since it was let run last
	mute     bool // it said nothing, and gets no turn until it does: nobody waits again for a stopped process

	lag    time.Duration // owed; below 0 ahead
	owed   bool          // it was owed too much, and that is not made up yet
	part   float64       // of the time, by weight among active tenants
	bucket time.Duration // what the limit leaves
	dry    bool          // it was empty, and is not full enough yet

	pace    pace
	glimpse glimpse
	curb    float64 // part of its time slice, or of its pace, while all are open or that is tried; 0 all
	bill    bill
	asked   time.Duration // when it began to wait
	barred  time.Duration // stats.Throttled then
	stats   Stats
	past    history

	bond    []*tenant      // those of its unit that a communicator links to it
	doubts  map[*GPU]doubt // whether it waits for itself there
	emptied time.Duration  // when it reported last that it had no outstanding work
}

// New returns a scheduler without GPUs.
func New(c Config) *Scheduler {
	set := func(d *time.Duration, otherwise time.Duration) {
		if *d <= 0 {
			*d = otherwise
		}
	}
	set(&c.Turn, 10*time.Millisecond)
	set(&c.Minimum, 2*time.Millisecond)
	set(&c.Drain, 50*time.Millisecond)
	return &Scheduler{config: c}
}

// Add adds a GPU that nobody uses.
func (h *Scheduler) Add() *GPU {
	g := &GPU{scheduler: h, together: true}
	g.domain = &domain{gpus: []*GPU{g}}
	h.gpus = append(h.gpus, g)
	return g
}

func byName(t *tenant, name string) int { return strings.Compare(t.name, name) }

// find returns the tenant of that name, or nil.
func (g *GPU) find(name string) *tenant {
	i, ok := slices.BinarySearchFunc(g.tenants, name, byName)
	if !ok {
		return nil
	}
	return g.tenants[i]
}

// input brings the books up to now for news of a tenant; nil if no tenant of
// that name has a session.
func (g *GPU) input(now time.Duration, name string) *tenant {
	g.advance(now)
	g.dirty = true
	if t := g.find(name); t != nil && t.sessions > 0 {
		return t
	}
	return nil
}

// Silence says that a tenant that did not drain in time cannot say anything: it is
// mute until it does.
func (g *GPU) Silence(now time.Duration, name string) {
	if t := g.input(now, name); t != nil && t.settled && !t.mute {
		g.silence(t)
	}
}

// Hear says that a mute tenant is there again, without a report of its work.
func (g *GPU) Hear(now time.Duration, name string) {
	if t := g.find(name); t != nil && t.mute {
		g.hear(now, name)
	}
}

// hear is input for news that a tenant's processes told themselves.
func (g *GPU) hear(now time.Duration, name string) *tenant {
	t := g.input(now, name)
	if t == nil {
		return nil
	}
	if t.answered = true; t.mute {
		t.mute, t.state.Mute, g.changed = false, false, true
		g.wait(t)
	}
	return t
}

// Join adds a session of the tenant. The share holds for all its sessions.
func (g *GPU) Join(now time.Duration, name string, s Share) {
	g.advance(now)
	g.sweep()
	i, ok := slices.BinarySearchFunc(g.tenants, name, byName)
	if !ok {
		t := &tenant{name: name, gpu: g, share: s.clean(), state: State{Mode: Pause}}
		t.bond = []*tenant{t}
		unite(t.bond, now)
		t.bucket = g.enough(t)
		g.tenants = slices.Insert(g.tenants, i, t)
	}
	t := g.tenants[i]
	if t.sessions == 0 {
		t.ever, t.duty, t.burst = false, 0, 0
	}
	t.sessions++
	g.Change(now, name, s)
}

// Change gives a tenant another share.
func (g *GPU) Change(now time.Duration, name string, s Share) {
	t := g.input(now, name)
	if t == nil || t.share == s.clean() {
		return
	}
	old := t.share
	if s.Held {
		g.waited(t)
	}
	t.share = s.clean()
	t.bucket = min(t.bucket, g.brim(t))
	if old.Limit == 1 {
		t.bucket = g.enough(t)
	}
	if t.share.Limit == 1 {
		t.dry = false
	}
	if old.Held && !s.Held {
		g.wait(t)
	}
}

// Leave removes one of the tenant's sessions. With the last one go the tenant's
// turn and pace.
func (g *GPU) Leave(now time.Duration, name string) {
	t := g.input(now, name)
	if t == nil {
		return
	}
	if t.sessions--; t.sessions > 0 {
		return
	}
	g.rest(t, 0)
	if g.measured == t {
		g.measured = nil
	}
	t.drains, t.settled, t.nudge, t.pace, t.glimpse, t.curb = false, false, 0, pace{}, glimpse{}, 0
	if t.state.Mode != Pause {
		t.state = State{Mode: Pause, Turn: t.state.Turn}
		g.changed = true
	}
	g.scheduler.part(t)
	g.sweep()
}

// sweep forgets tenants without a session that are not ahead. Those ahead are
// remembered, so that a restart gains nothing; but not too many.
func (g *GPU) sweep() {
	const most = 256
	debtors := 0
	g.tenants = slices.DeleteFunc(g.tenants, func(t *tenant) bool {
		if t.sessions > 0 {
			return false
		}
		debtors++
		return debtors > most || t.lag >= 0 && (t.share.Limit == 1 || t.bucket >= g.brim(t))
	})
}

// Want says that the tenant has work, or launches that wait.
func (g *GPU) Want(now time.Duration, name string) {
	if t := g.hear(now, name); t != nil {
		if t.assumed = false; !t.wants {
			g.want(t, false)
		}
	}
}

// want makes t want the GPU from now on, or assumes that it does.
func (g *GPU) want(t *tenant, assumed bool) {
	if g.now-t.rested > linger {
		t.lag = min(t.lag, 0) // an old debt has expired
	}
	if !assumed && (!t.ever || g.now-t.rested > silence) {
		t.came = g.now
		g.freedom.gap = 0 // what failed without it may succeed now
	}
	t.wants, t.assumed, t.ever, t.began = true, assumed, true, g.now
	g.wait(t)
}

// Rest says that no session of the tenant has outstanding work or waiting
// launches, and what they did: the tenant wants no more.
func (g *GPU) Rest(now time.Duration, name string, u Usage) {
	t := g.report(now, name, u)
	if t == nil {
		return
	}
	g.rest(t, u.Ago)
	g.learn(t, u)
	g.drained(t)
}

// rest ends t's want, a duration ago.
func (g *GPU) rest(t *tenant, ago time.Duration) {
	if !t.wants {
		return
	}
	g.waited(t)
	ran := t.runs()
	ago = min(max(ago, 0), g.now-t.began, late)
	t.unwant(ago)
	t.unserve(ago)
	if !t.assumed {
		t.burst, t.rested = g.now-ago-t.began, g.now-ago
	}
	t.wants, t.owed, t.assumed = false, false, false
	if o := g.only(); ran && o != nil {
		o.unshare(ago)
	}
}

// Drained says that no session of the tenant, which was paused, has outstanding
// work, and what they did.
func (g *GPU) Drained(now time.Duration, name string, u Usage) {
	if t := g.report(now, name, u); t != nil {
		if t.drains {
			t.unserve(min(max(u.Ago, 0), g.now-t.paused, late))
		}
		g.learn(t, u)
		g.drained(t)
	}
}

func (g *GPU) drained(t *tenant) {
	if t.state.Mode == Pause || !t.wants {
		if t.drains {
			g.scheduler.acquit(t)
		}
		t.drains, t.settled, t.emptied = false, false, g.now
	}
}

// Report says what the sessions of the tenant did since the last Usage.
func (g *GPU) Report(now time.Duration, name string, u Usage) {
	if t := g.report(now, name, u); t != nil {
		g.learn(t, u)
	}
}

// report is hear for a message with a Usage.
func (g *GPU) report(now time.Duration, name string, u Usage) *tenant {
	t := g.hear(now, name)
	if t != nil && u.Launched > 0 {
		t.assumed = false
	}
	return t
}

// Wants says whether the tenant wants the GPU, as far as is known.
func (g *GPU) Wants(name string) bool {
	t := g.find(name)
	return t != nil && t.wants
}

// State returns the tenant's state since the last Decide; an unknown tenant is
// paused.
func (g *GPU) State(name string) State {
	if t := g.find(name); t != nil {
		return t.state
	}
	return State{Mode: Pause}
}

// Changed says whether a State of the GPU changed since it was asked last.
func (g *GPU) Changed() bool {
	was := g.changed
	g.changed = false
	return was
}
