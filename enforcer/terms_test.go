package enforcer

import (
	"testing"
	"time"

	"gpusteward/enforcer/policy"
	"gpusteward/internal/fixture"
)

// The kernels of a tenant keep the memory busy for 80 % of their time on the GPU. The pacer brings the tenant within
// its part of the bandwidth. The tenant gets its limit back when it needs less.
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
	got := p.limit(at, q)
	fixture.If(t, got != .9 || len(p) != 0, "the limit is %.2f when it needs little, want 0.90 again", got)
	q.Bandwidth = 1
	p[at] = .1
	p.look(at, q, 1, 1)
	fixture.Equal(t, p.limit(at, q), .9, "a tenant without a limit of bandwidth is still held")
	p.look(place{"idle", "GPU-0"}, policy.Quota{Limit: 1, Bandwidth: .3}, .5, 0)
	fixture.Equal(t, len(p), 0, "a tenant that used no GPU time is held to none")
}

// TestWhatWasGivenBackIsNotLost looks at a GPU of 10 bytes of which a tenant gave 6 back between
// two looks that are far apart. The reading of the memory is from before that.
func TestWhatWasGivenBackIsNotLost(t *testing.T) {
	t.Parallel()
	all, start := given{}, time.Unix(1e9, 0)
	for _, look := range []struct {
		after              time.Duration
		used, free, expect uint64
	}{{0, 8, 2, 10}, {3 * time.Second, 2, 2, 10}, {4 * time.Second, 1, 2, 10}, {5*time.Second + 999*time.Millisecond, 1, 2, 10},
		{6 * time.Second, 1, 2, 3}, {7 * time.Second, 1, 9, 10}} {
		got := all.settle(start.Add(look.after), "GPU-0", look.used, look.used+look.free)
		fixture.Equal(t, got, look.expect, "capacity after %v", look.after)
	}
}
