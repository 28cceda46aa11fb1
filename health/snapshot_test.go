package health

import (
	"fmt"
	"testing"

	"gpusteward/collectors"
	"gpusteward/health/derived"
	"gpusteward/health/incident"
	"gpusteward/internal/fixture"
)

// TestAnsweringGPUs checks when a GPU answers, and when the node does.
func TestAnsweringGPUs(t *testing.T) {
	t.Parallel()
	for ups, want := range map[string][3]bool{"": {}, "1": {true, true}, "0": {}, "11": {true, true, true},
		"10": {false, true, false}, "01": {false, false, true}} {
		var all []collectors.Sample
		for i, up := range ups {
			all = append(all, on(fmt.Sprint(i), collectors.Up, float64(up-'0')))
		}
		s := derived.NewSnapshot(all)
		for i, e := range []incident.Entity{{}, gpuEntity("0"), gpuEntity("1")} {
			fixture.Equal(t, s.Answers(e), want[i], "%q: %v answers", ups, e)
		}
		for m, stays := range map[*collectors.Metric]bool{derived.FaultScore: true, derived.LemonScore: true,
			Away:            true,
			derived.Traffic: false, derived.PeerZScore: false} {
			labels := make([]string, len(m.Labels))
			labels[0], labels[1] = "0", "GPU-0"
			if got := outlived(s, collectors.Sample{Metric: m, Labels: labels}); got == (stays || want[1]) {
				t.Errorf("%q: %s is outlived: %v", ups, m, got)
			}
		}
		if outlived(s, collectors.Sample{Metric: DevicesAway}) {
			t.Errorf("%q: what is the node's is outlived", ups)
		}
	}
}
