package broker

import (
	"math"
	"slices"
	"time"

	"gpusteward/collectors/gpu/sim/noise"
	"gpusteward/collectors/gpu/sim/scenarios"
	"gpusteward/internal/wire"
)

// Training is the program that trains on a GPU: a rank of a job.
type Training struct {
	Job         scenarios.Job
	Rank, Ranks int
	GPU         int         // index
	Seed        uint64      // of the host
	Saves       func() bool // whether it writes a checkpoint now
	// Fault returns the fault of a kind that the job has now, and for how long;
	// nil: there is none.
	Fault func(kind string) (*scenarios.Fault, time.Duration)
}

// trains reports whether a process repeats a step.
func (g *GPU) trains(p *Process) bool { return g.options.Training != nil && p.Name == "python3" }

// A training program's figures by step, as parts of its time if they have no
// unit.
const (
	collectives = 24   // calls
	collecting  = 0.15 // in collectives
	jitter      = 0.01 // the other ranks wait longer for the last one, at most
	spread      = 0.06 // a step is shorter or longer than the mean, at most
	drift       = 0.05 // all steps of some minutes are, at most
	driftsFor   = 600  // steps of the simulation
	slowOneIn   = 250  // steps
	stalls      = 0.4  // such a step waits longer for storage
)

// partsOf are the parts of a training program's step.
var partsOf = map[string]float64{"launching": 0.08, "waiting": 0.8, "copying": 0.02, "held": 0, "host": 0.1}

// partOf is the part of a step that a cause makes longer; others make it wait
// for the GPU.
var partOf = map[string]string{"host": "host", "cpu": "host", "storage": "host", "code": "host", "memory": "host",
	"copy": "copying", "quota": "held"}

// trace notes a training program's steps in step n of the simulation, and
// reports whether it gets on.
func (j *Training) trace(t *trace, n int64) bool {
	hang, _ := j.Fault("job_hang")
	t.Stepping = hang == nil
	if hang != nil || j.Saves() {
		t.Outside += dt
		return hang == nil
	}
	for t.past += dt; t.past >= t.wall; {
		t.past -= t.wall
		j.endStep(t)
		j.beginStep(t, n)
	}
	return true
}

// beginStep draws the length of a step that begins in step n of the simulation.
// It is the same for all ranks.
func (j *Training) beginStep(t *trace, n int64) {
	seed := j.Seed ^ uint64(j.Job.ID)
	h := noise.Hash(seed, t.Steps)
	t.wall = time.Duration(j.Job.Step).Seconds() *
		(1 + spread*(noise.Ratio(h)+noise.Ratio(noise.Hash(h, 1))-1) + drift*(2*noise.Slow(seed, n, driftsFor)-1))
	t.cause, t.extra = "", 0
	if f, _ := j.Fault("job_slow"); f != nil {
		t.cause, t.extra = f.Value, t.wall*f.Part()
	} else if h%slowOneIn == 0 {
		t.cause, t.extra = "storage", t.wall*stalls
	}
	t.wall += t.extra
}

// endStep notes a step.
func (j *Training) endStep(t *trace) {
	for part, of := range partsOf {
		t.Parts[part] += of * (t.wall - t.extra)
	}
	if t.cause != "" {
		t.Slow[t.cause]++
		t.Parts[partAt(t.cause)] += t.extra
	}
	t.Seconds.Buckets[int(math.Ceil(8*math.Log2(t.wall)))]++
	t.Seconds.Count++
	t.Seconds.Sum += t.wall
	t.recent = append(t.recent[max(0, len(t.recent)-31):], t.wall)
	t.Median = slices.Sorted(slices.Values(t.recent))[len(t.recent)/2]
	for i := range t.Communicators {
		j.collect(t, &t.Communicators[i])
	}
	t.Steps++
}

func partAt(cause string) string {
	if part, ok := partOf[cause]; ok {
		return part
	}
	return "waiting"
}

// collect notes the collectives of a step. The rank that comes last waits for no
// other.
func (j *Training) collect(t *trace, c *wire.CommunicatorStats) {
	h := noise.Hash(j.Seed+uint64(j.Job.ID), t.Steps)
	last, lost := int(h%uint64(c.Ranks)) == c.Rank, jitter*noise.Ratio(h)*t.wall
	if f, _ := j.Fault("job_straggler"); f != nil {
		if last, lost = f.GPU == j.GPU, f.Part()*t.wall; last {
			t.Parts["waiting"] -= lost
			t.Parts[partAt(f.Value)] += lost
		}
	}
	t.Collectives += collectives
	t.CollectiveBytes += collectives * (64 << 20)
	c.Entered += collectives
	c.Measured += collectives
	if c.Seconds += collecting * t.wall; !last {
		c.Seconds += lost
	}
}
