//go:build long

package integration

import (
	"fmt"
	"testing"

	"gpusteward/internal/fixture"
)

// TestFleetIsNotDegraded: an agent of a fleet does not take the resources of all of them for its own.
func TestFleetIsNotDegraded(t *testing.T) {
	t.Parallel()
	const hosts = 60
	a := start(t, "--demo=h100", fmt.Sprint("--demo.hosts=", hosts)).ready()
	var pressure []float64 // of 2000
	eventually(t, "a host says what its agent uses", func() bool {
		_, page := a.get("/hosts/node-001/metrics")
		pressure = parse(page).family("gpusteward_pressure_ratio", `resource="goroutines"`)
		return len(pressure) > 0
	})
	own := pressure[0] * 2000
	fixture.If(t, own < 10 || own > 100, "one of %d hosts has %v goroutines", hosts, own)
}
