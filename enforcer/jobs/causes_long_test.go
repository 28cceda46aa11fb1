//go:build long

package jobs

import (
	"flag"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

var (
	worldCauses  = flag.Int("world.causes", 120, "`number` of jobs that become slow for a reason")
	worldUneven  = flag.Float64("world.uneven", 0, "`part` of its time by which a processor becomes slower, for half of the time")
	worldHealthy = flag.Int("world.healthy", 10, "`number` of healthy jobs that step for ten minutes")
)

// TestWorldOfCauses makes steps longer by a part for a reason, all at once or
// little by little. The goals are 95 % right and 2 % wrong within a minute. Some
// jobs are slow for eight minutes, and must be told at the end of them too. All
// must be told no longer a minute after the end.
func TestWorldOfCauses(t *testing.T) {
	parts := []float64{0.2, 0.5, 2, 0} // 0: any
	type cell struct{ right, wrong, all int }
	cells := map[string]*cell{}
	sum, forgotten, stuck := cell{}, 0, 0
	for seed := *worldSeed; sum.all < *worldCauses; seed++ {
		r := rand.New(rand.NewPCG(seed, 3))
		s, c := styles[r.IntN(len(styles))], &reasons[int(seed)%len(reasons)]
		part := parts[r.IntN(len(parts))]
		if part == 0 {
			part = 0.2 * (1 + 9*r.Float64())
		}
		for c.fits != nil && !c.fits(&s) {
			s = styles[r.IntN(len(styles))]
		}
		s.uneven = *worldUneven
		all := burdens(r, s, c, part)
		if all[0].strong == 0 {
			continue
		}
		o := slowed(t, r, seed, s, all)
		if !o.right || o.wrong {
			t.Logf("seed %3d %-26s %-10s +%.2f (and %s): told %q, before %q", seed, s.name, c.name+" "+c.how, part,
				all[len(all)-1].reason.name, o.told, o.before)
		}
		if o.forgot || o.stuck {
			t.Logf("seed %3d %-26s %-10s +%.2f: forgotten %v, not cleared %v", seed, s.name, c.name, part, o.forgot, o.stuck)
		}
		forgotten, stuck = forgotten+truth(o.forgot), stuck+truth(o.stuck)
		for _, name := range []string{strings.TrimSpace(c.name + " " + c.how), s.name} {
			if cells[name] == nil {
				cells[name] = &cell{}
			}
			cells[name].all++
			cells[name].right += truth(o.right)
			cells[name].wrong += truth(o.wrong)
		}
		sum.all++
		sum.right, sum.wrong = sum.right+truth(o.right), sum.wrong+truth(o.wrong)
	}
	for name, c := range cells {
		t.Logf("%-26s %d of %d right, %d wrong", name, c.right, c.all, c.wrong)
	}
	t.Logf("all: %d of %d right, %d wrong; %d forgotten, %d not cleared", sum.right, sum.all, sum.wrong, forgotten, stuck)
	if sum.right*100 < 95*sum.all || sum.wrong*100 > 2*sum.all || 50*(forgotten+stuck) > sum.all {
		t.Error("want 95 % right, 2 % wrong, and next to none forgotten or not cleared")
	}
}

// TestWorldIsAsUsual lets healthy jobs step; nothing may be told.
func TestWorldIsAsUsual(t *testing.T) {
	told := 0
	for i := range *worldHealthy {
		r := rand.New(rand.NewPCG(uint64(i), 9))
		s := styles[i%len(styles)]
		s.uneven = *worldUneven
		o := newOffice(t, s, uint64(i), 0.01+0.04*r.Float64())
		o.knows = allDay(r)
		o.advance(10*time.Minute, func() {
			if o.IntN(120) == 0 { // circumstances change without an effect
				o.knows = allDay(r)
			}
			if o.told != "" {
				told++
				t.Errorf("%s, world %d, %d s: told %q", s.name, i, (o.h.at-1e12)/1e9, o.told)
				o.told = ""
			}
		})
	}
	t.Logf("told in %d of %d s", told, 600**worldHealthy)
}
