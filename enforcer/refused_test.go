package enforcer_test

import (
	"time"

	"gpusteward/enforcer/policy"
)

// severe returns a policy that terminates workloads outside the hook after a
// few seconds.
func severe() policy.Table {
	none := policy.Quota{Limit: 1, Bandwidth: 1}
	return policy.Table{Default: policy.Terms{Priority: policy.PriorityNormal, Quota: none}, Steps: quick(policy.Warn),
		Actions: 10,
		Rules:   []policy.Rule{byPath("doomed", none, quick(policy.Terminate))}}
}

// untouched watches a program for ten audits: it works, the audits find
// nothing, and the enforcer does not act on it.
func (g *governed) untouched(w *worker) {
	g.t.Helper()
	for range 10 {
		time.Sleep(time.Second)
		for _, row := range g.stats().Workloads {
			if row.Tenant == w.name && (row.Unhooked > 0 || len(row.Violations) > 0) {
				g.t.Fatalf("found %+v", row)
			}
		}
	}
	if told := g.told(w.name); told != nil || !g.moves(w) {
		g.t.Errorf("the escalation did %q; it works: %v", told, g.moves(w))
	}
}
