package enforcer_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"gpusteward/enforcer/policy"
	"gpusteward/enforcer/suspend"
	"gpusteward/internal/fixture"
)

// gives has a tenant's workloads give way after a time without use of the GPU.
func gives(after time.Duration, keep uint64) func(*policy.Table) {
	return func(t *policy.Table) {
		for i := range t.Rules {
			t.Rules[i].Reclaim = policy.Reclaim{Idle: after, Keep: keep}
		}
	}
}

// overcommitted has all GPUs given to more workloads than fit.
func overcommitted(turn time.Duration) func(*policy.Table) {
	return func(t *policy.Table) { t.Overcommit, t.Turn = []string{policy.All}, turn }
}

// givenWay starts a workload of 2,560 MiB, which gives way to another one on the same GPU.
func givenWay(t *testing.T) (g *governed, a, b *worker) {
	t.Helper()
	g = suspending(t, 0, 0, []string{"a", "b"}, overcommitted(time.Second), func(t *policy.Table) {
		t.Rules[1].Priority = policy.PriorityHigh
	})
	g.size = 4 << 30
	a = g.works("a", true, "2560")
	g.sees(1, a)
	b = g.works("b", true, "2560")
	poll(t, 60*time.Second, "it does not give way", func() bool { return g.moves(b) && g.phase() == "suspended" })
	return g, a, b
}

// phase returns the phase of the one suspended workload; empty: there is none,
// or several.
func (g *governed) phase() string {
	if s := g.stats().Suspended; len(s) == 1 {
		return s[0].Phase
	}
	return ""
}

// TestAnIdleWorkloadGivesWay suspends a program that does not use the GPU, and
// brings it back when it launches, with the hook and without. One with little
// memory stays.
func TestAnIdleWorkloadGivesWay(t *testing.T) {
	t.Parallel()
	for name, hooked := range map[string]bool{"hooked": true, "unhooked": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := suspending(t, 0, 0, []string{"a", "b", "c"}, gives(3*time.Second, 1<<30))
			rests := func(tenant, mib string) *worker {
				return g.job(tenant, hooked, "--kernel-us=200", "--burst-ms=50", "--sleep-ms=10000", "--seconds=300",
					"--alloc-mib="+mib, "--alloc-step-mib="+mib)
			}
			a, c := rests("a", "2048"), g.works("c", hooked, "1536")
			rests("b", "256")
			poll(t, 30*time.Second, "the idle one is not suspended", func() bool { return g.phase() == "suspended" })
			if s := g.stats().Suspended[0]; s.Tenant != "a" || g.used() != 1792 {
				t.Errorf("%+v, and %d MiB are in use", s, g.used())
			}
			since := fixture.Monotonic()
			poll(t, 30*time.Second, "it does not come back", func() bool { return g.moved(a, since) && g.used() == 3840 })
			if !g.moved(c, since) {
				t.Error("the busy one did not work meanwhile")
			}
			if s := g.audited().Suspensions; s.Suspended != 1 || s.Resumed != 1 || len(s.Refused) != 0 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// TestWhoWaitsForItsGPUComesBack suspends a program without the hook that waits for its GPU
// before it launches: the driver's library faults in it. It lives, and comes back by that.
// One that was suspended by order waits for the order, or until the enforcer ends: nothing
// would hold its thread then.
func TestWhoWaitsForItsGPUComesBack(t *testing.T) {
	t.Parallel()
	g := suspending(t, 0, 0, []string{"a", "b"}, gives(2*time.Second, 0))
	waits := func(tenant string) *worker {
		return g.job(tenant, false, "--kernel-us=200", "--burst-ms=50", "--sleep-ms=8000", "--sync-first=1", "--seconds=300",
			"--alloc-mib=512", "--alloc-step-mib=512")
	}
	a := waits("a")
	told := func(n int) func() bool { return func() bool { return len(g.ends()) >= n } }
	for i := range 2 {
		poll(t, 60*time.Second, "it does not give way", told(2*i+1))
		since := fixture.Monotonic()
		poll(t, 60*time.Second, "it does not come back", func() bool { return g.moved(a, since) })
	}
	a.kill()
	b := waits("b")
	poll(t, 20*time.Second, "it works, and is listed", func() bool { return g.moves(b) && g.listed(1) })
	g.audited()
	g.order(g.suspend, "unit:b.service", "is suspended")
	poll(t, 20*time.Second, "it does not wait for its GPU", func() bool { return traced(b.cmd.Process.Pid) })
	since := fixture.Monotonic()
	g.order(g.giveBack, "unit:b.service", "runs again")
	poll(t, 20*time.Second, "it does not work again", func() bool { return g.moved(b, since) })
	g.order(g.suspend, "unit:b.service", "is suspended")
	poll(t, 20*time.Second, "it does not wait for its GPU", func() bool { return traced(b.cmd.Process.Pid) })
	since = fixture.Monotonic()
	g.stop()
	poll(t, 20*time.Second, "it does not work again", func() bool { return g.moved(b, since) })
	if ends := g.ends(); ends[len(ends)-1].Done != suspend.Resuming {
		t.Errorf("the journal is told of %+v at last", ends[len(ends)-1])
	}
	g.run(g.table)
	if s := g.audited().Suspended; len(s) > 0 {
		t.Errorf("still suspended: %+v", s)
	}
}

// traced reports whether a thread of a process is held by the one that traces it.
func traced(pid int) bool {
	all, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	return slices.ContainsFunc(all, func(path string) bool {
		stat, _ := os.ReadFile(path)
		return strings.Contains(string(stat), ") t ")
	})
}

// TestEachSuspensionLastsUntilTheNextUse has a program give way twice. What was seen of it
// in the first suspension does not end the second one.
func TestEachSuspensionLastsUntilTheNextUse(t *testing.T) {
	t.Parallel()
	g := suspending(t, 0, 0, []string{"a"}, gives(2*time.Second, 0))
	a := g.job("a", false, "--kernel-us=200", "--burst-ms=50", "--sleep-ms=10000", "--seconds=300", "--alloc-mib=512",
		"--alloc-step-mib=512")
	told := func(n int) func() bool { return func() bool { return len(g.ends()) >= n } }
	poll(t, 60*time.Second, "it does not give way again", told(3))
	since := fixture.Monotonic()
	poll(t, 60*time.Second, "it does not come back again", told(4))
	poll(t, 3*time.Second, "it came back without use of the GPU", func() bool { return g.moved(a, since) })
}

// TestWhoGaveWayComesBackAfterARestart brings back a program that gave way: nobody
// looked whether it used the GPU while there was no enforcer.
func TestWhoGaveWayComesBackAfterARestart(t *testing.T) {
	t.Parallel()
	for _, hooked := range []bool{true, false} {
		g := suspending(t, 0, 0, []string{"a"}, gives(3*time.Second, 0))
		g.job("a", hooked, "--kernel-us=200", "--burst-ms=50", "--sleep-ms=600000", "--alloc-mib=512",
			"--alloc-step-mib=512")
		poll(t, 30*time.Second, "it is not suspended", func() bool { return g.phase() == "suspended" })
		g.stop()
		told := len(g.ends())
		g.run(g.table)
		poll(t, 30*time.Second, "it does not come back", func() bool {
			ends := g.ends()
			return len(ends) > told && ends[told].Done == suspend.Resuming && ends[told].Err == nil
		})
	}
}

// TestWorkloadsTakeTurns has two programs on an overcommitted GPU that has room
// for one. The second one's allocation waits instead of failing, and both work in
// turns. The GPU's free memory is known from before memory came back to it, and nobody
// tries to have that, too.
func TestWorkloadsTakeTurns(t *testing.T) {
	t.Parallel()
	g := suspending(t, 0, 4<<30, []string{"a", "b"}, overcommitted(2*time.Second))
	g.size, g.age = 4<<30, 1500*time.Millisecond
	works := func(tenant string) *worker {
		return g.job(tenant, true, "--kernel-us=2000", "--sync-every=1", "--seconds=300", "--alloc-mib=2560",
			"--alloc-step-mib=2560")
	}
	a := works("a")
	poll(t, 20*time.Second, "it works", func() bool { return g.moves(a) })
	b := works("b")
	for range 2 {
		for _, w := range []*worker{b, a} {
			since := fixture.Monotonic()
			poll(t, 60*time.Second, "it has no turn", func() bool { return g.moved(w, since) })
			if used := g.used(); used > 4096 {
				t.Errorf("%d MiB are in use of 4096", used)
			}
		}
	}
	poll(t, 60*time.Second, "nobody is seen to wait", func() bool { // a turn may end at any time
		s := g.stats().Overcommit
		return len(s) == 1 && s[0].Turn >= 2 && s[0].Waiting >= 1
	})
	if s := g.stats(); s.Suspensions.Suspended < 3 || len(s.Suspensions.Refused) != 0 || s.Suspensions.Broken != 0 {
		t.Errorf("%+v %+v", s.Overcommit, s.Suspensions)
	}
	overruns := uint64(0)
	for _, row := range g.it.Stats().Tenants {
		if row.MemoryDenied > 0 {
			t.Errorf("%s was denied memory", row.Tenant)
		}
		overruns += row.Overruns
	}
	// Without a processor, a program may be late by itself, now and then.
	if s := g.stats().Suspensions.Suspended; 2*overruns > s {
		t.Errorf("programs were waited for %d times in %d suspensions", overruns, s)
	}
	a.kill()
	b.kill()
	poll(t, 20*time.Second, "nobody waits any more, and the GPU is still told of", func() bool {
		s := g.stats()
		return len(s.Suspended) == 0 && len(s.Overcommit) == 1 && s.Overcommit[0].Waiting == 0 &&
			len(g.it.Stats().Tenants) > 0 && g.used() == 0
	})
	g.audited()
	if s := g.audited(); len(s.Overcommit) != 1 {
		t.Errorf("%+v without a workload", s.Overcommit)
	}
}

// TestWhoWaitedForMemoryHasAWholeTurn has a program wait for most of its memory on an
// overcommitted GPU. Its turn begins when it has that.
func TestWhoWaitedForMemoryHasAWholeTurn(t *testing.T) {
	t.Parallel()
	const turn = 5 * time.Second
	g := suspending(t, 0, 0, []string{"a", "b"}, overcommitted(turn))
	g.size = 4 << 30
	a := g.works("a", true, "2560")
	g.sees(1, a)
	g.job("b", true, "--kernel-us=200", "--seconds=300", "--alloc-mib=2560", "--alloc-step-mib=512")
	poll(t, 30*time.Second, "it has a part of its memory", func() bool { return g.listed(2) && g.used() > 2560+512 })
	poll(t, 60*time.Second, "they take no turns", func() bool { return len(g.ends()) >= 3 })
	ends := g.ends()
	if ends[0].Tenant != "a" || ends[1].Tenant != "b" {
		t.Fatalf("%+v gave way first, then %+v", ends[0], ends[1])
	}
	if stayed := ends[1].Began.Sub(ends[0].Since); stayed < turn {
		t.Errorf("it had its memory for %v, and a turn is %v", stayed, turn)
	}
}

// TestAnOrderKeepsAwayWhoGaveWay orders a workload to stay away that gave way and
// wants to come back. The answer comes at once.
func TestAnOrderKeepsAwayWhoGaveWay(t *testing.T) {
	t.Parallel()
	g := suspending(t, 0, 0, []string{"a", "b"}, overcommitted(time.Second),
		func(t *policy.Table) { t.Rules[1].Priority = policy.PriorityHigh })
	g.size = 4 << 30
	a := g.works("a", true, "2560")
	poll(t, 20*time.Second, "it works", func() bool { return g.moves(a) })
	b := g.works("b", true, "2560")
	claims := func(n int) func() bool {
		return func() bool {
			o := g.stats().Overcommit
			return g.phase() == "suspended" && len(o) == 1 && o[0].Waiting == n
		}
	}
	poll(t, 60*time.Second, "it does not want to come back", func() bool { return g.moves(b) && claims(1)() })
	g.order(g.suspend, "unit:a.service", "is suspended")
	poll(t, 20*time.Second, "it still wants to come back", claims(0))
}

// TestAnImpossibleAllocationFails refuses at once what no overcommitted GPU has.
func TestAnImpossibleAllocationFails(t *testing.T) {
	t.Parallel()
	g := suspending(t, 0, 0, []string{"a"}, overcommitted(2*time.Second))
	g.size = 4 << 30
	a := g.job("a", true, "--wait-start", "--seconds=300", "--alloc-mib=5000", "--alloc-step-mib=5000")
	ready(t, a)
	a.tell("go")
	if got := taken(t, a); got != 0 {
		t.Errorf("it takes %d bytes", got)
	}
	if n := g.audited().Overcommit; len(n) > 0 && n[0].Waiting > 0 {
		t.Errorf("something waits: %+v", n)
	}
}

// rests starts a program that holds so many MiB, works for a moment, and then again after so
// many ms.
func (g *governed) rests(tenant string, hooked bool, mib, ms string) *worker {
	g.t.Helper()
	return g.job(tenant, hooked, "--kernel-us=200", "--burst-ms=50", "--sleep-ms="+ms, "--seconds=300",
		"--alloc-mib="+mib, "--alloc-step-mib="+mib)
}

// TestWantOfMemoryIsNotTriedAgainAtOnce has an idle workload not give way for which its
// cgroup has no room.
func TestWantOfMemoryIsNotTriedAgainAtOnce(t *testing.T) {
	t.Parallel()
	g := suspending(t, 0, 0, []string{"a"}, gives(2*time.Second, 0))
	g.stop()
	g.cgroups = t.TempDir()
	for name, bytes := range map[string]int{"memory.max": 1 << 30, "memory.current": 1 << 20} {
		if err := os.WriteFile(filepath.Join(g.cgroups, name), []byte(strconv.Itoa(bytes)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	g.run(g.table)
	a := g.rests("a", true, "1024", "600000")
	refusals := func() uint64 { return g.stats().Suspensions.Refused["cgroup_memory"] }
	poll(t, 30*time.Second, "it is not refused", func() bool { return refusals() > 0 })
	for range 3 {
		g.audited()
	}
	if n := refusals(); n != 1 {
		t.Errorf("it was refused %d times", n)
	}
	g.refused(g.suspend, a.pid(), "need as much host memory, and the limit of cgroup / leaves 1023 MiB")
}

// TestATrialInVainIsNotRepeatedAtOnce has the driver refuse to restore what the GPU seems to
// have room for.
func TestATrialInVainIsNotRepeatedAtOnce(t *testing.T) {
	t.Parallel()
	g := suspending(t, 0, 0, []string{"a", "b"}, gives(2*time.Second, 0))
	a := g.rests("a", true, "2560", "8000")
	poll(t, 30*time.Second, "it does not give way", func() bool { return g.phase() == "suspended" })
	b := g.works("b", false, "80000") // of 81920 that the GPU has
	poll(t, 30*time.Second, "it is not being resumed", func() bool { return g.moves(b) && g.phase() == "resuming" })
	for range 20 {
		g.audited()
	}
	if n := g.stats().Suspensions.Refused["gpu_memory"]; n < 1 || n > 6 { // the seventh is 2 minutes after the first
		t.Errorf("it was tried %d times", n)
	}
	b.kill()
	poll(t, 60*time.Second, "it does not come back", func() bool { return g.moves(a) })
}

// TestWhoFindsNoRoomIsSeenToWait has a program come back that gave way, and finds its memory
// taken by one without the hook.
func TestWhoFindsNoRoomIsSeenToWait(t *testing.T) {
	t.Parallel()
	g := suspending(t, 0, 0, []string{"a", "b"}, gives(2*time.Second, 0))
	g.size = 4 << 30
	a := g.rests("a", true, "2560", "8000")
	poll(t, 30*time.Second, "it does not give way", func() bool { return g.phase() == "suspended" })
	b := g.works("b", false, "2560")
	poll(t, 30*time.Second, "it does not wait", func() bool { return g.moves(b) && g.phase() == "resuming" })
	b.kill()
	since := fixture.Monotonic()
	poll(t, 30*time.Second, "it does not come back", func() bool { return g.moved(a, since) && g.phase() == "" })
}

// configure has the enforcer load a changed table.
func (g *governed) configure(edit func(*policy.Table)) {
	edit(&g.table)
	g.it.Configure(policy.New(g.table, policy.HostView{Process: g.Process}, nil))
}

// TestAReloadForgetsNobody changes the table under suspended workloads: their tenant is
// removed, or what they gave way for.
func TestAReloadForgetsNobody(t *testing.T) {
	t.Parallel()
	removed := func(table *policy.Table) { table.Rules = table.Rules[1:] }
	for name, reload := range map[string]func(*policy.Table){"the tenant": removed,
		"its terms": func(table *policy.Table) { table.Rules[0].Reclaim = policy.Reclaim{} }} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := suspending(t, 0, 0, []string{"a", "b"}, gives(2*time.Second, 0))
			a := g.rests("a", true, "1024", "10000")
			poll(t, 30*time.Second, "it does not give way", func() bool { return g.phase() == "suspended" })
			g.configure(reload)
			since := fixture.Monotonic()
			poll(t, 60*time.Second, "it does not come back", func() bool { return g.moved(a, since) && g.phase() == "" })
		})
	}
	t.Run("the tenant of an order", func(t *testing.T) {
		t.Parallel()
		g := suspending(t, 0, 0, []string{"a", "b"})
		a := g.works("a", true, "1024")
		g.sees(1, a)
		g.order(g.suspend, a.pid(), "is suspended")
		g.configure(removed)
		g.audited()
		g.refused(g.suspend, a.pid(), "it is suspended already")
		g.order(g.giveBack, a.pid(), "runs again")
		poll(t, 20*time.Second, "it does not work", func() bool { return g.moves(a) })
	})
	t.Run("overcommit", func(t *testing.T) {
		t.Parallel()
		g, a, b := givenWay(t)
		g.configure(func(table *policy.Table) { table.Overcommit = nil })
		poll(t, 30*time.Second, "it does not wait", func() bool { return g.phase() == "resuming" })
		b.kill()
		poll(t, 60*time.Second, "it does not come back", func() bool { return g.moves(a) })
	})
}
