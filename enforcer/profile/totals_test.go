package profile

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"gpusteward/internal/fixture"
	"gpusteward/internal/wire"
)

// observes takes as long as an observation, of the test's own time, unless that is ended.
func observes(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// What a second of a program shows stands for the time since it was observed before. The rarest kernels are not shown,
// and the names of a workload are bounded.
func TestTotals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all Totals
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		looks, slow := map[int]int{}, strings.Repeat("s", 128) // as long as a label
		all.Keep(ctx, func() map[int]string { return map[int]string{1: "1", 2: "1", 3: "1"} }, func(ctx context.Context, pid int, d time.Duration) (Profile, error) {
			observes(ctx, d)
			if looks[pid]++; pid == 3 {
				return Profile{}, ErrRuns
			}
			p := Profile{Tenant: "a", Workload: fmt.Sprint("w", pid), Seconds: 1, Kernels: []Kernel{
				{Name: slow + "1", GPU: "G", Samples: 9, Total: 0.2}, {Name: slow + "2", GPU: "G", Samples: 9, Total: 0.3},
				{Name: "unsampled", GPU: "G"}, {Name: "nowhere", Samples: 9, Total: 1}}}
			for i := range 2 * mostNamed {
				p.Kernels = append(p.Kernels, Kernel{Name: fmt.Sprint("k", i), GPU: "G", Samples: 1, Total: 0.001 * float64(i%20+1)})
			}
			return p, nil
		})
		fixture.If(t, looks[1] < 20 || looks[2] < 20 || looks[3] < 20, "looks at the programs in ten minutes: %v", looks)
		top10 := all.Top(time.Now())
		fixture.Equal(t, len(top10), 2*top, "kernels of two workloads are shown:")
		for _, k := range []wire.KernelStats{top10[0], top10[top]} {
			fixture.If(t, k.Kernel != slow || k.Seconds < 270 || k.Seconds > 305, "half of ten minutes is %+v", k)
		}
		fixture.If(t, top10[1].Kernel != "k19" && top10[1].Kernel != "k39" && top10[1].Kernel != "k59", "the second is %v", top10[1])
		fixture.Equal(t, len(all.places[place{"a", "w1", "G"}].seconds), mostNamed, "names are kept:")
		of := totalsOf{seconds: map[string]float64{}}
		for i := range 600 { // seconds, in each of which a program calls its kernel otherwise
			of.add(fmt.Sprint("k", 1000+i), float64(i), time.Now().Add(time.Duration(i)*time.Second))
		}
		fixture.Equal(t, len(of.seconds)-strings.Count(fmt.Sprint(of.seconds), "k10"), 8, "names that came later than the first hundred, of 500:")
		fixture.Equal(t, len(all.Top(time.Now().Add(keepTotals+time.Second))), 0, "kernels of workloads that are gone:")
	})
}

// TestAUserWithManyProgramsHidesNoOther: nor does one with as many workloads, and with other programs each time.
func TestAUserWithManyProgramsHidesNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all Totals
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Minute)
		defer cancel()
		pids, looks := map[int]string{}, map[int]int{}
		for pid := range 1000 {
			pids[pid+2] = "many"
		}
		all.Keep(ctx, func() map[int]string { return pids }, func(ctx context.Context, pid int, d time.Duration) (Profile, error) {
			observes(ctx, d)
			if looks[pid]++; pid > 1 {
				delete(pids, pid)
				pids[pid+1000] = "many"
			}
			if len(looks) == 500 { // the other one has all that there is
				pids[1] = "one"
			}
			return Profile{Tenant: "a", Workload: fmt.Sprint("w", pid), Seconds: 1, Kernels: []Kernel{{Name: "k", GPU: "G", Samples: 1, Total: 1}}}, nil
		})
		fixture.If(t, looks[1] < 60 || all.places[place{"a", "w1", "G"}] == nil, "%d looks at the other's program, in %d places", looks[1], len(all.places))
	})
}
