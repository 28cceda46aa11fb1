//go:build long

package enforcer_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"gpusteward/enforcer/policy"
	"gpusteward/internal/fixture"
)

// TestAnotherDriverIsFound has programs load the driver in a namespace without
// the hook. One program uses nothing else. The other also launches a little
// under the hook, while honest programs run together.
func TestAnotherDriverIsFound(t *testing.T) {
	none := policy.Quota{Limit: 1, Bandwidth: 1}
	table := policy.Table{Default: policy.Terms{Priority: policy.PriorityNormal, Quota: none},
		Steps: quick(policy.Warn), Actions: 10}
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
	if charged["alone"] > 0 || charged["beside"] == 0 {
		t.Errorf("charged are %v: this is not what was to be found", charged)
	}
	for _, name := range []string{"honest", "another"} {
		if found := g.found(name); len(found) > 0 || g.told(name) != nil {
			t.Errorf("the enforcer finds %[2]v of %[1]s", name, found)
		}
	}
}

// TestDriverFoundOtherwise has a program find the driver's functions by a dlsym
// that dlvsym found, which the audit reports. Another program loads a copy of
// the driver's file, which is under the hook like any other.
func TestDriverFoundOtherwise(t *testing.T) {
	none := policy.Quota{Limit: 1, Bandwidth: 1}
	table := policy.Table{Default: policy.Terms{Priority: policy.PriorityNormal, Quota: none},
		Steps: quick(policy.Warn), Actions: 10,
		Rules: []policy.Rule{byPath("found", none, quick(policy.Warn)), byPath("copied", none, quick(policy.Warn))}}
	g := underEnforcer(t, table)
	driver := fixture.Value(os.ReadFile(fixture.Given(t, "GS_STUB", "hook/build/stub") + "/libcuda.so.1"))(t)
	file := filepath.Join(g.dir, "copy.so")
	fixture.Program(t, file, driver)
	g.job("copied", true, "--resolve="+file, "--burst-ms=1", "--sleep-ms=1", "--seconds=180")
	g.job("found", true, "--resolve=dlvsym", "--burst-ms=1", "--sleep-ms=1", "--seconds=180")
	poll(t, time.Minute, "it is not found", func() bool { return g.found("found")["unhooked"] > 0 })
	if b := books(g.it.Stats(), "copied"); b.ChargedSeconds == 0 || len(g.found("copied")) > 0 {
		t.Errorf("the copy: %+v, found %v", b, g.found("copied"))
	}
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
