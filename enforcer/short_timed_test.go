//go:build timed

package enforcer_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gpusteward/enforcer/policy"
)

// TestShortLivesAreFrozen has successive programs that go around the hook.
// Their workload is escalated, and is frozen together with the process that
// starts them. Beside them others do the same under the hook, and nothing
// happens.
func TestShortLivesAreFrozen(t *testing.T) {
	t.Parallel()
	none := policy.Quota{Limit: 1, Bandwidth: 1}
	steps := quick(policy.Pause)
	steps.Hold = time.Minute
	of := func(name string) policy.Rule {
		return policy.Rule{Name: name, Select: []policy.Selector{{Workloads: []string{"unit:" + name + ".service"}}},
			Terms: policy.Terms{Priority: policy.PriorityNormal, Quota: none}, Steps: steps}
	}
	g := underEnforcer(t, policy.Table{Default: policy.Terms{Priority: policy.PriorityNormal, Quota: none},
		Steps: quick(policy.Warn), Actions: 10,
		Rules: []policy.Rule{of("around"), of("honest")}})
	g.short("unit:honest.service", g.hook)
	poll(t, 20*time.Second, "nobody has a session", func() bool { return g.it.Stats().Sessions["active"] > 0 })
	dir := g.short("unit:around.service", nil)
	took := poll(t, 2*time.Minute, "it is not paused",
		func() bool { return slices.Contains(g.told("around"), "pause done") })
	fmt.Printf("short lives paused after %v\n", took)
	poll(t, 10*time.Second, "its cgroup is not frozen", func() bool {
		events, _ := os.ReadFile(filepath.Join(dir, "cgroup.events"))
		return strings.Contains(string(events), "frozen 1")
	})
	if told := g.told("around"); !slices.Equal(told, []string{"warn done", "throttle done", "pause done"}) {
		t.Errorf("the escalation did %q", told)
	}
	if told := g.told("honest"); told != nil {
		t.Errorf("to those under the hook the escalation did %q", told)
	}
}

// TestShortLapsesAreFrozen has successive programs that begin under the hook
// and then continue without it, each for less than the grace period.
func TestShortLapsesAreFrozen(t *testing.T) {
	t.Parallel()
	none := policy.Quota{Limit: 1, Bandwidth: 1}
	steps := quick(policy.Pause)
	steps.Hold = time.Minute
	of := policy.Rule{Name: "shed", Select: []policy.Selector{{Workloads: []string{"unit:shed.service"}}},
		Terms: policy.Terms{Priority: policy.PriorityNormal, Quota: none}, Steps: steps}
	g := underEnforcer(t, policy.Table{Default: policy.Terms{Priority: policy.PriorityNormal, Quota: none},
		Steps: quick(policy.Warn), Actions: 10, Rules: []policy.Rule{of}})
	dir := g.short("unit:shed.service", g.hook, "--seconds=1.5", "--shed=7")
	took := poll(t, 2*time.Minute, "it is not paused",
		func() bool { return slices.Contains(g.told("shed"), "pause done") })
	fmt.Printf("short lapses paused after %v\n", took)
	poll(t, 10*time.Second, "its cgroup is not frozen", func() bool {
		events, _ := os.ReadFile(filepath.Join(dir, "cgroup.events"))
		return strings.Contains(string(events), "frozen 1")
	})
}
