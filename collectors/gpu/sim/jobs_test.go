package sim

import (
	"testing"
	"time"

	"gpusteward/internal/wire"
)

// jobsOf returns the enforcer's books, and the jobs of a workload by GPU.
func jobsOf(h *Host, workload string) (e *wire.EnforcerStats, jobs []wire.JobStats) {
	s, _ := h.Books()
	for _, j := range s.Enforcer.Jobs {
		if j.Workload == workload {
			jobs = append(jobs, j)
		}
	}
	return s.Enforcer, jobs
}

// TestDemoShowsTrouble follows the jobs of the demo for as long as a newcomer
// looks: one is well, one is slow, one has a straggler, and one hangs and gets
// on.
func TestDemoShowsTrouble(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := begin(t, embedded(t, "demo"), Options{Seed: 1})
		if e, _ := jobsOf(h, ""); len(e.Hangs)+len(e.Stragglers) > 0 {
			t.Errorf("trouble is told before it can be known: %+v %+v", e.Hangs, e.Stragglers)
		}
		time.Sleep(100 * time.Second)
		e, hanging := jobsOf(h, "slurm:4716.0")
		_, slow := jobsOf(h, "slurm:4713.0")
		_, well := jobsOf(h, "slurm:4711.0")
		_, straggling := jobsOf(h, "slurm:4712.0")
		if len(e.Hangs) != 1 || e.Hangs[0] != (wire.HangStats{Tenant: "research", Workload: "slurm:4716.0",
			GPU: hanging[1].GPU, PID: hanging[1].PID, Rank: 1, Reason: "absent", Seconds: 60, Waiting: 1,
			Where: "/home/frank/tune.py:142 in load_batch"}) {
			t.Errorf("hangs are %+v", e.Hangs)
		}
		if s := slow[0].Slowdown; s == nil || s.Cause != "storage" || s.Evidence == "" || s.Part() < 0.2 ||
			slow[0].Median < 1.2*s.Usual || slow[0].Slow["storage"] < 100 {
			t.Errorf("the slow job is %+v, because %+v", slow[0], s)
		}
		if len(e.Stragglers) != 1 || e.Stragglers[0] != (wire.StragglerStats{Tenant: "research",
			Workload: "slurm:4712.0", GPU: straggling[1].GPU, PID: straggling[1].PID, Rank: 1, Cause: "host", Lost: 0.14}) {
			t.Errorf("stragglers are %+v", e.Stragglers)
		}
		if a, b := straggling[0], straggling[1]; b.Communicators[0].Seconds > 0.9*a.Communicators[0].Seconds ||
			b.Parts["host"] < 1.5*a.Parts["host"] {
			t.Errorf("the rank does not come last: %+v, %+v", a, b)
		}
		for _, j := range append(well, straggling...) {
			if !j.Stepping || j.Slowdown != nil {
				t.Errorf("%s: %+v", j.Workload, j)
			}
		}
		if !idles(t, h, 6) || idles(t, h, 5) {
			t.Error("the culprit computes, or the rank that waits for it does not")
		}

		time.Sleep(30 * time.Second)
		e, again := jobsOf(h, "slurm:4716.0")
		if len(e.Hangs) != 0 || !again[0].Stepping || again[0].Steps == hanging[0].Steps {
			t.Errorf("it does not get on: %+v, %+v", e.Hangs, again[0])
		}
		if hanging[0].Stepping || again[0].Outside-hanging[0].Outside < 14 {
			t.Errorf("the time of the hang is not outside of steps: %+v, %+v", hanging[0], again[0])
		}
	})
}

// idles reports whether the driver sees no work on a GPU.
func idles(t *testing.T, h *Host, index int) bool {
	t.Helper()
	u, ret := gpuOf(t, h, index).GetUtilizationRates()
	check(t, ret)
	return u.Gpu < 10
}
