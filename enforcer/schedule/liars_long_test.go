//go:build long

package schedule

import (
	"fmt"
	"testing"
	"time"
)

// Tenants that take every turn and lie about it get together no more than their
// weights. A tenant that shares the GPU with them gets its part.
func TestLiars(t *testing.T) {
	t.Parallel()
	const long = 11 * time.Second
	for what, lie := range lies {
		for _, kernel := range []time.Duration{0, 50 * ms} {
			// with two sessions, one may wait for the other and may launch
			// during the drain
			for _, sessions := range []int{1, 2} {
				least := 0.94
				// trials let liars run, too, five of them in these 11 s; and launches at
				// the end of a drain are not charged if nobody reports them
				if kernel > 0 {
					least = 0.91
				}
				a, b := kind("queue", 50), kind("queue", 38)
				a.name, b.name = "a", "b"
				all := []*program{a, b}
				for i := range 6 {
					all = append(all, &program{name: fmt.Sprint("liar ", i), Share: Share{Weight: 2}, kernel: kernel,
						lie: lie})
				}
				w := newWorld(t, false, nil, all...)
				for _, p := range all[2:] {
					for range sessions - 1 {
						w.gpus[0].g.Join(0, p.name, p.Share)
					}
				}
				w.run(long)
				for _, p := range all[:2] {
					part := p.rate(begin, long) / alone(t, "queue").lone * 100 / p.Weight
					line := fmt.Sprintf("%s has %.3f of its part beside who says: %s (%d sessions, kernels of %v)",
						p.name, part, what, sessions, kernel)
					if t.Log(line); part < least {
						t.Errorf("%s; at least %.2f", line, least)
					}
				}
			}
		}
	}
}
