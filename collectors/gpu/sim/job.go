package sim

import (
	"time"

	"gpusteward/collectors/gpu/sim/broker"
	"gpusteward/collectors/gpu/sim/scenarios"
)

// The rhythm of training, in steps of the simulation.
const (
	trainStep = 12   // the GPU's load repeats
	saveEvery = 2400 // a checkpoint
	saveFor   = 120
)

// phase is the position in the rhythm of training. Jobs pause at different
// times.
func (g *gpu) phase() int64 {
	return g.n + preroll + int64(g.host.seed%1200) + saveEvery/6*int64(g.spec.Job.ID%7)
}

// saves reports whether the GPU's job writes a checkpoint.
func (g *gpu) saves() bool { return g.phase()%saveEvery < saveFor }

// training returns the job's rank on the GPU; nil without a job.
func (g *gpu) training() *broker.Training {
	if g.spec.Load != "training" {
		return nil
	}
	t := &broker.Training{Job: g.spec.Job, GPU: g.index, Seed: g.host.seed, Saves: g.saves, Fault: g.troubled}
	for i := range g.host.scenario.GPUs {
		if !g.spec.SharesJob(&g.host.scenario.GPUs[i]) {
			continue
		}
		if t.Ranks++; i < g.index {
			t.Rank++
		}
	}
	return t
}

// troubled returns the fault of a kind that affects the GPU's job now, and how
// long it has; nil: there is none. It reads what never changes, as the GPUs of a
// job advance one by one.
func (g *gpu) troubled(kind string) (*scenarios.Fault, time.Duration) {
	for i := range g.host.scenario.Faults {
		f := &g.host.scenario.Faults[i]
		if f.Kind != kind || !g.spec.SharesJob(&g.host.scenario.GPUs[f.GPU]) {
			continue
		}
		if from, _, active := f.Window(g.time()); active {
			return f, g.time() - from
		}
	}
	return nil, 0
}
