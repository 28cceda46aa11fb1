//go:build gpu

package enforcer_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A seat is a worker of a pool: a tenant of its own, or a program without the
// hook.
type seat struct {
	name   string
	weight float64
	plain  bool
}

var (
	plain1 = seat{"plain1", 50, true}
	plain2 = seat{"plain2", 50, true}
	w10    = seat{"w10", 10, false}
	w20    = seat{"w20", 20, false}
	w30    = seat{"w30", 30, false}
	w50    = seat{"w50", 50, false}
	x50    = seat{"x50", 50, false}
	w70    = seat{"w70", 70, false}
	w90    = seat{"w90", 90, false}
)

// A pool keeps the workers of one broker from row to row, because an import of
// PyTorch takes as long as a measurement. An idle worker wants no GPU time, so
// it does not count.
type pool struct {
	host
	owner    *testing.T // the workers live as long as this test
	workers  map[seat]*worker
	prepared map[role]bool
	cost     map[string]float64 // GPU seconds of a kind's step: the lowest of all workers
}

// A role is a worker and its kind of work: see kinds.py.
type role struct {
	seat
	kind string
}

func newPool(t *testing.T, seats ...seat) *pool {
	p := &pool{owner: t, workers: map[seat]*worker{}, prepared: map[role]bool{}, cost: map[string]float64{}}
	var tenants []terms
	for _, s := range seats {
		tenants = append(tenants, tenant(s.name, s.weight))
	}
	p.govern(t, tenants...)
	return p
}

// rule puts other terms in force.
func (h *host) rule(t *testing.T, tenants ...terms) {
	t.Helper()
	raw, err := json.Marshal(tenants)
	if err != nil {
		t.Fatal(err)
	}
	h.broker.tell(string(raw))
	h.broker.hear(t, 5*time.Second, "reloaded")
}

// prepare starts the missing workers and lets all build their work side by
// side. If a kind cannot be built on this machine, the row is skipped with a
// message.
func (p *pool) prepare(t *testing.T, roles ...role) {
	t.Helper()
	var asked []role
	for _, r := range roles {
		if p.workers[r.seat] == nil {
			name := r.name
			if r.plain {
				name = ""
			}
			ranks := 1 // a worker that runs a gang does nothing else
			if slices.Contains(gangs, r.kind) {
				ranks = 2
			}
			p.workers[r.seat] = p.start(p.owner, name, "python3",
				filepath.Join(path(t, "GS_BENCH", "hook/bench"), "worker.py"), strconv.Itoa(ranks))
		}
		if !p.prepared[r] {
			p.workers[r.seat].tell("prepare " + r.kind)
			asked = append(asked, r)
		}
	}
	skipped := ""
	for _, r := range asked {
		line := p.workers[r.seat].hear(t, 3*time.Minute, "ready", "skip")
		seconds, err := strconv.ParseFloat(strings.TrimPrefix(line, "ready "+r.kind+" "), 64)
		if err != nil {
			skipped = line
			continue
		}
		p.prepared[r] = true
		if least, ok := p.cost[r.kind]; !ok || seconds < least {
			p.cost[r.kind] = seconds
		}
	}
	if skipped != "" {
		fmt.Printf("SKIPPED %s: %s\n", t.Name(), skipped)
		t.Skip(skipped)
	}
}

// row measures roles beside each other.
func (p *pool) row(t *testing.T, name string, seconds float64, roles ...role) figure {
	t.Helper()
	p.prepare(t, roles...)
	seconds += settle.Seconds()
	sum := 0.0
	for _, r := range roles {
		sum += r.weight
	}
	var parts []part
	for _, r := range roles {
		parts = append(parts, part{p.workers[r.seat], fmt.Sprintf("run %s %g", r.kind, seconds), r.weight / sum,
			p.cost[r.kind]})
	}
	f := p.measure(t, name, seconds, parts...)
	f.show()
	books := stats(t, p.broker)
	for _, b := range books.Tenants {
		fmt.Printf("    %s: charged %.2f s, served %.2f s of %.2f s wanted, %d turns, overrun %.2f s, waited %.2f s, "+
			"in the gate %.2f s, %d launches, %d passed, %d errors\n",
			b.Tenant, b.ChargedSeconds, b.ServedSeconds, b.WantedSeconds, b.Turns, b.OverrunSeconds, b.WaitSeconds,
			b.ThrottledSeconds, b.Launches, b.GatePassed, b.GateErrors)
	}
	for _, g := range books.GPUs {
		fmt.Printf("    hand-overs %.2f s, together %.2f s, preempted %d, gangs %d\n", g.HandoverSeconds,
			g.TogetherSeconds, g.Preempted, g.Gangs)
	}
	return f
}

// rate runs one role alone and returns its steps per second by the GPU's clock.
func (p *pool) rate(t *testing.T, r role, seconds float64) float64 {
	t.Helper()
	w := p.workers[r.seat]
	w.begin(1)
	w.tell(fmt.Sprintf("run %s %g", r.kind, seconds))
	return rate(t, w)
}

// rate waits for a worker's last line, `total NS STEPS SECONDS`.
func rate(t *testing.T, w *worker) float64 {
	t.Helper()
	var at, steps, seconds float64
	line := w.hear(t, time.Minute, "total")
	if _, err := fmt.Sscanf(line, "total %g %g %g", &at, &steps, &seconds); err != nil || seconds <= 0 {
		t.Fatalf("%s ended with %q", w.name, line)
	}
	return steps / seconds
}

// pin binds all threads of the worker, and its later threads, to the first n
// processors of this process.
func (w *worker) pin(t *testing.T, n int) {
	t.Helper()
	var may, set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &may); err != nil {
		t.Fatal(err)
	}
	for i := 0; i < 1024 && set.Count() < n; i++ {
		if may.IsSet(i) {
			set.Set(i)
		}
	}
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", w.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, thread := range threads {
		id, _ := strconv.Atoi(thread.Name())
		if err := unix.SchedSetaffinity(id, &set); err != nil && !errors.Is(err, unix.ESRCH) {
			t.Fatal(err)
		}
	}
}
