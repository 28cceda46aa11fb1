//go:build long

package jobs

import (
	"flag"
	"slices"
	"testing"
	"time"

	"gpusteward/internal/wire"
)

var worldStragglers = flag.Int("world.stragglers", 30, "`number` of jobs with a straggler")

// TestWorldStragglers lets ranks be late by 10 to 50 %, and counts those that
// are named with their cause, within a minute, or within fifteen steps if these
// are long. The goals: 95 % right, and a wrong rank in 1 %.
func TestWorldStragglers(t *testing.T) {
	n, right, wrong, caused := 0, 0, 0, 0
	var times []time.Duration
	for seed := uint64(0); n < *worldStragglers; seed++ {
		p, l := programs[int(seed)%len(programs)], latenesses[int(seed/uint64(len(programs)))%len(latenesses)]
		if p.here < 2 || p.pipeline || p.graph || p.ahead > 0 && !l.all {
			continue // it has no peers, or is not measured, or nobody waits
		}
		n++
		w := newWorld(t, p, *worldSeed<<32+9000+seed)
		w.settle()
		by := 0.1 + 0.4*w.Float64()
		told, after := w.straggles(l, by, max(time.Minute, 15*w.step))
		switch {
		case len(told) == 0:
			t.Logf("%s, %s by %.2f, seed %d: not named", p.name, l.cause, by, seed)
		case slices.ContainsFunc(told, isWrong):
			wrong++
			t.Logf("%s, %s by %.2f, seed %d: %+v", p.name, l.cause, by, seed, told)
		default:
			right++
			caused += truth(told[0].Cause == l.cause)
			times = append(times, after)
		}
	}
	slices.Sort(times)
	t.Logf("%d of %d are named, the median after %v, 90 %% within %v; %d with the right cause; %d times another rank is named",
		right, n, times[len(times)/2], times[len(times)*9/10], caused, wrong)
	if right*100 < 95*n || wrong*100 > n || caused*100 < 95*right {
		t.Error("too few, or wrong")
	}
}

func isWrong(s wire.StragglerStats) bool { return s.Cause == "wrong" }
