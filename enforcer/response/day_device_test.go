package response

import (
	"time"

	"gpusteward/collectors"
	"gpusteward/enforcer/audit"
	"gpusteward/enforcer/ledger"
	"gpusteward/enforcer/schedule"
	"gpusteward/internal/wire"
)

// Constants of the simulated GPUs.
const (
	daySlot   = time.Second / 6 // of the driver's samples
	dayDrain  = 100 * time.Microsecond
	dayIdle   = 200 * time.Microsecond // until a tenant without work gives its turn back
	dayMemory = 80 << 30
	dayMost   = .9 // of a GPU, for programs outside of turns
)

// A dayGPU is a GPU with the schedule's turns and the ledger's memory. It advances from event to event.
type dayGPU struct {
	uuid            string
	scheduler       *schedule.Scheduler
	turns           *schedule.GPU
	memory          *ledger.Ledger
	now, wake       time.Duration
	tenants         []*dayTenant
	outside         float64       // part for programs outside of turns
	silent          time.Duration // until then the driver does not answer
	excused         time.Duration // until then a recent hardware fault excuses its tenants
	news            time.Duration // until then the driver has samples that were not read
	sampled         time.Duration
	deviceProcesses []collectors.DeviceProcess
}

// newTurns begins the books anew.
func (g *dayGPU) newTurns() {
	// Turns are longer than real ones, which keeps a simulated day affordable.
	g.scheduler = schedule.New(schedule.Config{Turn: 40 * time.Millisecond, Minimum: 4 * time.Millisecond, Turns: true})
	g.turns = g.scheduler.Add()
	g.memory, g.wake = &ledger.Ledger{}, 0
	for _, t := range g.tenants {
		t.sessions, t.wants, t.has, t.yield = 0, false, false, 0
	}
}

// A dayTurn is the knowledge of a tenant's hooks about the GPU.
type dayTurn struct {
	sessions int
	wants    bool // it has asked for the GPU
	has      bool // it has the GPU
	stopped  bool // it is paused, and drains
	state    schedule.State
	granted  time.Duration
	yield    time.Duration // when it gives the turn back; 0: unknown

	always       bool          // it has endless work
	burst, think time.Duration // length of a burst and of the pause after it; 0: none
	left         time.Duration // left of a burst
	begins       time.Duration // begin of the next one
	ran          time.Duration // in this slot
}

func (t *dayTurn) works() bool { return t.always || t.left > 0 }

// next returns the time of a tenant's next own event.
func (t *dayTurn) next(now time.Duration) (at time.Duration) {
	sooner := func(d time.Duration) {
		if at == 0 || d < at {
			at = max(d, now)
		}
	}
	if t.sessions == 0 {
		return 0
	}
	if t.yield > 0 {
		sooner(t.yield)
	}
	if t.has && !t.stopped && !t.always && t.left > 0 {
		sooner(now + t.left)
	}
	if t.burst > 0 && t.left == 0 && !t.always {
		sooner(t.begins)
	}
	return at
}

// run advances the GPU.
func (g *dayGPU) run(d *day, until time.Duration) {
	for g.now < until {
		next := until
		if g.wake > 0 && g.wake < next {
			next = max(g.wake, g.now)
		}
		for _, t := range g.tenants {
			if at := t.next(g.now); at > 0 && at < next {
				next = at
			}
		}
		passed := next - g.now
		g.now = next
		told := g.wake > 0 && g.now >= g.wake
		for _, t := range g.tenants {
			if t.sessions > 0 && t.play(d, g, passed) {
				told = true
			}
		}
		if told {
			g.decide()
		}
	}
}

// play simulates a tenant's hooks; it reports whether the schedule received a message.
func (t *dayTenant) play(d *day, g *dayGPU, passed time.Duration) (told bool) {
	if t.has && !t.stopped && t.works() {
		t.ran += passed
		if !t.always {
			if t.left = max(t.left-passed, 0); t.left == 0 {
				t.begins = g.now + time.Duration(float64(t.think)*(.5+d.random.Float64()))
			}
		}
	}
	if t.burst > 0 && t.left == 0 && !t.always && g.now >= t.begins {
		t.left = time.Duration(float64(t.burst) * (.5 + d.random.Float64()))
	}
	works := t.works()
	switch {
	case t.yield > 0 && g.now >= t.yield && t.stopped:
		g.give(t, !works)
		return true
	case t.yield > 0 && g.now >= t.yield && !works:
		g.give(t, true)
		return true
	case t.has && !t.stopped && t.state.Mode == schedule.Run && !works && t.yield == 0:
		t.yield = g.now + dayIdle
	case t.has && !t.stopped && works:
		t.yield = 0
	case !t.has && works && !t.wants:
		t.wants = true
		g.turns.Want(g.now, t.name)
		return true
	}
	return false
}

// give gives a turn back.
func (g *dayGPU) give(t *dayTenant, idle bool) {
	if idle {
		g.turns.Rest(g.now, t.name, schedule.Usage{})
	} else {
		g.turns.Drained(g.now, t.name, schedule.Usage{})
	}
	t.has, t.stopped, t.yield, t.wants = false, false, 0, !idle
}

// decide runs the schedule's decision, and informs the tenants.
func (g *dayGPU) decide() {
	g.wake = g.scheduler.Decide(g.now)
	for _, t := range g.tenants {
		if t.sessions == 0 {
			continue
		}
		s := g.turns.State(t.name)
		switch {
		case s.Mode != schedule.Pause && (!t.has || s.Turn != t.state.Turn):
			t.has, t.wants, t.stopped, t.yield, t.granted = true, true, false, 0, g.now
		case s.Mode == schedule.Pause && t.has && !t.stopped:
			t.stopped, t.yield = true, g.now+dayDrain
		}
		t.state = s
		if t.stopped { // the page no longer has the turn
			t.state.Turn = max(s.Turn, t.state.Turn)
		}
	}
}

// account makes samples of a slot, and records the truth.
func (g *dayGPU) account(slot time.Duration) {
	long := slot.Seconds()
	for _, t := range g.tenants {
		inside := t.ran.Seconds() / long * (1 - g.outside)
		t.ran = 0
		working := 0
		for _, w := range t.workloads {
			working += w.working()
		}
		for _, w := range t.workloads {
			n := w.working()
			for _, p := range w.processes {
				sm := 0.0
				if n > 0 && p.session != 0 && working > 0 {
					sm = inside / float64(working)
				}
				outside := p.outside()
				t.truth.outside += outside * long
				if p.hooked {
					t.truth.stolen += outside * long
				}
				sm = min(sm+outside, 1)
				busy := sm * w.intensity
				t.truth.sm += sm * long
				t.truth.busy += busy * long
				p.sampled(sm, busy, long)
			}
		}
		t.truth.inside += inside * long
	}
	g.news = g.now
}

// sampled adds one of the driver's samples, in whole percents.
func (p *dayProcess) sampled(sm, busy, long float64) {
	p.fresh[0] += float64(int(sm*100+.5)) / 100 * long
	p.fresh[1] += float64(int(busy*100+.5)) / 100 * long
}

// collect is the collector's pass: the list of processes, and the driver's
// samples each 5 s, or each second while a process is young.
func (g *dayGPU) collect(d *day) {
	g.deviceProcesses = g.deviceProcesses[:0]
	young := false
	for _, t := range g.tenants {
		for _, w := range t.workloads {
			for _, p := range w.processes {
				young = young || g.now-p.born < 10*time.Second
			}
		}
	}
	ask := g.news > g.sampled && (g.now-g.sampled >= 5*time.Second || young && g.now-g.sampled >= time.Second)
	if ask {
		g.sampled = g.news
	}
	for _, t := range g.tenants {
		for _, w := range t.workloads {
			for _, p := range w.processes {
				if ask {
					p.sm, p.busy, p.fresh = p.sm+p.fresh[0], p.busy+p.fresh[1], [2]float64{}
				}
				h := collectors.DeviceProcess{UUID: g.uuid, Process: p.Process, Kind: "compute",
					Memory: p.context + p.memory, Known: true, SM: p.sm, Busy: p.busy, At: d.at(g.now)}
				if g.sampled > 0 {
					h.Sampled = d.at(g.sampled)
				}
				g.deviceProcesses = append(g.deviceProcesses, h)
			}
		}
	}
}

// free returns the free memory.
func (g *dayGPU) free() uint64 {
	used := uint64(0)
	for _, t := range g.tenants {
		for _, w := range t.workloads {
			for _, p := range w.processes {
				used += p.context + max(p.memory, p.told)
			}
		}
	}
	return dayMemory - min(used, dayMemory)
}

// books adds the broker's books and its sessions.
func (g *dayGPU) books(b *audit.Books) {
	g.scheduler.Look(g.now)
	g.decide() // brings the books up to date
	system := g.turns.System()
	b.GPUs = append(b.GPUs, wire.GPUStats{GPU: g.uuid, HandoverSeconds: system.Handover.Seconds(),
		TogetherSeconds: system.Together.Seconds()})
	for _, t := range g.tenants {
		for _, w := range t.workloads {
			for _, p := range w.processes {
				if p.session == 0 {
					continue
				}
				b.Sessions = append(b.Sessions, audit.Session{PID: p.PID, Start: p.Start, Tenant: t.name,
					GPUs: []audit.SessionGPU{{UUID: g.uuid, Committed: g.memory.Session(p.session)}}})
			}
		}
		if t.sessions == 0 {
			continue
		}
		sums, memory := g.turns.Stats(t.name), g.memory.Usage(t.name)
		row := wire.TenantStats{Tenant: t.name, GPU: g.uuid, Sessions: t.sessions,
			ChargedSeconds: sums.Charged.Seconds(), Turns: sums.Turns,
			ServedSeconds: sums.Served.Seconds(), WantedSeconds: sums.Wanted.Seconds(),
			WaitSeconds: sums.Waited.Seconds(), Waits: sums.Waits, LateWaits: sums.Late,
			MemoryCap: memory.Cap, MemoryUsed: memory.Committed + memory.Dead, MemoryReserved: memory.Reserved,
			MemoryAsked: memory.Asked, MemoryMissed: memory.Missed}
		row.Share10s.Actual, row.Share10s.Target = g.turns.Shares(t.name, 10*time.Second)
		b.Tenants = append(b.Tenants, row)
	}
}
