//go:build timed

package broker

import (
	"math"
	"sync"
	"testing"
)

// TestShares has two tenants that always want the GPU and report what they do. They get parts by their
// weights: a tenant that is owed time has the GPU alone at times. While the GPU is tried with both open, they
// have the same: the parts of all the time come out later then.
func TestShares(t *testing.T) {
	const weight = 3
	b := start(t, Options{Policy: book{quotas: map[string]Quota{"a": {Weight: weight}}}}, nil)
	var gpu device
	var all sync.WaitGroup
	var launches [2]int
	clients := []*client{dial(t, b, "a", 1), dial(t, b, "b", 1)}
	for i, c := range clients {
		all.Go(func() { launches[i] = c.saturate(&gpu) })
	}
	const due = weight / (weight + 1.)
	near := func(x, y, by float64) bool { return math.Abs(x/(x+y)-due) <= by }
	eventually(t, "they have had their parts of two seconds or more, in turns", func() bool {
		x, y, g := b.tenant("a"), b.tenant("b"), b.first()
		return x.ServedSeconds+y.ServedSeconds > 2 && y.Turns >= 10 && g.Preempted >= 10 &&
			near(x.ServedSeconds, y.ServedSeconds, 0.08) && near(x.ChargedSeconds, y.ChargedSeconds, 0.08)
	})
	for _, c := range clients {
		c.close()
	}
	all.Wait()
	if !near(float64(launches[0]), float64(launches[1]), 0.1) {
		t.Errorf("launches %v, not %.3f of them", launches, due)
	}
}
