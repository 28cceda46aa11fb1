package enforcer_test

import (
	"slices"
	"testing"
	"time"

	"gpusteward/enforcer/policy"
	"gpusteward/enforcer/wire"
)

// TestWhoIsRefusedIsLeftAlone has a program begin under the hook for which the
// broker has no session left: it runs, and nothing is done about it.
func TestWhoIsRefusedIsLeftAlone(t *testing.T) {
	g := prepared(t, severe())
	g.broker.MaxSessions, g.broker.Doubt = 2, 8*time.Second // programs that are refused come again after 5 to 6 s
	g.run(severe())
	anchor := g.job("third", true, "--burst-ms=0.2", "--sleep-ms=20", "--seconds=180")
	poll(t, 20*time.Second, "the first does not work", func() bool { return g.moves(anchor) })
	doomed := g.job("doomed", true, "--burst-ms=0.2", "--sleep-ms=5", "--seconds=180")
	poll(t, 20*time.Second, "nobody is refused", func() bool {
		return slices.ContainsFunc(g.it.Stats().Requests, func(r wire.RequestStats) bool { return r.Result == "limit" && r.Count > 0 })
	})
	time.Sleep(10 * time.Second) // the doubt of the start is over, and it is refused for the second time
	g.untouched(doomed)
}

// severe is a policy that ends who goes around the hook after a few seconds.
func severe() policy.Table {
	none := policy.Quota{Limit: 1, Bandwidth: 1}
	return policy.Table{Default: policy.Terms{Priority: policy.PriorityNormal, Quota: none}, Steps: quick(policy.Warn), Actions: 10,
		Rules: []policy.Rule{byPath("doomed", none, quick(policy.Terminate))}}
}

// untouched watches a program for ten audits: it works, it is found to do
// nothing wrong, and the ladder does nothing about it.
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
		g.t.Errorf("the ladder did %q; it works: %v", told, g.moves(w))
	}
}
