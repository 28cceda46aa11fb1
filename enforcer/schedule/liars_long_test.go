//go:build long

package schedule

import (
	"fmt"
	"testing"
	"time"

	"gpusteward/internal/fixture"
)

// Tenants that take every turn and lie about it get together no more than their
// weights. A tenant that shares the GPU with them gets its part, also where programs run at once.
func TestLiars(t *testing.T) {
	t.Parallel()
	const long = 11 * time.Second
	for what, lie := range lies {
		for _, kernel := range []time.Duration{0, 50 * ms} {
			// with two sessions, one may wait for the other and may launch during the drain
			for i := range 4 {
				sessions, least, concurrent := 1+i%2, 0.94, i > 1
				// trials let liars run, too, five of them in these 11 s; and launches at
				// the end of a drain are not charged if nobody reports them
				if kernel > 0 {
					if least = 0.91; concurrent { // each launch waits for the ends of their kernels
						least = 0.86
					}
				}
				a, b := kind("queue", 50), kind("queue", 38)
				a.name, b.name = "a", "b"
				all := []*program{a, b}
				for i := range 6 {
					all = append(all, &program{name: fmt.Sprint("liar ", i), Share: Share{Weight: 2}, kernel: kernel,
						lie: lie})
				}
				w := newWorld(t, false, nil, all...)
				w.scheduler.config.Concurrent = concurrent
				for _, p := range all[2:] {
					for range sessions - 1 {
						w.gpus[0].g.Join(0, p.name, p.Share)
					}
				}
				w.run(long)
				for _, p := range all[:2] {
					part := p.rate(begin, long) / alone(t, "queue").lone * 100 / p.Weight
					line := fmt.Sprintf("%s has %.3f of its part beside who says: %s (%d sessions, kernels of %v, at once: %v)",
						p.name, part, what, sessions, kernel, concurrent)
					if t.Log(line); part < least {
						t.Errorf("%s; at least %.2f", line, least)
					}
				}
			}
		}
	}
}

// Ways to have long work on the GPU after one's turn: long kernels on several streams and in several processes, short
// ones between them, gaps, stops, and ranks that wait for one another. None brings a tenant more of 20 s than its
// limit, or its part beside one that fills the GPU and one that waits for each step. Those have their guarantees. It
// does not matter who comes first, nor whether the driver lets time slices be set.
func TestLongWorkIsOwed(t *testing.T) {
	t.Parallel()
	const long, part = 20 * time.Second, 0.3
	stops := func(goes, cycle time.Duration) program {
		return program{kernel: 100 * ms, deep: 4, stops: 120 * ms, goes: 120*ms + goes, cycle: cycle}
	}
	for what, way := range map[string]program{
		"50 ms":        {kernel: 50 * ms, deep: 1},
		"100 ms":       {kernel: 100 * ms, deep: 1},
		"400 ms":       {kernel: 400 * ms, deep: 1},
		"100 ms by 4":  {kernel: 100 * ms, deep: 4},
		"100 ms by 24": {kernel: 100 * ms, deep: 24},
		"200 ms by 4":  {kernel: 200 * ms, deep: 4},
		"1 s":          {kernel: time.Second, deep: 1},
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
		for i := range 3 * 2 * 2 * 2 {
			victim, limited, sliced, from := []string{"queue", "steps", ""}[i%3], i/3%2 == 0, i/6%2 == 0, time.Duration(i/12)*begin
			if victim == "" && (!limited || from > 0) {
				continue
			}
			a, most := way, part+0.02
			a.name, a.Share, a.cpu, a.count, a.ahead, a.from = "a", Share{Weight: 30}, 5*us, 1, a.gap == 0, from
			if limited {
				a.Share, most = Share{Weight: 25, Limit: 0.25}, 0.27
			}
			a.stops, a.goes = a.stops+from, a.goes+from
			turn := float64(max(a.deep, 1)) * a.kernel.Seconds() / long.Seconds()
			all, on := []*program{&a}, [][]int{nil}
			if what[:2] == "ra" {
				on[0] = []int{0, 1}
			}
			if victim == "" { // windows hold whole turns
				most += (1 - a.Limit) * turn
			} else {
				all, on = append(all, kind(victim, 70)), append(on, nil)
				all[1].name = "v"
			}
			if !limited { // and what it began before it had anything to pay
				most += turn / 2
			} else if !sliced && from == 0 { // or before it was known what it leaves
				most += turn
			}
			w := newWorld(t, false, on, all...)
			w.scheduler.config.Slices = sliced
			w.run(from + ms)
			w.link(&a)
			w.run(long - ms)
			had := a.ranks[0].done.Seconds() / long.Seconds()
			fixture.AtMost(t, had, most, "%s has … of the GPU beside %q, limit %v, slices %v, from %v", what, victim, a.Limit, sliced, from)
			if victim != "" {
				fixture.AtLeast(t, all[1].rate(from+begin, from+long)/alone(t, victim).lone, 0.62, "%s has … beside %s, slices %v, from %v", victim, what, sliced, from)
			}
		}
	}
}
