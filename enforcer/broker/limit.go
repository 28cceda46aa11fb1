package broker

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"gpusteward/internal/procs"
	"gpusteward/internal/wire"
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

// A caller is the broker's record of a PID. The broker's mutex guards all but
// its rate.
type caller struct {
	sessions int
	calls    rate
	refused  time.Duration // when it was last refused a session for more than what it did itself; 0 never
	excused  time.Duration // when that was last the fault of other users; 0 never
}

// A user is a party (procs.Party), the unit that shares the broker: its processes share its part, whatever jobs they
// belong to. The broker's mutex guards its sessions.
type user struct {
	name        string
	sessions    int
	calls, rate rate // connections and messages
	asks        rate // for statistics
	spans       rate
	pages       rate          // that its sessions got
	last        sync.Mutex    // of the last look at a trace
	looked      uint64        // number of the latest look at one of its traces,
	owes        time.Duration // and of looks at them, more than its part by then; ShowTraces'
	settled     time.Duration
}

// whoseOf returns the user of a process.
func whoseOf(f Facts) string { return procs.Party(f.Cgroup, f.UID) }

// inNameOf returns the owner of a process by its user and cgroup.
func inNameOf(f Facts) string { return fmt.Sprintf("%d %s", f.UID, f.Cgroup) }

// caller returns the record of a PID; the broker's mutex is locked.
func (b *Broker) caller(pid int) *caller {
	p := b.callers[pid]
	if p == nil {
		p = &caller{}
		b.callers[pid] = p
	}
	return p
}

// calls reports whether a process may connect again now.
func (b *Broker) calls(pid int, now time.Duration) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.caller(pid).calls.take(now, b.timing.callsOfProcess)
}

// part: a user may have one in 16 of the free sessions. One who takes
// all of these, 706 of 12,000, leaves 15 times as many to others, and after
// thirty such users 1,900 are left.
const part = 16

// enter counts a session in, as long as its user has less than a part of the
// free ones; a user without any gets one. See Refused for what a refusal means.
func (b *Broker) enter(s *session) *refusal {
	now, name, owner := b.clock.now(), b.whose(s.facts), b.options.Owner(s.facts)
	b.mu.Lock()
	defer b.mu.Unlock()
	p, u := b.caller(s.facts.PID), b.users[name]
	if u == nil {
		u = &user{name: name}
		b.users[name] = u
	}
	switch {
	case b.over():
		return refuse(wire.CodeState, errors.New("the broker is shutting down"))
	case p.sessions >= b.options.MaxPerPID:
		return refuse(wire.CodeLimit, fmt.Errorf("the process has %d sessions, including those with "+
			"unread data", p.sessions))
	case !u.calls.take(now, b.timing.callsOfUser):
		p.refused = now
		return refuse(wire.CodeLimit, fmt.Errorf("the processes of its user connect more than %d times a second",
			b.timing.callsOfUser))
	case !b.capacity(u):
		if p.refused = now; b.crowded(u) {
			p.excused = now
		}
		if free := b.options.MaxSessions - len(b.sessions); free > 0 {
			return refuse(wire.CodeLimit, fmt.Errorf("its user has %d sessions, and only %d are left for all others",
				u.sessions, free))
		}
		b.starve(fmt.Errorf("there are %d sessions", len(b.sessions)))
		return refuse(wire.CodeLimit, fmt.Errorf("the broker has %d sessions", len(b.sessions)))
	}
	b.last++
	s.id, s.caller, s.owner, s.user = b.last, p, owner, u
	b.sessions[s.id] = s
	p.sessions++
	u.sessions++
	return nil
}

// mayHave counts a page that a session is about to get. Its process may keep the page for as long as it lives, on the
// broker's account, and the kernel does not tell whether it does: so a user gets only so many in the long run.
func (b *Broker) mayHave(s *session) *refusal {
	now := b.clock.now()
	if s.user.pages.takeOf(now, b.timing.pages, b.timing.recovers()) {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	s.caller.refused = now
	return refuse(wire.CodeLimit, fmt.Errorf("its user began more than %d sessions, and may begin %d a second",
		b.timing.pagesAtOnce, b.timing.pages))
}

// recovers returns the time after which a user may begin as many sessions at once again as at first.
func (t *timing) recovers() time.Duration {
	return time.Duration(t.pagesAtOnce) * time.Second / time.Duration(t.pages)
}

// crowded reports whether others are the reason that a user without capacity
// has none: they have half of all sessions or more. Else that one has at
// least half of what a user could have alone, 353 of 12,000. The broker's mutex is
// locked.
func (b *Broker) crowded(u *user) bool {
	return 2*(len(b.sessions)-u.sessions) >= b.options.MaxSessions
}

// capacity reports whether a user may have one more session. Silent sessions
// without memory make room: nothing is lost with them. The broker's mutex is
// locked.
func (b *Broker) capacity(u *user) bool {
	may := func() bool { return part*u.sessions < b.options.MaxSessions-len(b.sessions) }
	for s := range b.silent {
		if may() {
			break
		}
		delete(b.silent, s)
		s.moved = true // memory that it claims meanwhile is not charged
		s.hangUp()
		if s.unread() == 0 { // else it counts until that is read
			b.uncount(s)
		}
	}
	return may()
}

// uncount removes a session from the counts. The broker's mutex is locked.
func (b *Broker) uncount(s *session) {
	if b.sessions[s.id] != s {
		return
	}
	delete(b.sessions, s.id)
	s.caller.sessions--
	s.user.sessions--
}

// sweep forgets processes and users with nothing left to remember.
func (b *Broker) sweep(now time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for pid, p := range b.callers {
		if p.sessions == 0 && p.calls.idle(now) && !b.lately(p.refused, now) {
			delete(b.callers, pid)
		}
	}
	for name, u := range b.users {
		if u.sessions == 0 && u.calls.idle(now) && u.pages.idle(now-b.timing.recovers()) {
			delete(b.users, name)
		}
	}
}

// lately reports whether something happened so recently that the processes it
// may concern get the benefit of the doubt.
func (b *Broker) lately(at, now time.Duration) bool { return at != 0 && now-at < b.options.Doubt }

// Refused reports whether the limits of the broker recently refused a process a
// session for more than what it did itself, and whether that excuses it: the
// broker starved, or others had too much. What its own user had does not.
func (b *Broker) Refused(pid int) (refused, excused bool) {
	now := b.clock.now()
	if b.starves(now) {
		return true, true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if p := b.callers[pid]; p != nil {
		refused, excused = b.lately(p.refused, now), b.lately(p.excused, now)
	}
	return refused, excused
}

// Doubtful reports whether the broker's books may be wrong about anybody:
// recently it starved, or was not there.
func (b *Broker) Doubtful() bool {
	now := b.clock.now()
	return b.starves(now) || b.lately(time.Duration(b.back.Load()), now)
}

// starves reports whether the broker starved recently.
func (b *Broker) starves(now time.Duration) bool {
	return b.lately(time.Duration(b.starved.Load()), now)
}

// starve records that the broker lacked a resource to serve a process. It does
// not log each time.
func (b *Broker) starve(err error) {
	b.counters.starved.Add(1)
	now := b.clock.now()
	b.starved.Store(int64(now))
	if was := b.said.Load(); !b.lately(time.Duration(was), now) && b.said.CompareAndSwap(was, int64(now)) {
		b.log.Error("the broker cannot serve all clients: meanwhile no process counts as going around the "+
			"hook, and the enforcer only warns", "err", err)
	}
}

// want refuses a message that the broker lacks a resource to answer.
func (b *Broker) want(err error) *refusal {
	if starving(err) {
		b.starve(err)
	}
	return refuse(wire.CodeLimit, err)
}

// starving reports whether an error is a lack of descriptors or memory.
func starving(err error) bool {
	for _, e := range []error{unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.ENOBUFS, unix.ETOOMANYREFS} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// mostOf returns how many of the wanted sessions are possible: each takes two
// descriptors, and may have two in flight, of which the kernel allows as many.
func mostOf(want int) int {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil || limit.Cur > uint64(sessionDescriptors*want+otherDescriptors) {
		return want
	}
	return max((int(limit.Cur)-otherDescriptors)/sessionDescriptors, 1)
}
