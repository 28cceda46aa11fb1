//go:build nightly

package jobs

import "testing"

// TestWorlds has as many jobs as the figures in docs/benchmarks.md.
func TestWorlds(t *testing.T) {
	*worldHangs, *worldLives, *worldStragglers, *worldCauses, *worldHealthy = 292, 30, 100, 400, 300
	for name, world := range map[string]func(*testing.T){"hangs": hangAll, "early hangs": hangEarly,
		"healthy": stayHealthy, "stragglers": straggleAll, "causes": slowAll, "as usual": stayAsUsual} {
		t.Run(name, func(t *testing.T) { t.Parallel(); world(t) })
	}
}
