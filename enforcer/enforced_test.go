package enforcer_test

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"gpusteward/enforcer"
	"gpusteward/enforcer/audit"
	"gpusteward/enforcer/broker"
	"gpusteward/enforcer/escalation"
	"gpusteward/enforcer/policy"
	"gpusteward/internal/fixture"
	"gpusteward/internal/span"
)

// TestEnforcerTerminates ends a program that goes around the hook if the policy says so, and no other program. It does
// not do so while the GPU itself is at fault.
func TestEnforcerTerminates(t *testing.T) {
	t.Parallel()
	shadow := quick(policy.Terminate)
	shadow.Shadow = true
	g := prepared(t)
	g.broker.Spans = span.New()
	g.broker.Spans.Set(1)
	g.hardware = true
	g.run(judging(byPath("doomed", none, quick(policy.Terminate)), byPath("shadowed", none, shadow)))
	// It makes the GPU known to the broker.
	anchor := g.job("third", true, "--burst-ms=0.2", "--sleep-ms=20", "--seconds=600")
	doomed := g.job("doomed", false, "--burst-ms=0.2", "--sleep-ms=5", "--seconds=600")
	shadowed := g.job("shadowed", false, "--burst-ms=0.2", "--sleep-ms=5", "--seconds=600")
	g.work(doomed, shadowed, anchor)
	poll(t, 20*time.Second, "they are not reported", func() bool {
		n := uint64(0)
		for _, w := range g.stats().Workloads {
			n += w.Violations["unhooked"]
		}
		return n >= 8
	})
	fixture.EqualSlices(t, g.told("doomed"), nil, "told while the GPU was at fault")
	g.mu.Lock()
	g.hardware = false
	g.mu.Unlock()
	poll(t, 60*time.Second, "it is not terminated",
		func() bool { return slices.Contains(g.told("doomed"), "terminate done") })
	poll(t, 10*time.Second, "it runs on", func() bool { return over(doomed) })
	poll(t, 60*time.Second, "the other is not at the top in shadow",
		func() bool { return slices.Contains(g.told("shadowed"), "terminate shadow") })
	g.work(shadowed, anchor) // which were not touched
	steps := ""
	for _, s := range g.broker.Spans.Read(0).Spans {
		steps += fmt.Sprintln(s.Name, s.Tags["workload"], s.Tags["from"], s.Tags["to"], s.Tags["result"], s.Failed)
	}
	fixture.Contains(t, steps, "enforcer.step unit:doomed.service warn throttle done \n", "the spans")
	fixture.Contains(t, steps, "enforcer.step unit:shadowed.service suspend terminate shadow \n", "the spans")
}

// TestPausedOverRestart ends an enforcer while a workload is paused. The workload runs until the next enforcer pauses
// it again. A second enforcer beside the first is refused.
func TestPausedOverRestart(t *testing.T) {
	t.Parallel()
	slow := quick(policy.Pause)
	slow.Hold = time.Minute
	table := judging(byPath("paused", none, slow))
	g := underEnforcer(t, table)
	anchor := g.job("third", true, "--burst-ms=0.2", "--sleep-ms=20", "--seconds=600")
	w := g.job("paused", false, "--burst-ms=0.2", "--sleep-ms=5", "--seconds=600")
	g.work(w, anchor)
	poll(t, 60*time.Second, "it is not paused",
		func() bool { return slices.Contains(g.told("paused"), "pause done") && !g.moves(w) })
	_, err := enforcer.New(enforcer.Options{Policy: policy.New(table, policy.HostView{}, nil), Dir: g.dir, Host: g,
		Broker: broker.Options{Socket: g.socket + "2"}})
	fixture.Fails(t, err, "", "a second enforcer beside the first")
	g.stop()
	g.work(w) // nothing holds it without an enforcer
	g.run(table)
	poll(t, 20*time.Second, "it is not paused again", func() bool { return !g.moves(w) })
}

// TestLongerTimeSlicesAreReported has a program give itself time slices of 20 ms by the driver,
// with the hook and without it, beside one that is guaranteed most of the GPU. It is named for it
// and escalated, and the other one is not.
func TestLongerTimeSlicesAreReported(t *testing.T) {
	bothWays(t, func(t *testing.T, hooked bool) {
		honest, objective := policy.Quota{Guarantee: .7, Limit: 1, Bandwidth: 1}, audit.Unhooked
		g := underEnforcer(t, judging(byPath("honest", honest, quick(policy.Warn)), byPath("taker", none, quick(policy.Warn))))
		driver := filepath.Join(fixture.Given(t, "GS_STUB", "hook/build/stub"), "libcuda.so.1")
		g.hook[0] += ":" + driver // its requests to the kernel pass the hook then
		a := g.job("honest", true, "--kernel-us=500", "--seconds=600")
		if hooked {
			objective = audit.Sliced
		} else {
			g.driver = append(slices.Clone(g.driver), "LD_PRELOAD="+driver)
		}
		g.work(a)
		b := g.job("taker", hooked, "--kernel-us=500", "--seconds=600", "--slice-us=20000")
		g.work(b)
		began := time.Now()
		poll(t, 60*time.Second, "it is not named", func() bool {
			g.mu.Lock()
			defer g.mu.Unlock()
			return slices.ContainsFunc(g.steps, func(s escalation.Step) bool {
				return s.Tenant == "taker" && s.To == policy.Warn && slices.ContainsFunc(s.Evidence, func(v audit.Violation) bool {
					return v.Objective == objective && slices.Equal(v.PIDs, []int{b.Cmd.Process.Pid})
				})
			})
		})
		t.Logf("hooked %v: named after %v", hooked, time.Since(began))
		fixture.EqualSlices(t, g.told("honest"), nil, "told of the other one")
		for _, w := range g.stats().Workloads {
			fixture.If(t, w.Tenant == "honest" && len(w.Violations) > 0, "the other one: %v", w.Violations)
		}
	})
}
