package sim

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"gpusteward/collectors/gpu/sim/noise"
	"gpusteward/internal/wire"
)

// The rhythm of training, in steps of the simulation.
const (
	trainStep = 12   // a step of the program
	saveEvery = 2400 // a checkpoint
	saveFor   = 120
)

// A training program's figures by step.
const (
	collectives       = 24
	collectiveSeconds = 0.18
	behind            = 0.036 // seconds by which the last rank comes later than the others
	slowOneIn         = 250
)

// partsOf are the parts of a training program's step.
var partsOf = map[string]float64{"launching": 0.08, "waiting": 0.8, "copying": 0.02, "held": 0, "host": 0.1}

// phase is the position in the rhythm of training.
func (g *gpu) phase() int64 { return g.n + preroll + int64(g.host.seed%1200) }

// trains reports whether a process repeats a step.
func (g *gpu) trains(p *process) bool { return g.spec.Load == "training" && p.name == "python3" }

// trace notes what the processes with a session did in a step of the
// simulation, as a hook does.
func (g *gpu) trace() {
	for i := range g.procs {
		p := &g.procs[i]
		if p.books == nil || p.books == nobody || !p.hooked || p.share == 0 || g.weight == 0 {
			continue
		}
		if p.trace == nil {
			p.trace = g.newTrace(p)
		}
		part := g.work.busy * p.share / g.weight * step.Seconds()
		t := p.trace
		t.Busy += part
		t.launched += 2400 * part
		t.Launches, t.Waits, t.Graphs = uint64(t.launched), uint64(t.launched/60), uint64(t.launched/40)
		t.CopiedBytes += uint64((g.work.gpm.pcieTx + g.work.gpm.pcieRx) * (1 << 20) * part)
		t.Copies = uint64(t.launched / 100)
		if g.trains(p) {
			g.traceTraining(t)
		}
	}
}

// A trace is what a process did so far.
type trace struct {
	wire.JobStats
	launched float64
}

// newTrace returns the trace of a process that begins. The processes of the
// GPUs that train form a communicator.
func (g *gpu) newTrace(p *process) *trace {
	t := &trace{JobStats: wire.JobStats{Tenant: p.books.Name, Workload: p.workload, GPU: g.uuid("GPU", 0), PID: p.pid,
		Seconds: wire.Exponential{Buckets: map[int]uint64{}}}}
	if !g.trains(p) {
		return t
	}
	t.Stepping, t.Parts, t.Slow = true, map[string]float64{}, map[string]uint64{"storage": 0}
	c := wire.CommunicatorStats{ID: fmt.Sprintf("%016x", noise.Hash(g.host.seed, 4711))}
	for i, other := range g.host.scenario.GPUs {
		if other.Load != "training" {
			continue
		}
		if c.Ranks++; i < g.index {
			c.Rank++
		}
	}
	t.Communicators = []wire.CommunicatorStats{c}
	return t
}

// traceTraining notes the end of a training program's step, if this is one.
func (g *gpu) traceTraining(t *trace) {
	n := g.phase()
	if n%saveEvery < saveFor {
		t.Outside += step.Seconds()
		return
	}
	if n%trainStep != trainStep-1 {
		return
	}
	wall := trainStep * step.Seconds() * (1 + 0.008*g.noise(7))
	extra := 0.0
	if noise.Hash(g.host.seed, uint64(n))%slowOneIn == 0 {
		extra = 0.4 * wall
		t.Slow["storage"]++
	}
	for part, of := range partsOf {
		t.Parts[part] += of * wall
	}
	t.Parts["host"] += extra
	t.Steps++
	t.Seconds.Buckets[int(math.Ceil(8*math.Log2(wall+extra)))]++
	t.Seconds.Count++
	t.Seconds.Sum += wall + extra
	t.Median = trainStep * step.Seconds()
	t.Collectives += collectives
	t.CollectiveBytes += collectives * (64 << 20)
	c := &t.Communicators[0]
	c.Entered += collectives
	c.Measured += collectives
	c.Seconds += collectiveSeconds
	if c.Rank < c.Ranks-1 {
		c.Seconds += behind
	}
}

// jobs returns what the processes with a session do.
func (g *gpu) jobs() (all []wire.JobStats) {
	for _, p := range g.procs {
		if p.trace == nil || !p.hooked {
			continue
		}
		j := p.trace.JobStats
		j.Parts, j.Slow, j.Seconds.Buckets = maps.Clone(j.Parts), maps.Clone(j.Slow), maps.Clone(j.Seconds.Buckets)
		j.Communicators = slices.Clone(j.Communicators)
		all = append(all, j)
	}
	return all
}
