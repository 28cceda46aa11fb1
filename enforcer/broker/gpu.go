package broker

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"gpusteward/enforcer/ledger"
	"gpusteward/enforcer/schedule"
	"gpusteward/internal/wire"
)

// A timetable shares the time of all GPUs, because a tenant may wait for itself
// across them. One mutex guards everything about time on each GPU. Whoever brings
// an input also makes the decisions, under that mutex; the loop makes them once for
// all that it heard at a time. Nothing under the mutex waits for a process: it only
// writes pages.
type timetable struct {
	b *Broker

	mu        sync.Mutex
	scheduler *schedule.Scheduler
	gpus      []*gpu
	now       time.Duration
	due       bool     // there was news that nothing was concluded from
	shown     []*party // step's own
	alarm     *alarm
}

// A gpu is a shared GPU, or a MIG device, which is shared separately.
type gpu struct {
	uuid   string
	bytes  [16]byte // of the UUID, as processes say it
	b      *Broker
	memory *ledger.Ledger
	first  sync.Once         // somebody sits down
	kept   map[string]uint64 // what is guaranteed to tenants, bytes; guarded by the broker's reloads

	// What the driver does not list of tenants' memory, by its last listing. Guarded by the
	// broker's reloads.
	absent  map[string]*absence
	weighed time.Time

	// Guarded by the timetable.
	schedule *schedule.GPU
	dirty    bool                // a party is
	parties  []*party            // one for each tenant with a session, by time of coming
	past     []*party            // whose last session went: their counters go on when they come back
	capped   map[string]struct{} // tenants that the ledger has a cap of, though they may have had no seat
}

func newTimetable(b *Broker, a *alarm) *timetable {
	return &timetable{b: b, scheduler: schedule.New(schedule.Config{Turn: b.options.Turn, Slices: b.options.Slices,
		Concurrent: b.options.Concurrent}), alarm: a}
}

// add returns a GPU that nobody shares yet.
func (t *timetable) add(name string, uuid [16]byte) *gpu {
	t.mu.Lock()
	defer t.mu.Unlock()
	g := &gpu{uuid: name, bytes: uuid, b: t.b, memory: &ledger.Ledger{}, schedule: t.scheduler.Add(),
		capped: map[string]struct{}{}, absent: map[string]*absence{}}
	t.gpus = append(t.gpus, g)
	return g
}

// written returns the UUID of a GPU or of a MIG device as NVML writes it.
func written(kind string, uuid [16]byte) string {
	return fmt.Sprintf("%s-%x-%x-%x-%x-%x", kind, uuid[:4], uuid[4:6], uuid[6:8], uuid[8:10], uuid[10:])
}

// do passes news on, and returns when the pages show the consequences.
func (t *timetable) do(tell func()) {
	t.tell(tell)
	t.settle()
}

// tell passes news on, which settle draws the conclusions from.
func (t *timetable) tell(tell func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.now, t.due = t.b.clock.now(), true
	tell()
}

// settle returns when the pages show the consequences of all news, and of the
// time.
func (t *timetable) settle() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now := t.b.clock.now(); t.due || t.alarm.at != 0 && now >= t.alarm.at {
		t.now, t.due = now, false
		t.alarm.set(t.step())
	}
}

// ring advances the timetable, because that is due.
func (t *timetable) ring() { t.tell(func() { t.alarm.at = 0 }) }

// end has the alarm ring no more.
func (t *timetable) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.alarm.close()
}

// step draws the conclusions from the input and writes them into the pages. It
// returns the time of the next call; 0: not before the next input.
func (t *timetable) step() time.Duration {
	for {
		wake, again := t.scheduler.Decide(t.now), false
		for _, g := range t.gpus {
			if !g.schedule.Changed() && !g.dirty {
				continue
			}
			g.dirty, t.shown = false, t.shown[:0]
			for _, p := range g.parties {
				if g.show(p) {
					t.shown = append(t.shown, p)
				}
			}
			// A tenant with nothing under way has drained as soon as it is
			// paused, and one with only stale sessions has no work even if it
			// was open.
			for _, p := range t.shown {
				again = g.rests(p, schedule.Usage{}) || g.drained(p, schedule.Usage{}) || again
			}
		}
		if !again {
			return wake
		}
	}
}

// mostRanks bounds the known communicators of a session.
const mostRanks = 16

func (g *gpu) do(tell func())     { g.b.times.do(tell) }
func (g *gpu) now() time.Duration { return g.b.times.now }

// drained reports to the schedule that all sessions of a paused tenant have
// drained, and what they did. It returns false if a session has work under way,
// or if the schedule has that report.
func (g *gpu) drained(p *party, u schedule.Usage) bool {
	if !p.drains || slices.ContainsFunc(p.seats, func(t *seat) bool { return t.owes }) {
		return false
	}
	p.drains = false
	g.spans(p, p.state)
	g.schedule.Drained(g.now(), p.name, u)
	return true
}

// show writes the schedule's state of a tenant into its sessions' pages; false:
// they say it.
func (g *gpu) show(p *party) bool {
	state := g.schedule.State(p.name)
	if state == p.state && !p.dirty {
		return false
	}
	was := p.state
	p.state, p.dirty = state, false
	if was.Mode == schedule.Open && state.Mode != schedule.Open {
		p.wants = true // the schedule assumes work: each session reports if it has none
		for _, t := range p.seats {
			t.wants = true
		}
	}
	if state.Mode != schedule.Pause {
		p.drains = false
	} else if was.Mode != schedule.Pause {
		p.drains = true
	}
	turn := wire.Turn{Mode: wire.Mode(state.Mode), Turn: state.Turn, End: uint64(state.End), Share: g.share(p),
		InFlight: uint32(g.b.options.inFlight(state).Microseconds()), Slice: uint32(state.Slice.Microseconds()),
		Pace: uint32(1000 * state.Pace)}
	if state.Beside {
		turn.Flags |= wire.Beside
	}
	if state.Haste {
		turn.Flags |= wire.Haste
	}
	if state.Late && !was.Late {
		g.omit(p)
	}
	for _, t := range p.seats {
		t.mute.Store(state.Mute || t.quiet)
		t.show(turn)
	}
	g.spans(p, was)
	return true
}

// inFlight returns how much work a process may queue on a stream at most:
// little if others must not wait; otherwise enough for a program whose
// processor is sometimes ahead of the GPU and sometimes behind. The hook keeps
// it as small as the program's pace allows.
func (o *Options) inFlight(s schedule.State) time.Duration {
	if s.Urgent {
		return o.InFlight
	}
	return o.Turn
}

// show writes a seat's slot.
func (t *seat) show(turn wire.Turn) {
	if t.quiet {
		turn.Mode, turn.Flags, turn.End = wire.ModePause, 0, 0
	}
	switch {
	case turn == t.shown:
		return
	case turn.Mode != wire.ModePause:
		t.owes = false
	case t.shown.Mode != wire.ModePause:
		t.owes = t.wants && !t.quiet
	}
	t.shown = turn
	t.s.page.set(t.index, turn)
}

// acquire records that a session has work.
func (g *gpu) acquire(t *seat) {
	t.wants = true
	if p := t.party; !t.quiet && !p.wants {
		p.wants = true
		g.schedule.Want(g.now(), p.name)
	}
}

// hear records the return of a process that was stopped, or of a tenant that
// the schedule takes for stopped.
func (g *gpu) hear(t *seat) {
	g.quiet(t, false)
	if t.party != nil {
		g.schedule.Hear(g.now(), t.party.name)
	}
}

// report records what a session has done so far.
func (g *gpu) report(t *seat, u *wire.Usage) {
	g.schedule.Report(g.now(), t.party.name, t.note(u))
	if u.Group != 0 && !slices.Contains(t.ranks, u.Group) && len(t.ranks) < mostRanks {
		t.ranks = append(t.ranks, u.Group)
		g.link(t, u.Group)
	}
}

// link makes a gang of a tenant's sessions that are ranks of one communicator on
// several GPUs. Those of another owner have no part in it, whatever they name.
func (g *gpu) link(t *seat, group uint64) {
	for _, o := range g.b.times.gpus {
		for _, p := range o.parties {
			if o != g && p.name == t.party.name &&
				slices.ContainsFunc(p.seats, func(other *seat) bool {
					return other.s.owner == t.s.owner && slices.Contains(other.ranks, group)
				}) {
				g.schedule.Link(g.now(), o.schedule, p.name)
			}
		}
	}
}

// yield records that a session has nothing to do, or has drained. A drain of
// another turn than the last one that it was shown does not count.
func (g *gpu) yield(t *seat, u *wire.Usage) {
	p, done := t.party, t.note(u)
	if u.Last != 0 {
		done.Ago = g.now() - time.Duration(min(u.Last, uint64(g.now())))
	}
	if u.Why == wire.WhyIdle {
		t.wants, t.owes = false, false
	} else if u.Turn == t.shown.Turn && u.Why == wire.WhyDrained {
		t.owes = false
	}
	if !g.rests(p, done) && !g.drained(p, done) {
		done.Ago = 0
		g.schedule.Report(g.now(), p.name, done)
	}
}

// rests reports to the schedule that no session of a tenant has work. It returns
// false if one has, or if the schedule has that report.
func (g *gpu) rests(p *party, u schedule.Usage) bool {
	if !p.wants || slices.ContainsFunc(p.seats, func(t *seat) bool { return t.wants && !t.quiet }) {
		return false
	}
	p.wants, p.drains = false, false
	g.spans(p, p.state)
	for _, t := range p.seats {
		t.asked.Store(false)
	}
	g.schedule.Rest(g.now(), p.name, u)
	return true
}
