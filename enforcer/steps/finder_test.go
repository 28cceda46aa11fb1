package steps

import (
	"math"
	"slices"
	"testing"

	"gpusteward/internal/wire"
)

// A result is what the finder made of a program.
type result struct {
	found     int     // steps of the script until the finder knew that there are steps
	median    float64 // error of the median step, relative
	p99       float64
	counted   float64 // found steps by those of the script, from then on
	stepping  float64 // share of the time in which the finder said that there are steps
	remaining int     // steps that were not withdrawn
}

// batches feeds events as the broker does, more often.
func batches(f *Finder, events []wire.Event, each func(now int64)) {
	for len(events) > 0 {
		until := events[0].At/ms*ms + ms
		n := 0
		for n < len(events) && events[n].At < until {
			n++
		}
		f.Feed(events[:n])
		events = events[n:]
		each(until)
	}
}

func percentile(times []int64, p float64) float64 {
	slices.Sort(times)
	return float64(times[int(p*float64(len(times)-1))])
}

func judge(w *world) (r result) {
	var f Finder
	var all []Step
	stepping, looks := 0, 0
	batches(&f, w.events, func(now int64) {
		looks++
		if f.Status(now).Stepping {
			stepping++
		}
		kept := uint64(len(f.steps))
		for uint64(len(all)) < f.finished {
			all = append(all, Step{flags: withdrawn})
		}
		for n := f.finished - min(f.finished, kept); n < f.finished; n++ {
			all[n] = f.steps[n%kept]
		}
	})
	r.stepping = float64(stepping) / float64(looks)
	all = slices.DeleteFunc(all, func(s Step) bool { return s.flags&withdrawn != 0 })
	r.remaining = len(all)
	r.found = len(w.truth)
	if len(all) == 0 || len(w.truth) == 0 {
		return r
	}
	r.found = 0
	var truth, found []int64
	for _, s := range w.truth {
		if s.end <= all[0].End-(s.end-s.begin)/2 {
			r.found++
			continue
		}
		truth = append(truth, s.end-s.begin)
	}
	for _, s := range all {
		if !s.Interrupted() {
			found = append(found, int64(s.Wall()))
		}
	}
	if len(truth) == 0 {
		return r
	}
	r.counted = float64(len(all)) / float64(len(truth))
	r.median = percentile(found, .5)/percentile(truth, .5) - 1
	// The steps at both ends may be on one side only: allow half of a percentile.
	p99 := percentile(found, .99)
	r.p99 = max(p99/percentile(truth, .995)-1, 0) + min(p99/percentile(truth, .985)-1, 0)
	return r
}

// TestPrograms: steps are found in all programs that have them, with the times
// that the script's own timer shows, and in no other.
func TestPrograms(t *testing.T) {
	for _, p := range programs {
		for seed := range uint64(3) {
			check(t, p, seed, result{found: 20, median: 0.003, p99: 0.02, counted: 0.03, stepping: 0.15})
		}
	}
}

// TestKeptPrograms: in some of these no place in the step is that of the timer.
func TestKeptPrograms(t *testing.T) {
	for _, p := range kept {
		for seed := range uint64(3) {
			check(t, p, seed, result{found: 20, median: 0.01, p99: 0.15, counted: 0.04, stepping: 0.35})
		}
	}
}

// check runs a program, and compares the result with the worst that may be.
func check(t *testing.T, p program, seed uint64, worst result) {
	t.Helper()
	w := newWorld(seed)
	p.run(w, p.steps)
	r := judge(w)
	t.Logf("%-48s found after %2d  median %+6.3f %%  p99 %+6.2f %%  counted %.3f  stepping %.2f  remaining %d", p.name,
		r.found, 100*r.median, 100*r.p99, r.counted, r.stepping, r.remaining)
	if p.steps == 0 && r.stepping > worst.stepping {
		t.Errorf("%s, seed %d: %d steps", p.name, seed, r.remaining)
	}
	if p.steps > 0 && (r.found > worst.found || math.Abs(r.median) > worst.median || math.Abs(r.p99) > worst.p99 ||
		math.Abs(r.counted-1) > worst.counted) {
		t.Errorf("%s, seed %d: %+v", p.name, seed, r)
	}
}

// TestLaterPrograms: as TestKeptPrograms, with what is known to fall short. Two kinds
// of steps in turn are taken for one.
func TestLaterPrograms(t *testing.T) {
	checkAll(t, later, result{found: 20, median: 0.007, p99: 0.07, counted: 0.04, stepping: 0.07}, map[string]result{
		"actor each second step": {found: 30, median: 0.8, p99: 0.5, counted: 0.51},
	})
}

// TestFreshPrograms: as TestLaterPrograms. The first of very long evaluations is taken
// for steps. The GPU's own time is that of steps that begin elsewhere, unless the
// program is held up. Steps of random lengths that begin elsewhere have other medians.
// The first pieces may remain. Tokens look like steps while nothing shows that requests
// differ.
func TestFreshPrograms(t *testing.T) {
	checkAll(t, fresh, result{found: 20, median: 0.003, p99: 0.02, counted: 0.04, stepping: 0.01}, map[string]result{
		"evaluation of 1500 batches after each 120 steps":       {found: 20, median: 0.4, p99: 0.1, counted: 2},
		"evaluation of 20 batches after each 40 steps":          {found: 20, median: 0.02, p99: 0.02, counted: 0.01},
		"accumulation of 32, four kernels update, never waits":  {found: 20, median: 0.003, p99: 0.07, counted: 0.04},
		"a recurrent network, 20 to 70 steps of time":           {found: 20, median: 0.005, p99: 0.02, counted: 0.01},
		"trees of any size, loader":                             {found: 20, median: 0.04, p99: 0.03, counted: 0.01},
		"accumulation of 16, sequences of any length":           {found: 20, median: 0.02, p99: 0.07, counted: 0.06},
		"64 moves of an agent, then 16 updates":                 {found: 20, median: 0.003, p99: 0.02, counted: 0.06},
		"two networks in turn, never waits, GPU-bound":          {found: 20, median: 0.003, p99: 0.08, counted: 0.01},
		"a chat server whose first answers have 64 tokens each": {stepping: 0.1},
		"answers by an engine whose threads take turns":         {stepping: 0.1},
		"answers of 40 to 2000 tokens, kernels by hand":         {stepping: 0.35},
	})
}

// TestAsidePrograms: as TestFreshPrograms. Steps of one thread that launches more or
// less are none.
func TestAsidePrograms(t *testing.T) {
	checkAll(t, aside, result{found: 20, median: 0.003, p99: 0.02, counted: 0.04, stepping: 0.05}, map[string]result{
		"speech of 1 to 4 s": {found: 20, median: 0.015, p99: 0.04, counted: 0.01},
		"molecules, kernels by number of atoms, one thread": {found: 400, counted: 1},
		"translations whose first 20 sentences are alike":   {stepping: 0.2},
	})
}

// checkAll compares with the worst that may be, or with that of programs that are
// known to be worse.
func checkAll(t *testing.T, programs []program, worst result, known map[string]result) {
	t.Helper()
	for _, p := range programs {
		limit, is := known[p.name]
		if !is {
			limit = worst
		}
		for seed := range uint64(3) {
			check(t, p, seed, limit)
		}
	}
}
