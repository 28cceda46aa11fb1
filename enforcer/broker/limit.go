package broker

import (
	"sync/atomic"
	"time"
)

// A rate is a bucket of a second's messages, kept as the moment at which it
// would be full again but for a second.
type rate struct{ at atomic.Int64 }

// take takes one of perSecond, false where there is none.
func (r *rate) take(now time.Duration, perSecond int) bool {
	step := int64(time.Second) / int64(perSecond)
	for {
		old := r.at.Load()
		next := max(old, int64(now-time.Second)) + step
		if next > int64(now) {
			return false
		}
		if r.at.CompareAndSwap(old, next) {
			return true
		}
	}
}

// A user is a uid's part of the broker.
type user struct {
	sessions int // guarded by the broker's mutex
	rate     rate
}
