package steps

import (
	"math"
	"slices"
	"testing"

	"gpusteward/internal/fixture"
	"gpusteward/internal/wire"
)

// A result is what the finder made of a program.
type result struct {
	found     int     // steps of the script until the finder knew that there are steps
	median    float64 // error of the median step, relative
	p99       float64
	single    float64 // median of the errors of single steps without their signs, relative
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
	r.single = single(w.truth, all)
	r.counted = float64(len(all)) / float64(len(truth))
	r.median = percentile(found, .5)/percentile(truth, .5) - 1
	// The steps at both ends may be on one side only: allow half of a percentile.
	p99 := percentile(found, .99)
	r.p99 = max(p99/percentile(truth, .995)-1, 0) + min(p99/percentile(truth, .985)-1, 0)
	return r
}

// single returns the median error of single steps.
func single(truth []span, found []Step) float64 {
	var errors []float64
	for _, s := range found {
		for len(truth) > 1 && truth[1].end-s.End < s.End-truth[0].end { // the next one is nearer
			truth = truth[1:]
		}
		wall := float64(truth[0].end - truth[0].begin)
		errors = append(errors, math.Abs(float64(s.Wall())-wall)/wall)
	}
	slices.Sort(errors)
	return errors[len(errors)/2]
}

// TestPrograms: steps are found in all programs that have them, with the times that the script's own timer shows, and
// in no other. A step of a few calls has its noise in the pauses between them, of which the timer stands in one.
func TestPrograms(t *testing.T) {
	t.Parallel()
	checkAll(t, programs, result{found: 20, median: 0.003, p99: 0.02, counted: 0.03, stepping: 0.15}, map[string]result{
		"Triton loop":                 {found: 20, median: 0.004, p99: 0.05, counted: 0.01},
		"accumulation of 4 as graphs": {found: 20, median: 0.003, p99: 0.06, counted: 0.01},
	})
}

// check runs a program, and compares the result with the worst that may be.
func check(t *testing.T, p program, seed uint64, worst result) {
	t.Helper()
	w := newWorld(seed)
	p.run(w, p.steps)
	r := judge(w)
	t.Logf("%-48s found after %2d  median %+6.3f %%  p99 %+6.2f %%  counted %.3f  stepping %.2f  remaining %d", p.name,
		r.found, 100*r.median, 100*r.p99, r.counted, r.stepping, r.remaining)
	fixture.If(t, p.steps == 0 && (r.stepping > worst.stepping || r.remaining > 0),
		"%s, seed %d: %d steps", p.name, seed, r.remaining)
	fixture.If(t, p.steps > 0 && (r.found > worst.found || math.Abs(r.median) > worst.median || math.Abs(r.p99) > worst.p99 ||
		math.Abs(r.counted-1) > worst.counted), "%s, seed %d: %+v", p.name, seed, r)
}

// checkAll compares with the worst that may be, or with that of programs that are known to be worse.
func checkAll(t *testing.T, programs []program, worst result, known map[string]result) {
	t.Helper()
	for _, p := range programs {
		limit, is := known[p.name]
		if !is {
			limit = worst
		}
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(3) {
				check(t, p, seed, limit)
			}
		})
	}
}
