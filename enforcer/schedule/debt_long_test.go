//go:build long

package schedule

import (
	"testing"
	"time"

	"gpusteward/internal/fixture"
)

// Ways to have long work on the GPU after one's turn: long kernels on several
// streams and in several processes, short ones between them, gaps, stops, and
// ranks that wait for one another. None brings a tenant more of 20 s than its
// limit, or its part beside one that fills the GPU and one that waits for each
// step. Those have their guarantees.
func TestLongWorkIsOwed(t *testing.T) {
	t.Parallel()
	const long, part = 20 * time.Second, 0.3
	stops := func(goes, cycle time.Duration) program {
		return program{kernel: 100 * ms, deep: 4, stops: 120 * ms, goes: 120*ms + goes, cycle: cycle}
	}
	for what, way := range map[string]program{
		"100 ms by 4":  {kernel: 100 * ms, deep: 4},
		"100 ms by 24": {kernel: 100 * ms, deep: 24},
		"200 ms by 4":  {kernel: 200 * ms, deep: 4},
		"1 s":          {kernel: time.Second},
		"short ones":   {kernel: 100 * ms, deep: 40, every: 10},
		"processes":    {kernel: 100 * ms, deep: 8, seats: 3},
		"gaps":         {kernel: 100 * ms, deep: 4, gap: 120 * ms},
		"stops":        stops(400*ms, 100*ms),
		"stops 250":    stops(250*ms, 400*ms),
		"stops 700":    stops(700*ms, 60*ms),
		"stops 900":    stops(900*ms, 1500*ms),
		"ranks":        {kernel: 100 * ms, deep: 2},
		"ranks meet":   {kernel: 100 * ms, deep: 2, meets: true},
	} {
		for _, victim := range []string{"queue", "steps", ""} {
			for _, terms := range []Share{{Weight: 25, Limit: 0.25}, {Weight: 30}} {
				a := way
				a.name, a.Share, a.cpu, a.count, a.ahead = "a", terms, 5*us, 1, a.gap == 0
				all, on, most := []*program{&a}, [][]int{nil}, part+0.02
				if what[:2] == "ra" {
					on[0] = []int{0, 1}
				}
				if victim != "" {
					all, on = append(all, kind(victim, 70)), append(on, nil)
				} else if terms.Limit == 0 {
					continue
				}
				if all[len(all)-1].name = "v"; terms.Limit > 0 {
					most = terms.Limit + 0.02
				} else { // and what it began before it had anything to pay
					most += float64(a.deep) * a.kernel.Seconds() / long.Seconds() / 2
				}
				w := newWorld(t, false, on, all...)
				w.run(ms)
				w.link(&a)
				w.run(long - ms)
				had := a.ranks[0].done.Seconds() / long.Seconds()
				fixture.AtMost(t, had, most, "%s has … of the GPU beside %q, limit %v", what, victim, terms.Limit)
				if victim != "" {
					fixture.AtLeast(t, all[1].rate(begin, long)/alone(t, victim).lone, 0.65, "%s has … beside %s", victim, what)
				}
			}
		}
	}
}
