//go:build long

package enforcer_test

import (
	"slices"
	"testing"
	"time"

	"gpusteward/internal/wire"
)

// TestWhoIsRefusedIsLeftAlone starts a program under the hook for which the
// broker has no session left. It runs, and the enforcer does not act on it.
func TestWhoIsRefusedIsLeftAlone(t *testing.T) {
	g := prepared(t, severe())
	g.broker.MaxSessions, g.broker.Doubt = 2, 8*time.Second // refused programs return after 5 to 6 s
	g.run(severe())
	anchor := g.job("third", true, "--burst-ms=0.2", "--sleep-ms=20", "--seconds=180")
	poll(t, 20*time.Second, "the first does not work", func() bool { return g.moves(anchor) })
	doomed := g.job("doomed", true, "--burst-ms=0.2", "--sleep-ms=5", "--seconds=180")
	poll(t, 20*time.Second, "nobody is refused", func() bool {
		return slices.ContainsFunc(g.it.Stats().Requests,
			func(r wire.RequestStats) bool { return r.Result == "limit" && r.Count > 0 })
	})
	time.Sleep(10 * time.Second) // the doubt of the start is over, and the second refusal has happened
	g.untouched(doomed)
}
