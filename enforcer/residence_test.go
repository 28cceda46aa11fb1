package enforcer_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"gpusteward/enforcer/policy"
	"gpusteward/enforcer/suspend"
	"gpusteward/internal/fixture"
	"gpusteward/internal/quota"
)

// gives has tenants' workloads with more than some bytes give way after some ticks without use of the GPU.
func gives(keep uint64) func(*policy.Table) {
	return func(t *policy.Table) {
		for i := range t.Rules {
			t.Rules[i].Reclaim = policy.Reclaim{Idle: ticks(4), Keep: keep}
		}
	}
}

// overcommitted has all GPUs given to more workloads than fit, in turns of some ticks.
func overcommitted(turn int) func(*policy.Table) {
	return func(t *policy.Table) { t.Overcommit, t.Turn = []string{policy.All}, ticks(turn) }
}

// givenWay starts a workload of 2,560 MiB, which gives way to another one on the same GPU.
func givenWay(t *testing.T) (g *governed, a, b *worker) {
	t.Helper()
	g = suspending(t, 0, 0, []string{"a", "b"}, overcommitted(1), func(t *policy.Table) {
		t.Rules[1].Priority = policy.PriorityHigh
	})
	g.size = 4 << 30
	a = g.works("a", true, "2560")
	g.sees(1, a)
	b = g.works("b", true, "2560")
	g.work(b)
	poll(t, time.Minute, "it does not give way", func() bool { return g.phase() == "suspended" })
	return g, a, b
}

// phase returns the phase of the one suspended workload; empty: there is none, or several.
func (g *governed) phase() string {
	if s := g.stats().Suspended; len(s) == 1 {
		return s[0].Phase
	}
	return ""
}

// TestAnIdleWorkloadGivesWay suspends a program that does not use the GPU, and brings it back when it launches, with
// the hook and without. One with little memory stays.
func TestAnIdleWorkloadGivesWay(t *testing.T) {
	bothWays(t, func(t *testing.T, hooked bool) {
		g := suspending(t, 0, 0, []string{"a", "b"}, gives(1<<30), func(table *policy.Table) {
			table.Rules = append(table.Rules, byPath("c", quota.Free(), quick(policy.Observe)))
		})
		a, c := g.rests("a", hooked, "2048"), g.works("c", hooked, "1536")
		g.rests("b", hooked, "256")
		poll(t, 30*time.Second, "the idle one is not suspended, or another one is",
			func() bool { return g.phase() == "suspended" && g.used() == 1792 })
		fixture.Equal(t, g.stats().Suspended[0].Tenant, "a", "Tenant")
		since := fixture.Monotonic()
		poll(t, 30*time.Second, "the busy one does not work", func() bool { return g.moved(c, since) })
		a.Tell("work")
		poll(t, 30*time.Second, "it does not come back", func() bool { return g.moved(a, since) && len(g.ends()) > 1 })
		s := g.audited().Suspensions
		fixture.If(t, s.Resumed == 0 || len(s.Refused) != 0, "%+v", s)
	})
}

// worked returns how often a program that rests has worked.
func worked(w *worker) int {
	_, bursts := w.measured()
	return len(bursts)
}

// gaveWay waits until a program has worked for the n-th time, and its workload is suspended.
func (g *governed) gaveWay(w *worker, n int) {
	g.t.Helper()
	is := func() bool { return worked(w) == n && g.phase() == "suspended" }
	poll(g.t, time.Minute, fmt.Sprintf("it does not give way for the %d. time", n), func() bool {
		if !is() {
			return false
		}
		g.audited() // on a busy machine it may have been suspended before it had worked
		return is()
	})
}

// cameBack tells a program to work, and waits until it has, for the n-th time.
func (g *governed) cameBack(w *worker, n int) {
	g.t.Helper()
	w.Tell("work")
	poll(g.t, time.Minute, fmt.Sprintf("it does not come back for the %d. time", n-1), func() bool { return worked(w) == n })
}

// TestWaitForTheGPUResumesTheProgram suspends a program without the hook that waits for its GPU before it launches: the
// driver's library faults in it. It lives, and comes back by that. One that was suspended by order waits for the order,
// or until the enforcer ends: nothing would hold its thread then.
func TestWaitForTheGPUResumesTheProgram(t *testing.T) {
	t.Parallel()
	g := suspending(t, 0, 0, []string{"a", "b"}, gives(0))
	a := g.rests("a", false, "512", "--sync-first=1")
	for i := range 2 {
		g.gaveWay(a, i+1)
		g.cameBack(a, i+2)
	}
	a.Kill()
	g.configure(func(table *policy.Table) { gives(0)(table); table.Rules[1].Reclaim = policy.Reclaim{} })
	start := fixture.Monotonic()
	b := g.rests("b", false, "512", "--sync-first=1")
	works := func(since int64) {
		t.Helper()
		poll(t, time.Minute, "it does not work", func() bool { return g.moved(b, since) && g.lists(b) })
	}
	waits := func() (since int64) {
		t.Helper()
		g.order(g.suspend, "unit:b.service", "is suspended")
		since = fixture.Monotonic()
		b.Tell("work")
		poll(t, time.Minute, "it does not wait for its GPU", func() bool { return traced(b.Cmd.Process.Pid) })
		return since
	}
	works(start)
	g.audited() // it may have begun before
	g.audited()
	since := waits()
	g.order(g.giveBack, "unit:b.service", "runs again")
	works(since)
	since = waits()
	g.stop()
	works(since)
	ends := g.ends()
	fixture.Equal(t, ends[len(ends)-1].Done, suspend.Resuming, "the last of which the journal is told")
	fixture.EqualSlices(t, g.returning, []bool{true, false}, "memory comes back at the end:")
	g.run(g.table)
	fixture.EqualSlices(t, g.audited().Suspended, nil, "still suspended")
}

// TestSignalStormDelaysNothing suspends a program whose threads do what stops them for their tracer, all the time. The
// enforcer audits, obeys orders, ends, and brings the program back.
func TestSignalStormDelaysNothing(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"signals", "threads", "halts"} {
		t.Run(mode, func(t *testing.T) { stormDelaysNothing(t, mode) })
	}
}

func stormDelaysNothing(t *testing.T, mode string) {
	g := suspending(t, 0, 0, []string{"a"}, gives(0))
	driver := g.driver
	g.driver = append(slices.Clone(driver), "STORM_THREADS=64", "STORM_MODE="+mode,
		"LD_PRELOAD="+filepath.Join(fixture.Given(t, "GS_STUB", "hook/build/stub"), "storm.so"))
	a := g.rests("a", false, "512")
	g.driver = driver
	g.gaveWay(a, 1)
	storm := func() { fixture.Must(t, a.Cmd.Process.Signal(syscall.SIGUSR2)) }
	storm()
	poll(t, 20*time.Second, "nothing stops it", func() bool { return traced(a.Cmd.Process.Pid) })
	g.audited()
	g.order(g.suspend, "unit:a.service", "stays so")
	g.stop()
	g.run(g.table)
	g.order(g.giveBack, "unit:a.service", "runs again")
	storm()
	g.cameBack(a, 2)
}

// TestEachSuspensionLastsUntilTheNextUse has a program give way twice. What was seen of it
// in the first suspension does not end the second one.
func TestEachSuspensionLastsUntilTheNextUse(t *testing.T) {
	t.Parallel()
	g := suspending(t, 0, 0, []string{"a"}, gives(0))
	a := g.rests("a", false, "512")
	for i := range 2 {
		g.gaveWay(a, i+1)
		told := len(g.ends())
		for range 5 {
			g.audited()
		}
		if ends := g.ends(); g.phase() != "suspended" || len(ends) != told {
			t.Fatalf("it came back without use of the GPU: %+v", ends[told:])
		}
		g.cameBack(a, i+2)
	}
}

// TestUseDuringTheSuspensionBringsBack has a program call the driver between its lock and the
// end of its checkpoint. It waits from then on, and comes back.
func TestUseDuringTheSuspensionBringsBack(t *testing.T) {
	t.Parallel()
	g := suspending(t, 512<<20, 0, []string{"a"}, gives(0))
	ask := suspend.Helper(filepath.Join(t.TempDir(), "lock"), g.driver...) // which the enforcer does not wait for
	a := g.rests("a", false, "512")
	poll(t, time.Minute, "it is not locked", func() bool {
		state, err := ask(t.Context(), suspend.Ask, a.Cmd.Process.Pid)
		return worked(a) == 1 && err == nil && state != suspend.Running
	})
	g.cameBack(a, 2)
}

// TestRestartResumesIdleWorkloads brings back a program that gave way: nobody
// looked whether it used the GPU while there was no enforcer.
func TestRestartResumesIdleWorkloads(t *testing.T) {
	bothWays(t, func(t *testing.T, hooked bool) {
		g := suspending(t, 0, 0, []string{"a"}, gives(0))
		g.gaveWay(g.rests("a", hooked, "512"), 1)
		g.stop()
		told := len(g.ends())
		g.run(g.table)
		poll(t, 30*time.Second, "it does not come back", func() bool {
			ends := g.ends()
			return len(ends) > told && ends[told].Done == suspend.Resuming && ends[told].Err == nil
		})
	})
}

// TestWorkloadsTakeTurns has two programs on an overcommitted GPU that has room for one. The second one's allocation
// waits instead of failing, and both work in turns. The GPU's free memory is known from before memory came back to it,
// and nobody tries to have that, too.
func TestWorkloadsTakeTurns(t *testing.T) {
	t.Parallel()
	g := suspending(t, 0, 32<<30, []string{"a", "b"}, overcommitted(2))
	g.size, g.age = 4<<30, ticks(3)/2
	works := func(tenant string) *worker {
		return g.job(tenant, true, "--kernel-us=2000", "--sync-every=1", "--seconds=600", "--alloc-mib=2560",
			"--alloc-step-mib=2560")
	}
	a := works("a")
	g.work(a)
	b := works("b")
	for _, w := range []*worker{b, a, b} {
		since := fixture.Monotonic()
		poll(t, 10*time.Minute, "it has no turn", func() bool { return g.moved(w, since) })
		fixture.AtMost(t, g.used(), 4096, "… MiB are in use of 4096")
	}
	poll(t, 60*time.Second, "nobody is seen to wait", func() bool { // a turn may end at any time
		s := g.stats().Overcommit
		return len(s) == 1 && s[0].Turn >= ticks(2).Seconds() && s[0].Waiting >= 1
	})
	if s := g.stats(); s.Suspensions.Suspended < 3 || len(s.Suspensions.Refused) != 0 || s.Suspensions.Broken != 0 {
		t.Errorf("%+v %+v", s.Overcommit, s.Suspensions)
	}
	for _, row := range g.it.Stats().Tenants {
		fixture.AtMost(t, row.MemoryDenied, 0, "%s was denied memory", row.Tenant)
	}
	a.Kill()
	b.Kill()
	poll(t, 20*time.Second, "nobody waits any more, and the GPU is still told of", func() bool {
		s := g.stats()
		return len(s.Suspended) == 0 && len(s.Overcommit) == 1 && s.Overcommit[0].Waiting == 0 &&
			len(g.it.Stats().Tenants) > 0 && g.used() == 0
	})
	g.audited()
	fixture.Equal(t, len(g.audited().Overcommit), 1, "overcommitted GPUs without a workload")
}

// TestTurnBeginsOnceItsMemoryIsThere has a program wait for most of its memory on an
// overcommitted GPU. Its turn begins when it has that.
func TestTurnBeginsOnceItsMemoryIsThere(t *testing.T) {
	t.Parallel()
	const turn = 8
	g := suspending(t, 0, 0, []string{"a", "b"}, overcommitted(turn))
	g.size = 4 << 30
	a := g.works("a", true, "2560")
	g.sees(1, a)
	g.job("b", true, "--kernel-us=200", "--seconds=600", "--alloc-mib=2560", "--alloc-step-mib=512")
	poll(t, 30*time.Second, "it has a part of its memory", func() bool { return g.listed(2) && g.used() > 2560+512 })
	// A turn lasts more than five times as long as the moves, which are slow on a busy machine.
	poll(t, 10*time.Minute, "they take no turns", func() bool { return len(g.ends()) >= 2 })
	ends := g.ends()
	if ends[0].Tenant != "a" || ends[1].Tenant != "b" {
		t.Fatalf("%+v gave way first, then %+v", ends[0], ends[1])
	}
	if stayed := ends[1].Began.Sub(ends[0].Since); stayed < ticks(turn) {
		t.Errorf("it had its memory for %v, and a turn is %v", stayed, ticks(turn))
	}
}

// TestSuspendOrderCancelsTheReturn orders a workload to stay away that gave way and
// wants to come back. The answer comes at once.
func TestSuspendOrderCancelsTheReturn(t *testing.T) {
	t.Parallel()
	g, _, _ := givenWay(t)
	claims := func(n int) func() bool {
		return func() bool {
			o := g.stats().Overcommit
			return g.phase() == "suspended" && len(o) == 1 && o[0].Waiting == n
		}
	}
	poll(t, 60*time.Second, "it does not want to come back", claims(1))
	g.order(g.suspend, "unit:a.service", "is suspended")
	poll(t, 20*time.Second, "it still wants to come back", claims(0))
}

// TestAnImpossibleAllocationFails refuses at once what no overcommitted GPU has.
func TestAnImpossibleAllocationFails(t *testing.T) {
	t.Parallel()
	g := suspending(t, 0, 0, []string{"a"}, overcommitted(2))
	g.size = 4 << 30
	a := g.job("a", true, "--wait-start", "--seconds=600", "--alloc-mib=5000", "--alloc-step-mib=5000")
	goes(t, a)
	fixture.Equal(t, taken(t, a), 0, "it takes … bytes")
	n := g.audited().Overcommit
	fixture.If(t, len(n) > 0 && n[0].Waiting > 0, "something waits: %+v", n)
}

// rests starts a program that holds so many MiB, works for a moment, and again whenever it is told to.
func (g *governed) rests(tenant string, hooked bool, mib string, options ...string) *worker {
	g.t.Helper()
	return g.job(tenant, hooked, append([]string{"--kernel-us=200", "--burst-ms=50", "--sleep-ms=-1", "--seconds=600",
		"--alloc-mib=" + mib, "--alloc-step-mib=" + mib}, options...)...)
}

// TestSuspendWithoutHostMemoryBacksOff has an idle workload not give way for which its
// cgroup has no room. Nor has its host, at last.
func TestSuspendWithoutHostMemoryBacksOff(t *testing.T) {
	t.Parallel()
	g := suspending(t, 0, 0, []string{"a"}, gives(0))
	g.stop()
	for name, bytes := range map[string]int{"memory.max": 1 << 30, "memory.current": 1 << 20} {
		fixture.Must(t, os.WriteFile(filepath.Join(g.cgroups, name), []byte(strconv.Itoa(bytes)), 0o600))
	}
	g.run(g.table)
	a := g.rests("a", true, "1024")
	refusals := func() uint64 { return g.stats().Suspensions.Refused["cgroup_memory"] }
	poll(t, 30*time.Second, "it is not refused", func() bool { return refusals() > 0 })
	for range 3 {
		g.audited()
	}
	fixture.Equal(t, refusals(), 1, "it was refused … times")
	g.refused(g.suspend, a.pid(), "need as much host memory, and the limit of cgroup / leaves 1023 MiB")
	g.hostMemory(1000)
	g.refused(g.suspend, a.pid(), "need as much host memory: 1000 MiB are available")
}

// TestFailedResumeBacksOff has the driver refuse to restore what the GPU seems to have room for.
func TestFailedResumeBacksOff(t *testing.T) {
	t.Parallel()
	g := suspending(t, 0, 0, []string{"a", "b"}, gives(0))
	a := g.rests("a", true, "2560")
	g.gaveWay(a, 1)
	b := g.works("b", false, "80000") // of 81920 that the GPU has
	g.work(b)
	began := time.Now()
	a.Tell("work")
	tried := uint64(0)
	poll(t, time.Minute, "it is not tried four times", func() bool {
		tried = g.stats().Suspensions.Refused["gpu_memory"]
		return tried >= 4
	})
	if took := time.Since(began); took < ticks(1<<tried-2) { // 2 ticks, 4, 8
		t.Errorf("it was tried %d times in %v", tried, took)
	}
	b.Kill()
	poll(t, 60*time.Second, "it does not come back", func() bool { return worked(a) == 2 })
}

// configure has the enforcer load a changed table.
func (g *governed) configure(edit func(*policy.Table)) {
	g.table.Rules = slices.Clone(g.table.Rules) // the enforcer reads the former ones
	edit(&g.table)
	g.it.Configure(policy.New(g.table, policy.HostView{Process: g.Process}, nil))
}

// TestReloadKeepsSuspendedWorkloads changes the table under suspended workloads: their tenant is
// removed, or what they gave way for.
func TestReloadKeepsSuspendedWorkloads(t *testing.T) {
	t.Parallel()
	removed := func(table *policy.Table) { table.Rules = table.Rules[1:] }
	for name, reload := range map[string]func(*policy.Table){"the tenant": removed,
		"its terms": func(table *policy.Table) { table.Rules[0].Reclaim = policy.Reclaim{} }} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := suspending(t, 0, 0, []string{"a", "b"}, gives(0))
			a := g.rests("a", true, "1024")
			g.gaveWay(a, 1)
			g.configure(reload)
			g.cameBack(a, 2)
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
		g.work(a)
	})
	t.Run("overcommit", func(t *testing.T) {
		t.Parallel()
		g, a, b := givenWay(t)
		g.configure(func(table *policy.Table) { table.Overcommit = nil })
		poll(t, 30*time.Second, "it does not wait", func() bool { return g.phase() == "resuming" })
		b.Kill()
		g.work(a)
	})
}
