package audit

import "time"

// The intervals of the driver's samples, at a tick of a second. The driver is asked every 5 s,
// or each second while a process is young.
const (
	readingEvery = 4 * time.Second  // least from one reading to the next
	windowLeast  = 10 * time.Second // the shortest window
	windowMost   = 30 * time.Second // a longer one has a hole
)

// used is the driver's count of GPU seconds, a sum that only grows.
type used struct {
	hooked   float64 // SM time of processes with a session
	lapsed   float64 // of processes that lost or got a session a moment ago
	unhooked float64 // of processes without a session
	busy     float64 // memory-busy time of all of them
}

func (u used) sm() float64 { return u.hooked + u.lapsed + u.unhooked }

func (u used) minus(o used) used {
	return used{u.hooked - o.hooked, u.lapsed - o.lapsed, u.unhooked - o.unhooked, u.busy - o.busy}
}

func (u *used) add(o used) {
	u.hooked += o.hooked
	u.lapsed += o.lapsed
	u.unhooked += o.unhooked
	u.busy += o.busy
}

// A bound is the range of one of the broker's counters at the time of the
// driver's sample: the broker is asked at other moments.
type bound struct{ least, most float64 }

// A reading is the count up to one of the driver's samples.
type reading struct {
	at time.Time
	used
	charged, together bound
	others            int // processes of others that used the GPU since the reading before
}

// readings are the latest readings of a tenant or workload, oldest first.
type readings []reading

// add appends a reading, and drops those that no window reaches.
func (r readings) add(tick Tick, next reading) readings {
	old := 0
	for old < len(r) && next.at.Sub(r[old].at) > tick.Of(windowMost) {
		old++
	}
	if old > 0 {
		r = r[:copy(r, r[old:])]
	}
	return append(r, next)
}

// window returns the ends of the shortest sufficient window that ends at the
// last reading.
func (r readings) window(tick Tick) (from, to reading, ok bool) {
	for i := len(r) - 2; i >= 0; i-- {
		if r[len(r)-1].at.Sub(r[i].at) >= tick.Of(windowLeast) {
			return r[i], r[len(r)-1], true
		}
	}
	return reading{}, reading{}, false
}

// since returns the use from a moment to the last reading. A workload that came
// later counts from zero.
func (r readings) since(from time.Time) used {
	if len(r) == 0 {
		return used{}
	}
	for i := len(r) - 1; i >= 0; i-- {
		if !r[i].at.After(from) {
			return r[len(r)-1].minus(r[i].used)
		}
	}
	return r[len(r)-1].used
}

// others returns the number of others' processes that used the GPU since a
// moment, at least one.
func (r readings) others(from time.Time) int {
	most := 1
	for _, one := range r {
		if one.at.After(from) {
			most = max(most, one.others)
		}
	}
	return most
}

// A look is a state of the broker's books, seconds.
type look struct {
	at                time.Time
	charged, together float64
}

// looks are the latest looks of a tenant on a GPU, oldest first.
type looks []look

// mostLooks at one a tick reach further than a window and the driver's delay.
const mostLooks = 16

// add appends a look. Counters that went back have restarted.
func (l looks) add(next look) looks {
	if n := len(l); n > 0 && (next.charged < l[n-1].charged || next.together < l[n-1].together ||
		!next.at.After(l[n-1].at)) {
		l = l[:0]
	}
	if len(l) == mostLooks {
		l = l[:copy(l, l[1:])]
	}
	return append(l, next)
}

// at returns the range of the counters at a moment: they never go back, and
// gain at most a second per second. A moment before the first look is unknown.
func (l looks) at(at time.Time) (charged, together bound, ok bool) {
	for i := len(l) - 1; i >= 0; i-- {
		if at.Before(l[i].at) {
			continue
		}
		past := at.Sub(l[i].at).Seconds()
		charged = bound{l[i].charged, l[i].charged + past}
		together = bound{l[i].together, l[i].together + past}
		if i+1 < len(l) {
			left := l[i+1].at.Sub(at).Seconds()
			charged = charged.before(l[i+1].charged, left)
			together = together.before(l[i+1].together, left)
		}
		return charged, together, true
	}
	return bound{}, bound{}, false
}

// before narrows b by the counter's value a number of seconds later. A lump
// charge may have been on either side.
func (b bound) before(then, left float64) bound {
	least, most := max(b.least, then-left), min(b.most, then)
	return bound{min(least, most), max(least, most)}
}

// ratio returns the charged part of the time over the last window of looks.
func (l looks) ratio(tick Tick) (ratio float64, ok bool) {
	for i := len(l) - 2; i >= 0; i-- {
		if long := l[len(l)-1].at.Sub(l[i].at); long >= tick.Of(windowLeast) {
			return (l[len(l)-1].charged - l[i].charged) / long.Seconds(), true
		}
	}
	return 0, false
}
