package audit

import (
	"testing"
	"time"

	"gpusteward/collectors"
	"gpusteward/internal/fixture"
)

// TestExcessInEachReading holds that memory exceeds the books only if it did in
// all of the last readings.
func TestExcessInEachReading(t *testing.T) {
	for low := range excesses {
		var p auditedProcess
		p.remember(0, true)
		has := func(bytes uint64) uint64 {
			return p.above(&collectors.DeviceProcess{Memory: ContextBytes + bytes}, true)
		}
		for range excesses - 1 {
			has(gib)
		}
		fixture.Need(t, has(gib), gib, "after %d readings it is … bytes above the books", excesses)
		for i := range excesses {
			bytes := uint64(gib)
			if i == low {
				bytes = 0
			}
			if got := has(bytes); i >= low && got != 0 {
				t.Errorf("%d readings after one within the books it is %d bytes above them, want 0", i-low, got)
			}
		}
	}
}

// TestNoReadingInTheDark holds that no reading is taken while samples are not
// added up: the time would appear in the next window.
func TestNoReadingInTheDark(t *testing.T) {
	g := auditedGPU{dark: true, sampled: time.Unix(1e9, 0)}
	if g.sample(&Books{}); !g.read.IsZero() {
		t.Errorf("a reading was taken at %v", g.read)
	}
	g.dark = false
	if g.sample(&Books{}); !g.read.Equal(g.sampled) {
		t.Errorf("the reading was taken at %v, want %v", g.read, g.sampled)
	}
}
