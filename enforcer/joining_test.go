package enforcer_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"gpusteward/enforcer/suspend"
	"gpusteward/internal/fixture"
)

// TestNewProcessJoinsASuspendedWorkload suspends a process that starts in a workload
// which was ordered to stay away. Orders may name it.
func TestNewProcessJoinsASuspendedWorkload(t *testing.T) {
	bothWays(t, func(t *testing.T, hooked bool) {
		g := suspending(t, 0, 0, []string{"a"})
		a := g.works("a", hooked, "1024")
		g.sees(1, a)
		g.order(g.suspend, a.pid(), "suspended: 1424 MiB")
		b := g.works("a", hooked, "512")
		poll(t, 30*time.Second, "the new process is not suspended", func() bool {
			ends := g.ends()
			return len(ends) == 2 && ends[1].Done == suspend.Suspended && ends[1].Err == nil && g.used() == 0 && !g.moves(b)
		})
		if s := g.audited(); s.Suspensions.Suspended != 1 || len(s.Suspended) != 1 || s.Suspended[0].Phase != "suspended" {
			t.Errorf("hooked %v: %+v %+v", hooked, s.Suspended, s.Suspensions)
		}
		g.order(g.giveBack, b.pid(), "runs again")
		g.work(a, b)
		g.order(g.suspend, b.pid(), "is suspended")
		fixture.Equal(t, g.used(), 0, "hooked %v: MiB in use", hooked)
	})
}

// TestOrderNamesANewProcess answers an order that names a process of which the suspended
// workload has just begun to consist.
func TestOrderNamesANewProcess(t *testing.T) {
	t.Parallel()
	g := suspending(t, 0, 0, []string{"a"}, gives(0))
	a := g.rests("a", true, "1024")
	poll(t, 30*time.Second, "it does not give way", func() bool { return g.phase() == "suspended" })
	g.order(g.suspend, a.pid(), "is suspended")
	b := g.works("a", true, "512")
	poll(t, 20*time.Second, "it starts", func() bool { return g.listed(2) })
	poll(t, 20*time.Second, "it is unknown", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		said, err := g.suspend(ctx, b.pid())
		return err == nil && strings.Contains(said, "suspended") || err != nil && strings.Contains(err.Error(), "already")
	})
	poll(t, 20*time.Second, "it is not suspended", func() bool { return g.used() == 0 && g.phase() == "suspended" })
}

// TestNewProcessResumesAnIdleWorkload takes the work of a new process for the use of the GPU by its workload.
func TestNewProcessResumesAnIdleWorkload(t *testing.T) {
	bothWays(t, func(t *testing.T, hooked bool) {
		g := suspending(t, 0, 0, []string{"a"}, gives(0))
		g.rests("a", hooked, "1024")
		poll(t, 30*time.Second, "it does not give way", func() bool { return g.phase() == "suspended" })
		b := g.works("a", hooked, "512")
		poll(t, 30*time.Second, "it does not come back", func() bool { return g.used() == 1536 && g.phase() == "" })
		g.work(b)
	})
}

// TestNewProcessWaitsForTheTurn suspends a process that starts in a workload which waits
// for its turn. Both come back with the turn.
func TestNewProcessWaitsForTheTurn(t *testing.T) {
	bothWays(t, func(t *testing.T, hooked bool) {
		g, a, b := givenWay(t)
		c := g.works("a", hooked, "256")
		poll(t, 30*time.Second, "the new process is not suspended", func() bool {
			ends := g.ends()
			return len(ends) == 2 && ends[1].Joined && ends[1].Err == nil && g.used() == 2560
		})
		poll(t, 30*time.Second, "nobody waits", func() bool {
			o := g.stats().Overcommit
			return len(o) == 1 && o[0].Waiting == 1 && g.phase() == "suspended"
		})
		b.Kill()
		g.work(a, c)
	})
}

// TestNewProcessThatCannotBeSuspendedRuns leaves the others suspended.
func TestNewProcessThatCannotBeSuspendedRuns(t *testing.T) {
	t.Parallel()
	g := suspending(t, 0, 0, []string{"a"})
	a := g.works("a", true, "1024")
	g.sees(1, a)
	g.order(g.suspend, a.pid(), "is suspended")
	sees := g.sleeps() // until the new one has its memory
	b := g.job("a", true, "--kernel-us=200", "--seconds=600", "--alloc-kind=managed", "--alloc-mib=512",
		"--alloc-step-mib=512")
	g.work(b)
	sees()
	poll(t, 30*time.Second, "it is not refused", func() bool { return g.stats().Suspensions.Refused["unsupported"] == 1 })
	since := fixture.Monotonic()
	poll(t, 30*time.Second, "it does not go on", func() bool { return g.moved(b, since) && g.phase() == "suspended" })
	g.audited()
	g.audited()
	if s := g.stats(); s.Suspensions.Refused["unsupported"] != 1 || len(s.Suspended) != 1 || g.moved(a, since) {
		t.Errorf("%+v %+v", s.Suspended, s.Suspensions)
	}
	g.order(g.giveBack, b.pid(), "runs again")
	g.work(a, b)
}

// TestNewProcessTooLargeToReturnRuns leaves a new process alone that would have its workload
// outgrow the GPU, so that nothing of it could come back.
func TestNewProcessTooLargeToReturnRuns(t *testing.T) {
	t.Parallel()
	g := suspending(t, 0, 0, []string{"a"})
	g.size = 4 << 30
	a := g.works("a", true, "2560")
	g.sees(1, a)
	g.order(g.suspend, a.pid(), "is suspended")
	sees := g.sleeps() // until the new one has its memory
	b := g.works("a", false, "1024")
	poll(t, 30*time.Second, "it has no memory", func() bool { return g.used() == 1024 })
	sees()
	poll(t, 30*time.Second, "it is not refused", func() bool { return g.stats().Suspensions.Refused["gpu_memory"] == 1 })
	g.refused(g.suspend, b.pid(), "could not give 4384 MiB back: it has 4096 MiB")
	g.refused(g.giveBack, b.pid(), "has no room")
	b.Kill()
	g.work(a)
}
