package sim

import (
	"math"
	"testing"
	"time"

	"gpusteward/internal/wire"
)

// TestJobsStep compares the jobs of the demo with each other: training steps,
// with one rank for which the others wait, and servers do not.
func TestJobsStep(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := begin(t, embedded(t, "mixed"), Options{Seed: 1})
		before, _ := h.Books()
		time.Sleep(10 * time.Minute)
		after, _ := h.Books()
		ranks, servers := map[int]wire.JobStats{}, 0
		for i, j := range after.Enforcer.Jobs {
			if j.Steps == 0 {
				servers++
				if j.Stepping || j.Launches == 0 || j.Busy == 0 || len(j.Communicators) > 0 {
					t.Errorf("a server: %+v", j)
				}
				continue
			}
			ranks[j.Communicators[0].Rank] = j
			parts := 0.0
			for _, seconds := range j.Parts {
				parts += seconds
			}
			if math.Abs(parts-j.Seconds.Sum) > 1e-6 || j.Seconds.Count != j.Steps || j.Slow["storage"] == 0 {
				t.Errorf("its parts are %v s: %+v", parts, j)
			}
			was := before.Enforcer.Jobs[i]
			wall := j.Seconds.Sum + j.Outside - was.Seconds.Sum - was.Outside
			if wall < 590 || wall > 610 || j.Outside == was.Outside {
				t.Errorf("%v s of 600 are accounted for, %v s outside", wall, j.Outside-was.Outside)
			}
		}
		if len(ranks) != 3 || servers < 3 {
			t.Fatalf("%d ranks and %d servers", len(ranks), servers)
		}
		of := func(rank int) wire.CommunicatorStats { return ranks[rank].Communicators[0] }
		if of(0).ID != of(2).ID || of(0).Ranks != 3 || of(2).Seconds > 0.9*of(0).Seconds ||
			of(1).Seconds != of(0).Seconds || of(2).Entered != of(0).Entered {
			t.Errorf("the last rank is not behind: %+v %+v %+v", of(0), of(1), of(2))
		}
		before.Enforcer.Jobs[0].Parts["host"] = -1
		if again, _ := h.Books(); again.Enforcer.Jobs[0].Parts["host"] < 0 {
			t.Error("books share their maps with the simulation")
		}
	})
}
