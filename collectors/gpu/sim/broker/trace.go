package broker

import (
	"maps"
	"math"
	"slices"

	"gpusteward/internal/wire"
)

// A training program's figures by step.
const (
	collectives       = 24
	collectiveSeconds = 0.18
	behind            = 0.036 // seconds by which the last rank comes later than the others
)

// partsOf are the parts of a training program's step.
var partsOf = map[string]float64{"launching": 0.08, "waiting": 0.8, "copying": 0.02, "held": 0, "host": 0.1}

// trains reports whether a process repeats a step.
func (g *GPU) trains(p *Process) bool { return g.options.Job.Ranks > 0 && p.Name == "python3" }

// trace notes what the processes with a session did in a step of the
// simulation, as a hook does.
func (g *GPU) trace() {
	for p := range g.options.Processes {
		if p.books == nil || p.books == nobody || !p.hooked || p.Share == 0 || g.work.Weight == 0 {
			continue
		}
		if p.trace == nil {
			p.trace = g.newTrace(p)
		}
		part := g.work.Busy * p.Share / g.work.Weight * dt
		t := p.trace
		t.Busy += part
		t.launched += 2400 * part
		t.Launches, t.Waits, t.Graphs = uint64(t.launched), uint64(t.launched/60), uint64(t.launched/40)
		t.CopiedBytes += uint64(g.work.PCIe * part)
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

// newTrace returns the trace of a process that begins.
func (g *GPU) newTrace(p *Process) *trace {
	t := &trace{JobStats: wire.JobStats{Tenant: p.books.Name, Workload: p.Workload, GPU: g.options.UUID, PID: p.PID,
		Seconds: wire.Exponential{Buckets: map[int]uint64{}}}}
	if !g.trains(p) {
		return t
	}
	t.Stepping, t.Parts, t.Slow = true, map[string]float64{}, map[string]uint64{"storage": 0}
	t.Communicators = []wire.CommunicatorStats{g.options.Job}
	return t
}

// traceTraining notes the end of a training program's step, if this is one.
func (g *GPU) traceTraining(t *trace) {
	ended := g.work.Step
	switch {
	case g.work.Saving:
		t.Outside += dt
		return
	case ended.Usual == 0:
		return
	case ended.Extra > 0:
		t.Slow["storage"]++
	}
	for part, of := range partsOf {
		t.Parts[part] += of * ended.Wall
	}
	t.Parts["host"] += ended.Extra
	t.Steps++
	seconds := ended.Wall + ended.Extra
	t.Seconds.Buckets[int(math.Ceil(8*math.Log2(seconds)))]++
	t.Seconds.Count++
	t.Seconds.Sum += seconds
	t.Median = ended.Usual
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
func (g *GPU) jobs() (all []wire.JobStats) {
	for p := range g.options.Processes {
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
