//go:build timed

package broker

import (
	"math"
	"sync"
	"testing"
)

// TestShares has two tenants that always want the GPU and report what they do.
// They get parts by their weights: a tenant that is owed time has the GPU alone
// at times.
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
	eventually(t, "they have run for two seconds",
		func() bool { return b.tenant("a").ServedSeconds+b.tenant("b").ServedSeconds > 2 })
	x, y, g := b.tenant("a"), b.tenant("b"), b.first()
	for _, c := range clients {
		c.close()
	}
	all.Wait()
	t.Logf("launches %v, turns %d and %d, together %v s", launches, x.Turns, y.Turns, g.TogetherSeconds)
	const due = weight / (weight + 1.)
	for what, part := range map[string]float64{
		"launches": float64(launches[0]) / float64(launches[0]+launches[1]),
		"service":  x.ServedSeconds / (x.ServedSeconds + y.ServedSeconds),
		"charge":   x.ChargedSeconds / (x.ChargedSeconds + y.ChargedSeconds),
	} {
		if math.Abs(part-due) > 0.1 {
			t.Errorf("%.3f of the %s instead of %.3f", part, what, due)
		}
	}
	if y.Turns < 10 || g.Preempted < 10 {
		t.Errorf("the tenant that is ahead is not held back: %+v, %+v", y, g)
	}
}
