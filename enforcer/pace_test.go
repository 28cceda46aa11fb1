package enforcer

import (
	"testing"

	"gpusteward/enforcer/policy"
	"gpusteward/internal/fixture"
)

// The kernels of a tenant keep the memory busy for 80 % of their time on the
// GPU. The pacer brings the tenant within its part of the bandwidth. The tenant
// gets its limit back when it needs less.
func TestPacer(t *testing.T) {
	t.Parallel()
	at, q := place{"a", "GPU-0"}, policy.Quota{Limit: .9, Bandwidth: .3}
	p := pacer{}
	share := .9
	step := func(intensity float64) (used float64) {
		share = p.limit(at, q)
		used = share * intensity
		p.look(at, q, used, share)
		return used
	}
	for range 3 {
		step(.8)
	}
	for range 50 {
		if used := step(.8); used > .3*1.1 || used < .3*.8 {
			t.Fatalf("it keeps the memory busy for %.2f of the time, and may for 0.30", used)
		}
	}
	for range 20 {
		step(.1)
	}
	if got := p.limit(at, q); got != .9 || len(p) != 0 {
		t.Errorf("the limit is %.2f when it needs little, want 0.90 again", got)
	}
	q.Bandwidth = 1
	p[at] = .1
	p.look(at, q, 1, 1)
	fixture.Equal(t, p.limit(at, q), .9, "a tenant without a limit of bandwidth is still held")
	p.look(place{"idle", "GPU-0"}, policy.Quota{Limit: 1, Bandwidth: .3}, .5, 0)
	fixture.Equal(t, len(p), 0, "a tenant that used no GPU time is held to none")
}
