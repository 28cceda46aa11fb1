//go:build timed

package enforcer_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"gpusteward/enforcer/audit"
	"gpusteward/enforcer/policy"
	"gpusteward/internal/fixture"
	"gpusteward/internal/wire"
)

// TestEnforcer has a greedy tenant on a simulated GPU, beside a tenant with a guarantee and a program without a quota.
// One process of the greedy tenant goes around the hook. It is found, warned, throttled, paused and resumed, and no
// other process is touched.
func TestEnforcer(t *testing.T) {
	with := func(edit func(*policy.Quota)) policy.Quota { q := none; edit(&q); return q }
	paused := quick(policy.Pause)
	paused.Hold = time.Second
	g := prepared(t)
	g.tick = audit.Tick(250 * time.Millisecond) // a window must be long enough for the rhythm of turns
	g.run(judging(byPath("guaranteed", with(func(q *policy.Quota) { q.Guarantee = .7 }), quick(policy.Warn)),
		byPath("greedy", with(func(q *policy.Quota) { q.Guarantee, q.Memory = .3, 1<<30 }), paused)))
	guaranteed := g.job("guaranteed", true, "--kernel-us=200", "--seconds=180")
	greedy := g.job("greedy", true, "--kernel-us=200", "--seconds=180")
	third := g.job("third", false, "--burst-ms=0.2", "--sleep-ms=20", "--seconds=180")
	poll(t, 20*time.Second, "somebody does not work",
		func() bool { return g.moves(guaranteed) && g.moves(greedy) && g.moves(third) })

	poll(t, time.Minute, "the books are not compared", func() bool {
		return slices.ContainsFunc(g.stats().Quotas,
			func(q wire.QuotaStats) bool { return q.Tenant == "greedy" && q.Charge != nil })
	})
	both := []*series{g.truth.of(guaranteed.Cmd.Process.Pid), g.truth.of(greedy.Cmd.Process.Pid)}
	var part []float64
	defer func() { t.Logf("the guaranteed and the greedy tenant had %.3f of the GPU", part) }()
	poll(t, 20*time.Second, "they do not have 0.7 and 0.3 of the GPU for two seconds", func() bool {
		to := fixture.Monotonic()
		part = shares(both, to-int64(2*time.Second), to)
		return part != nil && part[0] > .67 && part[0] < .73
	})

	evader := g.job("greedy", false, "--burst-ms=0.2", "--sleep-ms=5", "--seconds=180")
	poll(t, 20*time.Second, "the evader does not work", func() bool { return g.moves(evader) })
	found := poll(t, 10*time.Second, "the evader is not reported", func() bool {
		return slices.ContainsFunc(g.stats().Workloads,
			func(w wire.WorkloadStats) bool { return w.Tenant == "greedy" && w.Unhooked == 1 && w.Processes == 2 })
	})
	after := poll(t, 30*time.Second, "the workload is not paused",
		func() bool { return slices.Contains(g.told("greedy"), "pause done") })
	still := poll(t, 5*time.Second, "its processes do not stand still",
		func() bool { return !g.moves(greedy) && !g.moves(evader) })
	fixture.If(t, !g.moves(guaranteed) || !g.moves(third),
		"the guaranteed tenant or the ungoverned program stands still too")
	since := fixture.Monotonic()
	on := poll(t, 20*time.Second, "it does not go on",
		func() bool { return g.moved(greedy, since) && g.moved(evader, since) })
	fmt.Printf("evader reported after %v, paused %v later, still after %v (half a second of it is the look), went on "+
		"after %v\n", found, after, still, on)
	evader.Kill()
	poll(t, 40*time.Second, "it does not come down", func() bool {
		told := g.told("greedy")
		return told[len(told)-1] == "observe done"
	})
	want := []string{"warn done", "throttle done", "pause done", "throttle done"}
	if told := g.told("greedy"); !slices.Equal(told[:4], want) {
		t.Errorf("the escalation did %q, want %q to begin with", told, want)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, s := range g.steps {
		fixture.Equal(t, s.Tenant, "greedy", "the escalation moved for %+v", s)
		if s.To > s.From && (len(s.Evidence) == 0 || !slices.Contains(s.Evidence[0].PIDs, evader.Cmd.Process.Pid)) {
			t.Errorf("no evidence, or not of the evader: %+v", s)
		}
	}
}
