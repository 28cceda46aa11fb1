//go:build long

package enforcer_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"gpusteward/enforcer/policy"
	"gpusteward/internal/fixture"
	"gpusteward/internal/wire"
)

// TestAnotherDriverIsFound has programs load the driver in a namespace without the hook. One program uses nothing else.
// The other also launches a little under the hook, while honest programs run together.
func TestAnotherDriverIsFound(t *testing.T) {
	table := judging()
	for _, name := range []string{"honest", "another", "alone", "beside"} {
		table.Rules = append(table.Rules, byPath(name, none, quick(policy.Warn)))
	}
	g := underEnforcer(t, table)
	var all []*worker
	for _, name := range []string{"honest", "another"} {
		all = append(all, g.job(name, true, "--kernel-us=20", "--cpu-us=300", "--seconds=180"))
	}
	all = append(all, g.job("alone", true, "--resolve=dlmopen", "--burst-ms=1", "--sleep-ms=1", "--seconds=180"),
		g.job("beside", true, "--resolve=dlmopen", "--trickle-ms=8", "--kernel-us=100", "--seconds=180"))
	for _, w := range all {
		poll(t, 20*time.Second, w.Name+" does not work", func() bool { return g.moves(w) })
	}
	for name, objective := range map[string]string{"alone": "unhooked", "beside": "reports"} {
		took := poll(t, time.Minute, name+" is not found", func() bool { return g.found(name)[objective] > 0 })
		fmt.Printf("%s found after %v\n", name, took)
	}
	charged := map[string]float64{}
	for _, row := range g.it.Stats().Tenants {
		charged[row.Tenant] = row.ChargedSeconds
	}
	fixture.If(t, charged["alone"] > 0 || charged["beside"] == 0,
		"charged are %v: this is not what was to be found", charged)
	for _, name := range []string{"honest", "another"} {
		found := g.found(name)
		fixture.If(t, len(found) > 0 || g.told(name) != nil, "the enforcer finds %[2]v of %[1]s", name, found)
	}
}

// TestDriverFoundOtherwise has a program find the driver's functions by a dlsym that dlvsym found, which the audit
// reports. Another program loads a copy of the driver's file, which is under the hook like any other.
func TestDriverFoundOtherwise(t *testing.T) {
	g := underEnforcer(t, judging(byPath("found", none, quick(policy.Warn)), byPath("copied", none, quick(policy.Warn))))
	driver := fixture.Value(os.ReadFile(fixture.Given(t, "GS_STUB", "hook/build/stub") + "/libcuda.so.1"))(t)
	file := filepath.Join(g.dir, "copy.so")
	fixture.Program(t, file, driver)
	g.job("copied", true, "--resolve="+file, "--burst-ms=1", "--sleep-ms=1", "--seconds=180")
	g.job("found", true, "--resolve=dlvsym", "--burst-ms=1", "--sleep-ms=1", "--seconds=180")
	poll(t, time.Minute, "it is not found", func() bool { return g.found("found")["unhooked"] > 0 })
	poll(t, time.Minute, "the copy is not charged", func() bool { return books(g.it.Stats(), "copied").ChargedSeconds > 0 })
	fixture.Equal(t, len(g.found("copied")), 0, "audits that found the copy:")
}

// found returns the audits that found a tenant's workload, by objective.
func (g *governed) found(tenant string) map[string]uint64 {
	for _, w := range g.stats().Workloads {
		if w.Tenant == tenant {
			return w.Violations
		}
	}
	return nil
}

// TestRefusedProgramIsLeftAlone starts a program under the hook for which the
// broker has no session left. It runs, and the enforcer does not act on it.
func TestRefusedProgramIsLeftAlone(t *testing.T) {
	g := prepared(t)
	g.broker.MaxSessions, g.broker.Doubt = 1, 8*time.Second // refused programs return after 5 to 6 s
	g.run(severe())
	started := time.Now()
	anchor := g.job("third", true, "--burst-ms=0.2", "--sleep-ms=20", "--seconds=180")
	poll(t, 20*time.Second, "the first does not work", func() bool { return g.moves(anchor) })
	doomed := g.job("doomed", true, "--burst-ms=0.2", "--sleep-ms=5", "--seconds=180")
	poll(t, time.Minute, "no program is refused twice", func() bool {
		return slices.ContainsFunc(g.it.Stats().Requests,
			func(r wire.RequestStats) bool { return r.Result == "limit" && r.Count > 1 })
	})
	poll(t, time.Minute, "the doubt of the start remains", func() bool { return time.Since(started) > g.broker.Doubt })
	g.untouched(doomed)
}

// TestOwnSessionLimitIsNoExcuse starts a program under the hook for which
// its own owner has left no session. It runs, and the enforcer ends it.
func TestOwnSessionLimitIsNoExcuse(t *testing.T) {
	g := prepared(t)
	g.broker.MaxSessions, g.broker.Doubt = 2, 8*time.Second
	g.run(severe())
	anchor := g.job("third", true, "--burst-ms=0.2", "--sleep-ms=20", "--seconds=180")
	poll(t, 20*time.Second, "the first does not work", func() bool { return g.moves(anchor) })
	doomed := g.job("doomed", true, "--burst-ms=0.2", "--sleep-ms=5", "--seconds=180")
	poll(t, time.Minute, "it is not ended", func() bool { return slices.Contains(g.told(doomed.Name), "terminate done") })
}

// severe returns a policy that terminates workloads outside the hook after a few seconds.
func severe() policy.Table { return judging(byPath("doomed", none, quick(policy.Terminate))) }

// untouched watches a program for ten audits: it works, the audits find nothing, and the enforcer does not act on it.
func (g *governed) untouched(w *worker) {
	g.t.Helper()
	for range 10 {
		for _, row := range g.audited().Workloads {
			fixture.Stop(g.t, row.Tenant == w.Name && (row.Unhooked > 0 || len(row.Violations) > 0), "found %+v", row)
		}
	}
	if told := g.told(w.Name); told != nil || !g.moves(w) {
		g.t.Errorf("the escalation did %q; it works: %v", told, g.moves(w))
	}
}
