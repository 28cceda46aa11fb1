package swap

import (
	"sync"
	"time"

	"gpusteward/enforcer/broker"
)

// Bounds of waits.
const (
	askAgain    = 200 * time.Millisecond // after which an allocation that waits is asked for again
	grantedFor  = 2 * time.Second        // for which one that was granted counts as waiting: the driver does not list it yet
	silentFor   = 15 * time.Second       // for which one counts unasked: on a busy host a program may lose the broker for seconds
	longestWait = 15 * time.Minute       // of an allocation; then it fails
	maxWaiting  = 4096                   // allocations
)

// A queue is the allocations that wait for room. Sessions of the broker fill it
// concurrently.
type queue struct {
	mu  sync.Mutex
	all map[waiter]*waiting
}

type waiter struct {
	pid int
	gpu string
}

type waiting struct {
	broker.Request
	since, asked time.Time
	granted      time.Time // zero: not since it was asked for
}

// ask has an allocation wait, and returns when it is to be asked for again; 0: it fails.
func (q *queue) ask(now time.Time, r broker.Request) time.Duration {
	q.mu.Lock()
	defer q.mu.Unlock()
	w := q.all[waiter{r.PID, r.GPU}]
	switch {
	case w == nil && len(q.all) >= maxWaiting:
		return 0
	case w == nil:
		w = &waiting{Request: r, since: now}
		q.all[waiter{r.PID, r.GPU}] = w
	case now.Sub(w.since) > longestWait:
		delete(q.all, waiter{r.PID, r.GPU})
		return 0
	}
	w.asked, w.granted, w.Tenant, w.Bytes = now, time.Time{}, r.Tenant, max(w.Bytes, r.Bytes)
	return askAgain
}

// grant notes that a process was granted memory of a GPU. If it waits for more, it asks again.
func (q *queue) grant(now time.Time, by waiter) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if w := q.all[by]; w != nil && w.granted.IsZero() {
		w.granted = now
	}
}

// requests returns the allocations that wait, and forgets those that were granted or are no
// longer asked for.
func (q *queue) requests(now time.Time) (all []waiting) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for key, w := range q.all {
		if now.Sub(w.asked) > silentFor || !w.granted.IsZero() && now.Sub(w.granted) > grantedFor {
			delete(q.all, key)
			continue
		}
		all = append(all, *w)
	}
	return all
}
