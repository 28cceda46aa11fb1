package collectors

import (
	"testing"
	"time"

	"gpusteward/internal/fixture"
)

func TestTicksFollowTheWallClockInMonotonicTime(t *testing.T) {
	t.Parallel()
	for _, interval := range []time.Duration{100 * time.Millisecond, time.Second, 10 * time.Second} {
		now := time.Now()
		next := nextRead(now, interval)
		fixture.Contains(t, next.String(), " m=", "a clock that is set between two reads delays a reader by as much")
		if wait := next.Sub(now); !next.Truncate(interval).Equal(next) || wait < interval/2 || wait > interval*3/2 {
			t.Errorf("the next read of every %v after %v is %v", interval, now, next)
		}
	}
}
