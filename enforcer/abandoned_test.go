package enforcer_test

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"gpusteward/enforcer/policy"
	"gpusteward/internal/fixture"
	"gpusteward/internal/quota"
	"gpusteward/internal/wire"
)

// mapped has do handle a process's memory where it has mapped a file of its session, from an offset on.
func mapped(t *testing.T, pid int, name string, offset int, do func(memory *os.File, from int64) error) {
	t.Helper()
	maps := fixture.Value(os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid)))(t)
	memory := fixture.Value(os.OpenFile(fmt.Sprintf("/proc/%d/mem", pid), os.O_RDWR, 0))(t)
	defer memory.Close()
	for line := range strings.Lines(string(maps)) {
		var from, to, at int64
		var may string
		if _, err := fmt.Sscanf(line, "%x-%x %s %x", &from, &to, &may, &at); err == nil && at == int64(offset) &&
			strings.Contains(line, "/memfd:gpusteward-"+name) {
			fixture.Must(t, do(memory, from))
			return
		}
	}
	t.Fatalf("process %d has no %s", pid, name)
}

// pageOf returns the page of a process's session, read from its memory.
func pageOf(t *testing.T, pid int) wire.Page {
	t.Helper()
	page := make(wire.Page, wire.PageSize)
	mapped(t, pid, "page", 0, func(memory *os.File, from int64) error { return fixture.Error(memory.ReadAt(page, from)) })
	return page
}

// killChildren kills a process's children.
func killChildren(t *testing.T, w *worker) {
	t.Helper()
	pid := w.Cmd.Process.Pid
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid)) // none if the process is gone
	for _, child := range strings.Fields(string(text)) {
		if n, err := strconv.Atoi(child); err == nil {
			_ = syscall.Kill(n, syscall.SIGKILL)
		}
	}
}

// compared waits until the broker knows what the driver needs for processes whose memory stays
// the same: it compares its books with two listings, the second one from after the first look.
func (g *governed) compared() {
	g.t.Helper()
	for range 2 {
		g.truth.memory(g.t)
		g.truth.memory(g.t) // the listing has begun since
		g.audited()
		g.audited() // and so has the audit
	}
}

// remembering starts an enforcer of a tenant with a cap. Its broker asks the driver what processes hold.
func remembering(t *testing.T, limit uint64) *governed {
	t.Helper()
	g := prepared(t)
	g.broker.Holds = g.truth.holds
	g.run(judging(byPath("tenant", policy.Quota{Limit: 1, Bandwidth: 1, Memory: limit}, quick(policy.Warn))))
	return g
}

// TestExecGivesMemoryBack lets a process that holds memory start another
// program. The memory of the first program is not charged to the second.
func TestExecGivesMemoryBack(t *testing.T) {
	t.Parallel()
	const limit = 4096 * mib
	g := remembering(t, limit)
	used := func() uint64 { return books(g.it.Stats(), "tenant").MemoryUsed }
	w := g.job("tenant", true, "--wait-start", "--alloc-mib=2048", "--alloc-step-mib=64", "--kernel-us=1000",
		"--sync-every=1", "--steps=1", "--then-wait=1", "--then-mib=4096")
	goes(t, w)
	fixture.Need(t, taken(t, w), limit/2, "it takes … MiB of 2048")
	poll(t, 10*time.Second, "what it takes is not booked", func() bool { return used() == limit/2 })
	g.compared()
	w.Tell("anew")
	goes(t, w) // the other program
	fixture.Equal(t, taken(t, w), limit, "it takes … MiB of 4096 after it began another program")
	poll(t, 10*time.Second, "the books differ",
		func() bool { return used() == limit && g.it.Stats().Sessions["closing"] == 0 })
}

// aged returns a listing of the driver that is up to a second old.
func aged(holds func(string, int) (uint64, time.Time, bool)) func(string, int) (uint64, time.Time, bool) {
	type answer struct {
		bytes     uint64
		at, asked time.Time
		listed    bool
	}
	var mu sync.Mutex
	last := map[int]answer{}
	return func(uuid string, pid int) (uint64, time.Time, bool) {
		mu.Lock()
		defer mu.Unlock()
		a := last[pid]
		if time.Since(a.asked) > time.Second {
			a.asked = time.Now()
			a.bytes, a.at, a.listed = holds(uuid, pid)
			last[pid] = a
		}
		return a.bytes, a.at, a.listed
	}
}

// TestSuccessorsWaitForTheDead kills programs that have all memory of their tenant, or of the GPU, one after the other.
// The driver's listing and its reading of the memory are old. Each successor has its memory, and nobody was denied any.
func TestSuccessorsWaitForTheDead(t *testing.T) {
	t.Parallel()
	for name, tenants := range map[string][]string{"one tenant": {"a", "a", "a", "a"}, "two tenants": {"a", "b", "a", "b"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cap := policy.Quota{Limit: 1, Bandwidth: 1, Memory: 4096 * mib}
			g := prepared(t)
			g.broker.Holds, g.size, g.age = aged(g.truth.holds), 6<<30, 3*time.Second/2
			g.waits()
			g.run(policy.Table{Steps: quick(policy.Observe), Actions: 10, Default: policy.Terms{Quota: quota.Free()},
				Rules: []policy.Rule{byPath("a", cap, quick(policy.Observe)), byPath("b", cap, quick(policy.Observe))}})
			for i, tenant := range tenants {
				w := g.job(tenant, true, hoard(3584, 3584, "native")...)
				fixture.Need(t, taken(t, w), 3584*mib, "program %d takes … bytes", i)
				g.compared()
				w.Kill()
			}
			for _, row := range g.it.Stats().Tenants {
				fixture.Equal(t, row.MemoryDenied, 0, "%s was denied memory … times", row.Tenant)
			}
		})
	}
}

// TestMemoryOverABrokersDeath kills the broker of a tenant with three processes. Two of them want all the memory that
// they can get while there is no broker. Then another broker starts. The tenant never exceeds its cap, and no process
// that fails closed has more than before.
func TestMemoryOverABrokersDeath(t *testing.T) {
	t.Parallel()
	const limit = 1024 * mib
	for name, c := range map[string]struct {
		fail      string
		had, more uint64 // bytes of the first process before the broker's death, and of each of the others after it
	}{
		"open, at the cap":    {"open", limit, 0},
		"open, with room":     {"open", limit / 4, limit / 4},
		"closed, at the cap":  {"closed", limit, 0},
		"closed, with room":   {"closed", limit / 4, 0},
		"closed, all is left": {"closed", 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := stub(t, "GS_TEST_FAIL="+c.fail)
			h.govern(t, capped("tenant", limit))
			want := hoard(2048, 16, "native")
			all := []*worker{h.load(t, "tenant", hoard(int(c.had/mib), 16, "native")...), h.load(t, "tenant", want...),
				h.load(t, "tenant", want...)}
			ready(t, all...)
			if c.had > 0 {
				all[0].Tell("go")
				taken(t, all[0])
			}
			for _, w := range all {
				poll(t, 10*time.Second, "its page does not say what the tenant has", func() bool {
					p := pageOf(t, w.Cmd.Process.Pid)
					used, _ := p.Memory(0)
					return used == c.had && p.Processes(0) == 3
				})
			}
			h.broker.Kill()
			for _, w := range all[1:] {
				w.Tell("go")
			}
			for _, w := range all[1:] {
				fixture.Equal(t, taken(t, w), c.more, "without a broker it takes … MiB")
			}
			h.broker = startBrokerIn(t, h.driver, h.socket, capped("tenant", limit))
			poll(t, 10*time.Second, "the books of the next broker differ", func() bool {
				s := stats(t, h.broker)
				return s.Sessions["active"] == 3 && books(s, "tenant").MemoryUsed == c.had+2*c.more
			})
			last := h.load(t, "tenant", want...)
			goes(t, last)
			fixture.Equal(t, taken(t, last), limit-c.had-2*c.more, "bytes left with the next broker")
			_, peak := h.truth.memory(t)
			fixture.Equal(t, peak, limit, "the tenant had … bytes")
		})
	}
}

// TestExecDoesNotEvadeTheCap lets a tenant's process at its cap start other programs in every possible way. Each of
// them wants all the memory at once. The tenant never exceeds its cap, and nothing stays charged after they ended.
func TestExecDoesNotEvadeTheCap(t *testing.T) {
	t.Parallel()
	const limit = 1024 * mib
	for name, c := range map[string]struct {
		then       string
		times      int    // number of programs that follow the first
		had, after uint64 // bytes of the first program, and of the last
	}{
		"exec after exec":        {"exec", 3, limit, limit},
		"exec beside a child":    {"left", 1, limit, limit},
		"fork":                   {"fork", 1, limit / 4, limit * 3 / 4},
		"fork at the cap":        {"fork", 1, limit, 0},
		"vfork at the cap":       {"vfork", 1, limit, 0},
		"posix_spawn":            {"spawn", 1, limit / 2, limit / 2},
		"posix_spawn at the cap": {"spawn", 1, limit, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := remembering(t, limit)
			g.waits()
			used := func() uint64 { return books(g.it.Stats(), "tenant").MemoryUsed }
			w := g.job("tenant", true, fmt.Sprintf("--alloc-mib=%d", c.had/mib), "--alloc-step-mib=32",
				"--kernel-us=100", "--steps=1", "--then-wait=1",
				"--then-mib=1024", "--then="+c.then, fmt.Sprintf("--then-times=%d", c.times))
			t.Cleanup(func() { killChildren(t, w) }) // which have its output open
			for i := range c.times {
				if got := taken(t, w); i == 0 && got != c.had {
					t.Fatalf("it takes %d MiB of %d", got/mib, c.had/mib)
				}
				g.compared()
				w.Tell("anew")
			}
			ready(t, w) // the last program, which takes memory when told
			poll(t, 20*time.Second, "the books have not settled", func() bool { return used() == limit-c.after })
			w.Tell("go")
			fixture.Equal(t, taken(t, w), c.after, "the last program takes … MiB")
			poll(t, 10*time.Second, "the books differ", func() bool { return used() == limit })
			_, peak := g.truth.memory(t)
			fixture.Equal(t, peak, limit, "the tenant had … bytes")
			killChildren(t, w)
			w.Kill()
			poll(t, 10*time.Second, "something is charged to nobody",
				func() bool { return used() == 0 && g.it.Stats().Sessions["active"] == 0 })
		})
	}
}
