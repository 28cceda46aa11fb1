package audit

import (
	"slices"
	"time"

	"gpusteward/collectors"
)

// A processKey identifies a process: its PID may have been another's.
type processKey struct {
	pid   int
	start uint64
}

// A hookStatus is the relation of a process to the broker.
type hookStatus int

const (
	isHooked   hookStatus = iota // it has a session
	isLapsed                     // it had one a moment ago, could not have one yet, or was refused one
	isUnhooked                   // it bypasses the hook
)

// An auditedProcess is an audit's record of a process on a GPU.
type auditedProcess struct {
	here     bool // in this audit
	seen     int  // readings of the driver that it was in
	status   hookStatus
	since    time.Time     // when it got the session that it has; zero: it always had one
	followed time.Time     // in the last audit
	gone     time.Time     // when it was first seen without the session that it had
	lapsed   time.Time     // start of the minute that spent covers; zero: it always had a session
	spent    time.Duration // time without a session

	sampled  time.Time // until when sm and busy are counted
	sm, busy float64

	seated    bool             // its session is governed on the GPU
	looks     int              // audits in which it had a session
	committed [3]uint64        // by the books in the last of them
	excess    [excesses]uint64 // bytes above them, by the last readings of the driver
	compared  int
}

// follow updates the hook status of a process. A process that loses its session
// may be about to end or to reconnect, because the broker ended or a socket
// broke. It is excused for 10 s of each minute; with more, it could evade the hook
// that way. Time in which it is suspended, or gets no session because of others, does
// not count.
func (p *auditedProcess) follow(b *Books, hooked, excused bool) {
	now, most := b.Now, b.tick.Of(lapse)
	passed := min(max(now.Sub(p.followed), 0), most/2)
	p.followed = now
	switch {
	case hooked:
		if p.status != isHooked {
			p.status, p.since = isHooked, now
		}
		return
	case excused:
		p.status, p.gone, p.lapsed, p.spent = isLapsed, now, now, 0
		return
	case p.status == isUnhooked:
		return
	case p.status == isLapsed:
		p.spent += passed
	default:
		p.gone = now
		if now.Sub(p.lapsed) >= b.tick.Of(lapseEvery) {
			p.lapsed, p.spent = now, 0
		} else { // a lapse that ends before the next audit counts too
			p.spent += passed
		}
	}
	p.status = isLapsed
	if p.spent >= most {
		p.status = isUnhooked
	}
}

// sum returns the GPU use of a process since the last audit by its status, and
// the seconds of it that were certainly after the end of its session. Use
// before the first look at its GPU is not known.
func (p *auditedProcess) sum(g *auditedGPU, h *collectors.DeviceProcess, young bool) (u used, after float64) {
	from := p.sampled
	if young {
		from = g.before
	}
	sm, busy := h.SM-p.sm, h.Busy-p.busy
	p.sm, p.busy = h.SM, h.Busy
	if h.Sampled.IsZero() {
		return used{}, 0
	}
	p.sampled = h.Sampled
	if from.IsZero() {
		return used{}, 0
	}
	most := max(h.Sampled.Sub(from).Seconds(), 0) // of a GPU nobody has more than the whole
	u.busy = min(max(busy, 0), most)
	switch sm = min(max(sm, 0), most); {
	case p.status == isUnhooked:
		u.unhooked = sm
	case p.status == isHooked && !p.since.After(from):
		u.hooked = sm
	default:
		u.lapsed = sm
		if p.status == isLapsed {
			after = max(sm-max(p.gone.Sub(from).Seconds(), 0), 0)
		}
	}
	return u, after
}

// remember records the booked bytes of a process now.
func (p *auditedProcess) remember(committed uint64, seated bool) {
	p.seated = seated
	if p.looks == 0 {
		p.committed = [3]uint64{committed, committed, committed}
	}
	p.committed[p.looks%len(p.committed)] = committed
	p.looks++
}

// books returns the booked bytes of a process: now, and at most since the
// driver was asked, a little earlier.
func (p *auditedProcess) books() (now, most uint64) {
	now = p.committed[(p.looks+len(p.committed)-1)%len(p.committed)]
	return now, max(p.committed[0], p.committed[1], p.committed[2])
}

// above returns the bytes by which a process exceeded the books in each of the
// last readings. One reading is not enough: memory changes between the driver's
// answer and the books.
func (p *auditedProcess) above(h *collectors.DeviceProcess, fresh bool) (bytes uint64) {
	if fresh {
		_, most := p.books()
		over := uint64(0)
		if h.Memory > most+contextBytes {
			over = h.Memory - most - contextBytes
		}
		p.excess[p.compared%excesses] = over
		p.compared++
	}
	if p.compared < excesses {
		return 0
	}
	return slices.Min(p.excess[:])
}
