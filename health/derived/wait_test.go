package derived

import (
	"encoding/json"
	"math"
	"strconv"
	"testing"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/workloads"
	"gpusteward/internal/fixture"
)

// A crew is a rig in which each GPU does one of the deeds, for the workloads on some of them.
type crew struct {
	*rig
	does []string         // by GPU
	jobs map[string][]int // GPUs of each workload
	held string           // the workload that the enforcer has stand still
}

// held is the metric of a workload that the enforcer has stand still.
func held(workload string) collectors.Sample {
	return collectors.Sample{Metric: workloads.WorkloadHeld, Labels: []string{"tenant", workload, "paused"}, Value: 1}
}

// deeds are the possible activities of a crew's GPU: the values that it then has, and whether it moves data.
var deeds = map[string]struct {
	busy, memory, watts, clock float64
	moves                      bool
}{
	"works":    {1, .4, 600, 1700e6, true},
	"spins":    {1, 0, 130, 1980e6, false},
	"rests":    {0, 0, 90, 1980e6, false},
	"copies":   {0, 0, 95, 1980e6, true},
	"computes": {1, 0, 400, 1980e6, false}, // in registers alone
	"is slow":  {1, 0, 112, 345e6, false},  // with a low locked clock
	"reads":    {1, .05, 130, 1980e6, false},
	"serves":   {.9, 0, 130, 1980e6, false},
}

func newCrew(gpus int) *crew {
	r := &crew{rig: newRig(gpus), does: make([]string, gpus), jobs: map[string][]int{}}
	for i, g := range r.gpus {
		g.values[mostClock] = 1980e6
		r.jobs["slurm:1"] = append(r.jobs["slurm:1"], i)
	}
	return r
}

// all gives each GPU the same deed for a while, except for the first ones.
func (r *crew) all(long time.Duration, does string, first ...string) {
	for i := range r.does {
		r.does[i] = does
	}
	copy(r.does, first)
	r.step(long, func() {
		r.extra = nil
		if r.held != "" {
			r.extra = append(r.extra, held(r.held))
		}
		for name, on := range r.jobs {
			for _, i := range on {
				r.extra = append(r.extra, collectors.Sample{Metric: workloads.WorkloadMemory, Value: 1e9,
					Labels: []string{r.gpus[i].gpu, r.gpus[i].uuid, name, ""}})
			}
		}
		for i, g := range r.gpus {
			d := deeds[r.does[i]]
			v := &g.values
			v[utilization], v[memoryUtilization], v[power], v[smClock] = d.busy, d.memory, d.watts, d.clock
			if !d.moves { // undoes the rig's own addition
				for _, in := range []int{pcieRX, pcieTX, nvlinkRX, nvlinkTX} {
					v[in] -= 1e9
				}
			}
		}
	})
}

// wait returns the part of its patience that a workload has spent; NaN if it has no series.
func (r *crew) wait(workload string) float64 {
	for _, s := range r.last.Of(WorkloadWait) {
		if s.Labels[0] == workload {
			return s.Value
		}
	}
	return math.NaN()
}

// alone returns the GPUs that spin by themselves.
func (r *crew) alone() (gpus string) {
	for i := range r.gpus {
		if r.get(Spinning, i) == 1 {
			gpus += strconv.Itoa(i)
		}
	}
	return gpus
}

// TestSpinningGPUs holds that only a GPU spins that is busy without progress.
func TestSpinningGPUs(t *testing.T) {
	t.Parallel()
	for does := range deeds {
		r := newCrew(1)
		r.all(time.Minute, does)
		fixture.Equal(t, r.get(Spinning, 0), collectors.Bool(does == "spins"), "it spins though it %s", does)
		got := r.wait("slurm:1")
		fixture.If(t, !math.IsNaN(got), "a workload on one GPU waits: %v", got)
	}
	r := newCrew(1)
	r.gpus[0].values[pcieRX] = math.NaN()
	r.all(time.Minute, "spins")
	fixture.Equal(t, r.alone(), "", "one whose PCIe is not counted spins")
}

// TestWaitingWorkloads checks which of four GPUs belong to a waiting workload,
// which spin by themselves, and which wait is too long.
func TestWaitingWorkloads(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		rest    string
		first   []string
		alone   string
		patient time.Duration // 0: it does not wait
	}{
		{"spins", nil, "", WholeFor},
		{"spins", []string{"rests"}, "", lackFor},
		{"spins", []string{"works"}, "", workedFor},
		{"spins", []string{"copies"}, "", workedFor},
		{"spins", []string{"works", "rests"}, "", workedFor},
		{"works", []string{"spins"}, "0", 0},
		{"rests", []string{"spins"}, "0", 0},
		{"rests", []string{"spins", "spins"}, "01", 0},
		{"works", []string{"spins", "spins"}, "", workedFor},
		{"rests", nil, "", 0},
	} {
		r := newCrew(4)
		r.all(5*time.Minute, "works")
		r.all(10*time.Minute+step, c.rest, c.first...)
		want := 0.0
		if c.patient > 0 {
			want = float64(10*time.Minute) / float64(c.patient)
		}
		if got := r.wait("slurm:1"); far(got, want, 1e-6) || r.alone() != c.alone {
			t.Errorf("%s, first %v: %.2f of its patience, want %.2f; %q spin by themselves, want %q",
				c.rest, c.first, got, want, r.alone(), c.alone)
		}
		r.held = "slurm:1"
		r.all(step, c.rest, c.first...)
		if got := r.wait("slurm:1"); got != 0 || r.alone() != "" {
			t.Errorf("%s, first %v, held back: %.2f of its patience; %q spin by themselves", c.rest, c.first, got, r.alone())
		}
	}
}

// TestWaitIsReportedOnce lets the workload on the most GPUs represent those that share some of them.
func TestWaitIsReportedOnce(t *testing.T) {
	t.Parallel()
	r := newCrew(4)
	r.jobs["user:7"], r.jobs["user:8"] = []int{1, 2}, []int{3}
	r.all(5*time.Minute, "spins")
	most, some, one := r.wait("slurm:1"), r.wait("user:7"), r.wait("user:8")
	if !(most > 0) || some != 0 || !math.IsNaN(one) || r.alone() != "" {
		t.Errorf("%.2f, %.2f and %.2f; %q by themselves", most, some, one, r.alone())
	}
}

// TestPatience checks what a workload learns from its waits, also for the next one and over a restart of the agent.
func TestPatience(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		before func(r *crew)
		want   time.Duration
	}{
		{"it never waited", func(*crew) {}, WholeFor},
		{"it waited for short", func(r *crew) { r.all(4*time.Minute, "spins") }, WholeFor},
		{"it waited for long", func(r *crew) { r.all(12*time.Minute, "spins") }, 24 * time.Minute},
		{"the longest counts", func(r *crew) {
			r.all(12*time.Minute, "spins")
			r.all(time.Minute, "works")
			r.all(9*time.Minute, "spins")
		}, 24 * time.Minute},
		{"an hour is the most", func(r *crew) { r.all(50*time.Minute, "spins") }, workedFor},
		{"another waited", func(r *crew) {
			r.all(12*time.Minute, "spins")
			r.all(time.Minute, "works")
			r.jobs = map[string][]int{"slurm:2": {0, 1, 2, 3}, "slurm:1": {0, 1, 2, 3}}
		}, 24 * time.Minute},
		{"it was started anew", func(r *crew) {
			r.all(12*time.Minute, "spins")
			for _, g := range r.gpus {
				g.values[memoryUsed] = 5e9
			}
			r.all(time.Minute, "works")
		}, WholeFor},
		{"it was ended", func(r *crew) {
			jobs := r.jobs
			r.all(12*time.Minute, "spins")
			r.jobs = nil
			r.all(time.Minute, "works")
			r.jobs = jobs
		}, WholeFor},
		{"the agent was started anew", func(r *crew) {
			r.all(12*time.Minute, "spins")
			r.all(time.Minute, "works")
			text := fixture.Value(json.Marshal(r.Save(r.now)))(t)
			r.Metrics = New()
			fixture.Must(t, r.Restore(text, func(at time.Time) time.Time { return at }))
		}, 24 * time.Minute},
		{"a week has passed", func(r *crew) {
			r.all(24*time.Minute, "spins")
			r.all(time.Minute, "works")
			r.now = r.now.Add(waitsWeek)
		}, 24 * time.Minute},
	} {
		r := newCrew(4)
		r.all(5*time.Minute, "works")
		c.before(r)
		r.all(5*time.Minute, "works")
		r.all(5*time.Minute+step, "spins")
		got := time.Duration(float64(5*time.Minute) / r.wait("slurm:1"))
		fixture.If(t, !within(got.Minutes(), c.want.Minutes(), .1),
			"%s: it may wait for %v, want %v", c.name, got, c.want)
	}
}

// TestMisreadPassDoesNotEndAWait has a wait that continues although one or two passes deny it.
func TestMisreadPassDoesNotEndAWait(t *testing.T) {
	t.Parallel()
	for passes, want := range map[time.Duration]float64{1: 10. / 15, 2: 10. / 15, 3: 5. / 15} {
		r := newCrew(2)
		r.all(time.Minute, "works")
		r.all(5*time.Minute+step, "spins")
		r.all(passes*step, "works")
		if r.all(5*time.Minute, "spins"); passes == worksAfter {
			r.all(step, "spins")
		}
		got := r.wait("slurm:1")
		fixture.If(t, far(got, want, 1e-6), "after %d passes: %.3f of its patience, want %.3f", passes, got, want)
	}
}

// TestPauseIsPartOfAWait holds that a wait lasts over a moment in which no GPU spins.
func TestPauseIsPartOfAWait(t *testing.T) {
	t.Parallel()
	r := newCrew(4)
	r.all(5*time.Minute, "spins")
	if r.all(step, "works"); !(r.wait("slurm:1") > 0) {
		t.Errorf("%g of its patience is spent", r.wait("slurm:1"))
	}
}
