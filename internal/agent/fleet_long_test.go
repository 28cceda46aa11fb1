//go:build long

package agent

import (
	"log/slog"
	"testing"

	"gpusteward/internal/config"
	"gpusteward/internal/fixture"
)

// TestLargestFleet builds a fleet of the maximum size, with every ailment.
func TestLargestFleet(t *testing.T) {
	t.Parallel()
	all := fixture.Value(newFleet(flags{demo: "h100", demoGiven: true, demoSeed: 1, demoHosts: maxHosts},
		&config.File{Log: slog.New(slog.DiscardHandler)}, config.Defaults()))(t)
	if len(all) != maxHosts || all[maxHosts-1].name != "node-1000" {
		t.Errorf("%d hosts, the last is %s", len(all), all[len(all)-1].name)
	}
	places := map[int]bool{}
	for _, a := range ailments {
		for _, p := range a.places {
			fixture.If(t, p < 0 || p >= hostsOfCluster || places[p],
				"place %d of %s is no host of a cluster, or ails already", p, a.fault.Kind)
			places[p] = true
		}
	}
}
