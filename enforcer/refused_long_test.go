//go:build long

package enforcer_test

import (
	"slices"
	"testing"
	"time"

	"gpusteward/enforcer/policy"
	"gpusteward/internal/wire"
)

// TestWhoIsRefusedIsLeftAlone starts a program under the hook for which the
// broker has no session left. It runs, and the enforcer does not act on it.
func TestWhoIsRefusedIsLeftAlone(t *testing.T) {
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

// TestWhoLeavesItselfNoSessionIsJudged starts a program under the hook for which
// its own owner has left no session. It runs, and the enforcer ends it.
func TestWhoLeavesItselfNoSessionIsJudged(t *testing.T) {
	g := prepared(t)
	g.broker.MaxSessions, g.broker.Doubt = 2, 8*time.Second
	g.run(severe())
	anchor := g.job("third", true, "--burst-ms=0.2", "--sleep-ms=20", "--seconds=180")
	poll(t, 20*time.Second, "the first does not work", func() bool { return g.moves(anchor) })
	doomed := g.job("doomed", true, "--burst-ms=0.2", "--sleep-ms=5", "--seconds=180")
	poll(t, time.Minute, "it is not ended", func() bool { return slices.Contains(g.told(doomed.Name), "terminate done") })
}

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
		for _, row := range g.audited().Workloads {
			if row.Tenant == w.Name && (row.Unhooked > 0 || len(row.Violations) > 0) {
				g.t.Fatalf("found %+v", row)
			}
		}
	}
	if told := g.told(w.Name); told != nil || !g.moves(w) {
		g.t.Errorf("the escalation did %q; it works: %v", told, g.moves(w))
	}
}
