//go:build timed

package enforcer_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"gpusteward/enforcer"
	"gpusteward/enforcer/broker"
	"gpusteward/enforcer/policy"
	"gpusteward/internal/fixture"
	"gpusteward/internal/wire"
)

// TestEnforcer has a greedy tenant on a simulated GPU, beside a tenant with a
// guarantee and a program without a quota. One process of the greedy tenant
// goes around the hook. It is found, warned, throttled, paused and resumed, and
// no other process is touched.
func TestEnforcer(t *testing.T) {
	none := policy.Quota{Limit: 1, Bandwidth: 1}
	with := func(edit func(*policy.Quota)) policy.Quota { q := none; edit(&q); return q }
	table := policy.Table{Default: policy.Terms{Priority: policy.PriorityNormal, Quota: none},
		Steps: quick(policy.Warn), Actions: 10, Rules: []policy.Rule{
			byPath("guaranteed", with(func(q *policy.Quota) { q.Guarantee = .7 }), quick(policy.Warn)),
			byPath("greedy", with(func(q *policy.Quota) { q.Guarantee, q.Limit, q.Memory = .3, .3, 1<<30 }),
				quick(policy.Pause)),
		}}
	g := underEnforcer(t, table)
	guaranteed := g.job("guaranteed", true, "--kernel-us=200", "--seconds=180")
	greedy := g.job("greedy", true, "--kernel-us=200", "--seconds=180")
	third := g.job("third", false, "--burst-ms=0.2", "--sleep-ms=20", "--seconds=180")
	poll(t, 20*time.Second, "somebody does not work",
		func() bool { return g.moves(guaranteed) && g.moves(greedy) && g.moves(third) })

	from := fixture.Monotonic() + int64(settle)
	poll(t, time.Minute, "the books are not compared", func() bool {
		return slices.ContainsFunc(g.stats().Quotas,
			func(q wire.QuotaStats) bool { return q.Tenant == "greedy" && q.Charge != nil })
	})
	poll(t, 20*time.Second, "no 10 s pass", func() bool { return fixture.Monotonic() > from+int64(10*time.Second) })
	both := []*series{g.truth.of(guaranteed.cmd.Process.Pid), g.truth.of(greedy.cmd.Process.Pid)}
	part := typical(both, from, from+int64(10*time.Second))
	if whole := part[0] + part[1]; part[0] < .69*whole || part[1] > .31*whole {
		t.Errorf("they have %.3f of a typical second on the GPU, want 0.7 and 0.3", part)
	}

	evader := g.job("greedy", false, "--burst-ms=0.2", "--sleep-ms=5", "--seconds=180")
	poll(t, 20*time.Second, "the evader does not work", func() bool { return g.moves(evader) })
	found := poll(t, 10*time.Second, "the evader is not reported", func() bool {
		return slices.ContainsFunc(g.stats().Workloads,
			func(w wire.WorkloadStats) bool { return w.Tenant == "greedy" && w.Unhooked == 1 && w.Processes == 2 })
	})
	paused := poll(t, 30*time.Second, "the workload is not paused",
		func() bool { return slices.Contains(g.told("greedy"), "pause done") })
	still := poll(t, 5*time.Second, "its processes do not stand still",
		func() bool { return !g.moves(greedy) && !g.moves(evader) })
	if !g.moves(guaranteed) || !g.moves(third) {
		t.Error("the guaranteed tenant or the ungoverned program stands still too")
	}
	since := fixture.Monotonic()
	on := poll(t, 20*time.Second, "it does not go on",
		func() bool { return g.moved(greedy, since) && g.moved(evader, since) })
	fmt.Printf("evader reported after %v, paused %v later, still after %v (half a second of it is the look), went on "+
		"after %v\n", found, paused, still, on)
	evader.kill()
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
		if s.Tenant != "greedy" {
			t.Errorf("the escalation moved for %+v", s)
		}
		if s.To > s.From && (len(s.Evidence) == 0 || !slices.Contains(s.Evidence[0].PIDs, evader.cmd.Process.Pid)) {
			t.Errorf("no evidence, or not of the evader: %+v", s)
		}
	}
}

// TestEnforcerTerminates ends a program that goes around the hook if the policy
// says so, and no other program. It does not do so while the GPU itself is at
// fault.
func TestEnforcerTerminates(t *testing.T) {
	t.Parallel()
	none := policy.Quota{Limit: 1, Bandwidth: 1}
	table := policy.Table{Default: policy.Terms{Priority: policy.PriorityNormal, Quota: none},
		Steps: quick(policy.Warn), Actions: 10, Rules: []policy.Rule{
			byPath("doomed", none, quick(policy.Terminate)),
			byPath("shadowed", none, func() policy.Steps { s := quick(policy.Terminate); s.Shadow = true; return s }()),
		}}
	g := underEnforcer(t, table)
	g.hardware = true
	// It makes the GPU known to the broker.
	anchor := g.job("third", true, "--burst-ms=0.2", "--sleep-ms=20", "--seconds=180")
	doomed := g.job("doomed", false, "--burst-ms=0.2", "--sleep-ms=5", "--seconds=180")
	shadowed := g.job("shadowed", false, "--burst-ms=0.2", "--sleep-ms=5", "--seconds=180")
	poll(t, 20*time.Second, "somebody does not work",
		func() bool { return g.moves(doomed) && g.moves(shadowed) && g.moves(anchor) })
	poll(t, 20*time.Second, "they are not reported", func() bool {
		n := uint64(0)
		for _, w := range g.stats().Workloads {
			n += w.Violations["unhooked"]
		}
		return n >= 8
	})
	if told := g.told("doomed"); told != nil {
		t.Errorf("while the GPU was at fault: %q", told)
	}
	g.mu.Lock()
	g.hardware = false
	g.mu.Unlock()
	poll(t, 60*time.Second, "it is not terminated",
		func() bool { return slices.Contains(g.told("doomed"), "terminate done") })
	poll(t, 10*time.Second, "it runs on", func() bool { return over(doomed) })
	poll(t, 60*time.Second, "the other is not at the top in shadow",
		func() bool { return slices.Contains(g.told("shadowed"), "terminate shadow") })
	if !g.moves(shadowed) || !g.moves(anchor) {
		t.Error("a program in shadow or an ungoverned one was touched")
	}
}

// TestPausedOverRestart ends an enforcer while a workload is paused. The
// workload runs until the next enforcer pauses it again. A second enforcer
// beside the first is refused.
func TestPausedOverRestart(t *testing.T) {
	t.Parallel()
	none := policy.Quota{Limit: 1, Bandwidth: 1}
	slow := quick(policy.Pause)
	slow.Hold = time.Minute
	table := policy.Table{Default: policy.Terms{Priority: policy.PriorityNormal, Quota: none},
		Steps: quick(policy.Warn), Actions: 10, Rules: []policy.Rule{byPath("paused", none, slow)}}
	g := underEnforcer(t, table)
	anchor := g.job("third", true, "--burst-ms=0.2", "--sleep-ms=20", "--seconds=180")
	w := g.job("paused", false, "--burst-ms=0.2", "--sleep-ms=5", "--seconds=180")
	poll(t, 20*time.Second, "somebody does not work", func() bool { return g.moves(w) && g.moves(anchor) })
	poll(t, 60*time.Second, "it is not paused",
		func() bool { return slices.Contains(g.told("paused"), "pause done") && !g.moves(w) })
	_, err := enforcer.New(enforcer.Options{Policy: policy.New(table, policy.HostView{}, nil), Dir: g.dir, Host: g,
		Broker: broker.Options{Socket: g.socket + "2"}})
	if err == nil {
		t.Fatal("a second enforcer begins beside the first")
	}
	fmt.Println("a second enforcer is refused:", err)
	g.stop()
	poll(t, 5*time.Second, "it stands still without an enforcer", func() bool { return g.moves(w) })
	g.run(table)
	poll(t, 20*time.Second, "it is not paused again", func() bool { return !g.moves(w) })
}
