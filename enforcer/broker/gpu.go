package broker

import (
	"fmt"
	"sync"
	"time"

	"gpusteward/enforcer/ledger"
	"gpusteward/enforcer/schedule"
	"gpusteward/enforcer/wire"
)

// A gpu shares the time of one GPU. Whoever brings news of it, a connection or
// the alarm, draws the conclusions himself, under the mutex, which guards what
// follows it. Nobody waits for a process in there: it writes pages.
type gpu struct {
	uuid   string
	b      *Broker
	memory *ledger.Ledger
	first  sync.Once         // somebody sits down
	kept   map[string]uint64 // what is guaranteed to tenants, bytes; guarded by the broker's reloads

	mu       sync.Mutex
	schedule *schedule.GPU
	parties  []*party // one for each tenant with a session, by time of coming
	past     []*party // whose last session went: their counters go on when they come back
	now      time.Duration
	alarm    *alarm
}

// newGPU returns a GPU that nobody shares yet. It needs an alarm.
func newGPU(b *Broker, uuid [16]byte) *gpu {
	text := fmt.Sprintf("GPU-%x-%x-%x-%x-%x", uuid[:4], uuid[4:6], uuid[6:8], uuid[8:10], uuid[10:])
	return &gpu{uuid: text, b: b, memory: &ledger.Ledger{}, schedule: schedule.New(schedule.Config{Turn: b.options.Turn})}
}

// do has news told, and returns when the pages say what follows from it.
func (g *gpu) do(tell func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.now = g.b.clock.now()
	tell()
	g.alarm.set(g.step())
}

// look has the books brought up to now, and read.
func (g *gpu) look(read func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.now = g.b.clock.now()
	g.alarm.set(g.step())
	read()
}

// run moves turns on when their time is over, until the broker ends.
func (g *gpu) run() {
	defer g.b.tasks.Done()
	g.alarm.serve(func() { g.do(func() { g.alarm.at = 0 }) })
}

// step draws the conclusions from what came in and writes them into the pages.
// It returns when it must be called again, 0: not before the next input.
func (g *gpu) step() time.Duration {
	for _, p := range g.parties {
		g.tell(p)
	}
	wake := g.schedule.Decide(g.now)
	// A tenant none of whose sessions had the turn has yielded it as soon as
	// it is paused.
	for again := true; again; {
		again = false
		for _, p := range g.parties {
			if g.show(p); p.due && g.tell(p) {
				again = true
			}
		}
		if again {
			wake = g.schedule.Decide(g.now)
		}
	}
	return wake
}

// tell tells the schedule that a tenant's sessions have all let go of its
// turn, or that none wants the GPU any more.
func (g *gpu) tell(p *party) bool {
	wants, owes := false, false
	for _, t := range p.seats {
		wants = wants || t.wants && !t.quiet
		owes = owes || t.owes
	}
	if owes || !p.due && (wants || !p.wants) {
		return false
	}
	p.due, p.wants = false, wants
	p.usage.Turn = p.state.Turn
	if p.last > p.first {
		p.usage.Busy = time.Duration(min(p.last-p.first, uint64(time.Hour)))
	}
	g.schedule.Yield(g.now, p.name, p.usage, !wants)
	p.usage, p.first, p.last = schedule.Usage{}, 0, 0
	return true
}

// show writes what the schedule says of a tenant into its sessions' pages.
func (g *gpu) show(p *party) {
	state := g.schedule.State(p.name)
	if state == p.state && !p.dirty {
		return
	}
	if p.state.Mode != schedule.Pause && state.Mode == schedule.Pause {
		p.due = true
		if p.state.Watch && !g.schedule.Wants(p.name) {
			p.rest() // before the pages say that it has to ask
		}
	} else if state.Mode != schedule.Pause && state.Turn != p.state.Turn {
		p.due, p.usage, p.first, p.last = false, schedule.Usage{}, 0, 0
	}
	p.state, p.dirty = state, false
	free := state.Mode == schedule.Open && !state.Watch
	p.wants = p.wants || state.Mode == schedule.Open
	paused := wire.Turn{Mode: wire.ModePause, Turn: state.Turn, Share: g.share(p), InFlight: uint32(g.b.options.InFlight.Microseconds())}
	for _, t := range p.seats {
		t.wants = t.wants || free
		turn := paused
		if t.wants && !t.quiet && state.Mode != schedule.Pause {
			turn.Mode, turn.End = wire.Mode(state.Mode), uint64(state.End)
			if state.Watch {
				turn.Flags = wire.Watch
			}
		}
		t.show(turn)
	}
}

// show writes a seat's slot.
func (t *seat) show(turn wire.Turn) {
	switch {
	case turn == t.shown:
		return
	case turn.Mode != wire.ModePause:
		t.owes = false
	case t.shown.Mode != wire.ModePause && !t.quiet:
		t.owes = true
	}
	t.shown = turn
	t.s.page.set(t.index, turn)
}

// acquire takes note that a session wants the GPU.
func (g *gpu) acquire(t *seat, a *wire.Acquire) {
	if t.party == nil {
		return // it has left
	}
	t.wants, t.party.dirty = true, true
	if !t.quiet {
		g.ask(t.party, hint(a.Burst), hint(a.Window))
	}
}

// report takes note of what a session did while it goes on.
func (g *gpu) report(t *seat, u *wire.Usage) {
	if t.party == nil {
		return
	}
	t.party.note(u)
	g.schedule.Report(g.now, t.party.name, schedule.Usage{Turn: u.Turn, Launched: u.Launched, Marks: u.Marks, Behind: u.Behind})
}

func (g *gpu) ask(p *party, burst, window time.Duration) {
	p.wants = true
	g.schedule.Ask(g.now, p.name, burst, window)
}

// yield takes note that a session has let go of a turn. Of another turn than
// the one it was shown last it says nothing.
func (g *gpu) yield(t *seat, u *wire.Usage) {
	p := t.party
	if p == nil {
		return
	}
	p.note(u)
	idle := u.Why == wire.WhyIdle
	running := t.shown.Mode == wire.ModeRun || t.shown.Flags&wire.Watch != 0
	early := idle && running
	if u.Turn != t.shown.Turn || !t.owes && !early {
		return
	}
	if u.First != 0 && (p.first == 0 || u.First < p.first) {
		p.first = u.First
	}
	p.last = max(p.last, u.Last)
	p.usage.Launched += u.Launched
	p.usage.Marks += u.Marks
	p.usage.Behind += u.Behind
	t.wants = t.wants && !idle
	if !t.owes {
		// The others of its tenant may go on; it has to ask.
		t.shown.Mode, t.shown.Flags, t.shown.End = wire.ModePause, 0, 0
		t.s.page.set(t.index, t.shown)
	}
	t.owes = false
}
