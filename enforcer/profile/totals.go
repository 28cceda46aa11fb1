package profile

import (
	"cmp"
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"gpusteward/enforcer/symbol"
	"gpusteward/internal/wire"
)

// Bounds of totals.
const (
	glance     = time.Second      // for so long a program is observed,
	round      = 20 * time.Second // and again about so much later, but no sooner than after half of that
	top        = 10               // kernels of a workload on a GPU that are shown, of
	mostNamed  = 64               // that are known by name,
	renamed    = time.Minute      // and beyond them another one so often: a Prometheus keeps all that were ever shown
	mostPlaces = 256              // workloads on GPUs; a party has no more than are free
	mostLabel  = 128              // bytes of a name: what is behind them is cut off of a label, and no two kernels may have one
	keepTotals = 10 * time.Minute // after the last program of a workload was seen
)

// Totals estimate the GPU time of each workload's kernels. One program after the other is observed for a second, about
// every 20 s, and what its kernels took then stands for the time since it was observed before. The zero value is
// empty. Its methods are safe for concurrent use.
type Totals struct {
	mu       sync.Mutex
	observed map[int]time.Time    // when a process was last, by PID,
	parties  map[string]time.Time // and a party, whose processes may have ended
	places   map[place]*totalsOf
}

// A place is a workload on a GPU.
type place struct{ tenant, workload, gpu string }

// totalsOf are the totals of a workload on a GPU.
type totalsOf struct {
	party   string             // see procs.Party
	seconds map[string]float64 // by name
	seen    time.Time
	renamed time.Time // when a name last made way for another one
}

// Keep observes programs until ctx ends. pids returns those that can be observed now, with their parties (procs.Party),
// and observe observes one.
func (t *Totals) Keep(ctx context.Context, pids func() map[int]string, observe func(ctx context.Context, pid int, d time.Duration) (Profile, error)) {
	next := time.NewTimer(0)
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-next.C:
		}
		all := pids()
		if pid, since, ok := t.next(all, time.Now()); ok {
			if p, err := observe(ctx, pid, glance); err == nil { // else another profile of it runs, or it has ended
				t.add(p, all[pid], since, time.Now())
			}
		}
		// Chance keeps a program whose work repeats from being seen in one part of it alone.
		next.Reset(time.Duration((0.5 + rand.Float64()) * float64(round) / float64(max(len(all), 1))))
	}
}

// next returns a process to observe, and the time since it was observed, 0 if it never was. It is of the party that was
// not observed for the longest time, and the one in it: so a user with many processes, which may be new each time, waits
// alone for them.
func (t *Totals) next(pids map[int]string, now time.Time) (pid int, since time.Duration, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	was, first := t.observed, map[string]int{}
	t.observed = map[int]time.Time{}
	for p, party := range pids {
		t.observed[p] = was[p]
		if one, is := first[party]; !is || was[p].Before(was[one]) {
			first[party] = p
		}
	}
	maps.DeleteFunc(t.parties, func(party string, at time.Time) bool { return first[party] == 0 && now.Sub(at) >= round })
	for party, p := range first {
		if now.Sub(was[p]) >= round/2 && (!ok || t.parties[party].Before(t.parties[pids[pid]])) {
			pid, ok = p, true
		}
	}
	if !ok {
		return 0, 0, false
	}
	if before := was[pid]; !before.IsZero() {
		since = now.Sub(before)
	}
	if t.parties == nil {
		t.parties = map[string]time.Time{}
	}
	t.observed[pid], t.parties[pids[pid]] = now, now
	return pid, since, true
}

// add adds what a profile of a party's process found, as if it had lasted for the time since the one before.
func (t *Totals) add(p Profile, party string, since time.Duration, now time.Time) {
	if p.Workload == "" || p.Seconds <= 0 {
		return
	}
	scale := max(since.Seconds(), p.Seconds) / p.Seconds
	t.mu.Lock()
	defer t.mu.Unlock()
	own := 0
	for _, of := range t.places {
		if of.party == party {
			own++
		}
	}
	for _, k := range p.Kernels {
		at := place{p.Tenant, p.Workload, k.GPU}
		of := t.places[at]
		switch {
		case k.GPU == "" || k.Samples == 0 || of == nil && own >= mostPlaces-len(t.places):
			continue
		case of == nil:
			own++
			if of = (&totalsOf{party: party, seconds: map[string]float64{}}); t.places == nil {
				t.places = map[place]*totalsOf{}
			}
			t.places[at] = of
		}
		of.seen = now
		of.add(label(k.Name), k.Total*scale, now)
	}
}

// add adds to a kernel's time. If there are too many, the one with the least makes way for one with more, now and then.
func (of *totalsOf) add(name string, seconds float64, now time.Time) {
	if _, known := of.seconds[name]; !known && len(of.seconds) >= mostNamed {
		if now.Sub(of.renamed) < renamed {
			return
		}
		least := ""
		for other, s := range of.seconds {
			if least == "" || s < of.seconds[least] {
				least = other
			}
		}
		if seconds <= of.seconds[least] {
			return
		}
		delete(of.seconds, least)
		of.renamed = now
	}
	of.seconds[name] += seconds
}

// label returns the name of a kernel as the label of a metric.
func label(name string) string {
	name = symbol.Long(name)
	return strings.ToValidUTF8(name[:min(len(name), mostLabel)], "")
}

// Top returns the kernels with the most time of each workload on each GPU, those first.
func (t *Totals) Top(now time.Time) (all []wire.KernelStats) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for at, of := range t.places {
		if now.Sub(of.seen) > keepTotals {
			delete(t.places, at)
			continue
		}
		var some []wire.KernelStats
		for name, seconds := range of.seconds {
			some = append(some, wire.KernelStats{Tenant: at.tenant, Workload: at.workload, GPU: at.gpu, Kernel: name, Seconds: seconds})
		}
		slices.SortFunc(some, func(a, b wire.KernelStats) int {
			return cmp.Or(cmp.Compare(b.Seconds, a.Seconds), strings.Compare(a.Kernel, b.Kernel))
		})
		all = append(all, some[:min(len(some), top)]...)
	}
	return all
}
