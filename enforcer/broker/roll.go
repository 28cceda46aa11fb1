package broker

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"gpusteward/internal/procs"
	"gpusteward/internal/wire"
)

// The roll has the sessions, and counts them for their processes and users. Its mutex
// guards all that, and those fields of sessions that say so.
type roll struct {
	*common
	doubt *doubt
	whose func(Facts) string // the user of a process

	mu       sync.Mutex
	sessions map[uint64]*session   // connected, or gone with memory that is still charged, or with something unread
	silent   map[*session]struct{} // stale and without memory
	callers  map[int]*caller
	users    map[string]*user
	last     uint64 // session's number
}

// A caller is the broker's record of a PID. The roll's mutex guards all but
// its rate.
type caller struct {
	sessions int
	calls    rate
	refused  time.Duration // when it was last refused a session for more than what it did itself; 0 never
	excused  time.Duration // when that was last the fault of other users; 0 never
}

// A user is a party (procs.Party), the unit that shares the broker: its processes share its part, whatever jobs they
// belong to. The roll's mutex guards its sessions.
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

// caller returns the record of a PID; the mutex is locked.
func (r *roll) caller(pid int) *caller {
	p := r.callers[pid]
	if p == nil {
		p = &caller{}
		r.callers[pid] = p
	}
	return p
}

// calls reports whether a process may connect again now.
func (r *roll) calls(pid int, now time.Duration) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.caller(pid).calls.take(now, r.timing.callsOfProcess)
}

// part: a user may have one in 16 of the free sessions. One who takes
// all of these, 706 of 12,000, leaves 15 times as many to others, and after
// thirty such users 1,900 are left.
const part = 16

// enter counts a session in, as long as its user has less than a part of the
// free ones; a user without any gets one. See Refused for what a refusal means.
func (r *roll) enter(s *session) *refusal {
	now, name, owner := r.clock.now(), r.whose(s.facts), r.options.Owner(s.facts)
	r.mu.Lock()
	defer r.mu.Unlock()
	p, u := r.caller(s.facts.PID), r.users[name]
	if u == nil {
		u = &user{name: name}
		r.users[name] = u
	}
	switch {
	case r.over():
		return refuse(wire.CodeState, errors.New("the broker is shutting down"))
	case p.sessions >= r.options.MaxPerPID:
		return refuse(wire.CodeLimit, fmt.Errorf("the process has %d sessions, including those with "+
			"unread data", p.sessions))
	case !u.calls.take(now, r.timing.callsOfUser):
		p.refused = now
		return refuse(wire.CodeLimit, fmt.Errorf("the processes of its user connect more than %d times a second",
			r.timing.callsOfUser))
	case !r.capacity(u):
		if p.refused = now; r.crowded(u) {
			p.excused = now
		}
		if free := r.options.MaxSessions - len(r.sessions); free > 0 {
			return refuse(wire.CodeLimit, fmt.Errorf("its user has %d sessions, and only %d are left for all others",
				u.sessions, free))
		}
		r.doubt.starve(fmt.Errorf("there are %d sessions", len(r.sessions)))
		return refuse(wire.CodeLimit, fmt.Errorf("the broker has %d sessions", len(r.sessions)))
	}
	r.last++
	s.id, s.caller, s.owner, s.user = r.last, p, owner, u
	r.sessions[s.id] = s
	p.sessions++
	u.sessions++
	return nil
}

// mayHave counts a page that a session is about to get. Its process may keep the page for as long as it lives, on the
// broker's account, and the kernel does not tell whether it does: so a user gets only so many in the long run.
func (r *roll) mayHave(s *session) *refusal {
	now := r.clock.now()
	if s.user.pages.takeOf(now, r.timing.pages, r.timing.recovers()) {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	s.caller.refused = now
	return refuse(wire.CodeLimit, fmt.Errorf("its user began more than %d sessions, and may begin %d a second",
		r.timing.pagesAtOnce, r.timing.pages))
}

// recovers returns the time after which a user may begin as many sessions at once again as at first.
func (t *timing) recovers() time.Duration {
	return time.Duration(t.pagesAtOnce) * time.Second / time.Duration(t.pages)
}

// crowded reports whether others are the reason that a user without capacity
// has none: they have half of all sessions or more. Else that one has at
// least half of what a user could have alone, 353 of 12,000. The mutex is
// locked.
func (r *roll) crowded(u *user) bool {
	return 2*(len(r.sessions)-u.sessions) >= r.options.MaxSessions
}

// capacity reports whether a user may have one more session. Silent sessions
// without memory make room: nothing is lost with them. The mutex is
// locked.
func (r *roll) capacity(u *user) bool {
	may := func() bool { return part*u.sessions < r.options.MaxSessions-len(r.sessions) }
	for s := range r.silent {
		if may() {
			break
		}
		delete(r.silent, s)
		s.moved = true // memory that it claims meanwhile is not charged
		s.hangUp()
		if s.unread() == 0 { // else it counts until that is read
			r.uncount(s)
		}
	}
	return may()
}

// uncount removes a session from the counts. The mutex is locked.
func (r *roll) uncount(s *session) {
	if r.sessions[s.id] != s {
		return
	}
	delete(r.sessions, s.id)
	s.caller.sessions--
	s.user.sessions--
}

// sweep forgets processes and users with nothing left to remember.
func (r *roll) sweep(now time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for pid, p := range r.callers {
		if p.sessions == 0 && p.calls.idle(now) && !r.lately(p.refused, now) {
			delete(r.callers, pid)
		}
	}
	for name, u := range r.users {
		if u.sessions == 0 && u.calls.idle(now) && u.pages.idle(now-r.timing.recovers()) {
			delete(r.users, name)
		}
	}
}

// begun returns the sessions with a page.
func (r *roll) begun() []*session {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make([]*session, 0, len(r.sessions))
	for _, s := range r.sessions {
		if at := state(s.state.Load()); at >= authenticated && at < closing {
			all = append(all, s)
		}
	}
	return all
}

// refused is Broker.Refused, unless the broker starved.
func (r *roll) refused(pid int, now time.Duration) (refused, excused bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p := r.callers[pid]; p != nil {
		refused, excused = r.lately(p.refused, now), r.lately(p.excused, now)
	}
	return refused, excused
}
