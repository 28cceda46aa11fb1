package broker

import (
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// A rate is a token bucket of a second's messages, stored as the moment at
// which it would be full again, less a second.
type rate struct{ at atomic.Int64 }

// take takes one of perSecond, and returns false if there is none.
func (r *rate) take(now time.Duration, perSecond int) bool {
	return r.takeOf(now, perSecond, time.Second)
}

// takeOf takes one of a bucket that has more than a second's.
func (r *rate) takeOf(now time.Duration, perSecond int, depth time.Duration) bool {
	step := int64(time.Second) / int64(perSecond)
	for {
		old := r.at.Load()
		next := max(old, int64(now-depth)) + step
		if next > int64(now) {
			return false
		}
		if r.at.CompareAndSwap(old, next) {
			return true
		}
	}
}

// owe takes one of perSecond in any case, and returns how long the caller must
// wait to keep to the rate; callers are served in order.
func (r *rate) owe(now time.Duration, perSecond int) time.Duration {
	step := int64(time.Second) / int64(perSecond)
	for {
		old := r.at.Load()
		next := max(old, int64(now-time.Second)) + step
		if r.at.CompareAndSwap(old, next) {
			return time.Duration(max(next-int64(now), 0))
		}
	}
}

// idle reports whether nothing was taken for a second.
func (r *rate) idle(now time.Duration) bool { return r.at.Load() <= int64(now-time.Second) }

// mostOf returns how many of the wanted sessions are possible: each takes two
// descriptors, and may have two in flight, of which the kernel allows as many.
func mostOf(want int) int {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil || limit.Cur > uint64(sessionDescriptors*want+otherDescriptors) {
		return want
	}
	return max((int(limit.Cur)-otherDescriptors)/sessionDescriptors, 1)
}

// Refused reports whether the limits of the broker recently refused a process a
// session for more than what it did itself, and whether that excuses it: the
// broker starved, or others had too much. What its own user had does not.
func (b *Broker) Refused(pid int) (refused, excused bool) {
	now := b.clock.now()
	if b.doubt.starves(now) {
		return true, true
	}
	return b.roll.refused(pid, now)
}

// Doubtful reports whether the broker's books may be wrong about anybody:
// recently it starved, or was not there.
func (b *Broker) Doubtful() bool { return b.doubt.all() }
