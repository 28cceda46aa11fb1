// Package escalation decides what is done about workloads that violate their
// quota: one level up for each violation that is confirmed, one down for each
// time that is clean. It is pure.
package escalation

import (
	"cmp"
	"fmt"
	"gpusteward/enforcer/audit"
	"gpusteward/enforcer/policy"
	"math/bits"
	"slices"
	"sync"
	"time"
)

// What became of a step, as Step.Result has it.
const (
	Done     = "done"
	Shadowed = "shadow" // it was only said
	Braked   = "braked" // there were too many actions on this host
	Missed   = "missed" // whom it was meant for was not there any more
	Failed   = "failed" // there was no way
)

// Bounds of the escalation.
const (
	maxStanding  = 1024
	maxEvidence  = 16               // violations in a step
	longestAudit = 10 * time.Second // that one audit counts for: a host may have slept
	forgetAfter  = time.Hour
	slack        = 10 * time.Second // that processes may take to end after SIGKILL
	retryAfter   = 10 * time.Second // until what failed is tried again, at the earliest
)

// A Status is what an audit saw of a subject.
type Status struct {
	Known bool     // enough to tell whether it keeps to its quota
	GPUs  []string // UUIDs of those that it is on
}

// Findings are what one audit found, and the policy that they are judged by.
type Findings struct {
	Violations []audit.Violation
	Seen       map[audit.Subject]Status
	Partial    bool                             // there is a GPU of which nothing is known: who was not seen may be there
	Excused    map[string]bool                  // UUIDs of GPUs with a hardware fault in the last minute: who is there is not judged
	Doubted    func(tenant string) bool         // the broker may be at fault for what was found of it: nobody of it climbs beyond Warn; nil: none is
	Steps      func(tenant string) policy.Steps // zero for one that the policy does not have
	Actions    int                              // most that are done on this host in ten minutes
}

// An Escalation decides what is done about whom. A violation in Confirm of the
// last Of audits brings a subject one level up, and the count begins anew. Hold
// without one brings it one level down, from Terminate to the ground. An audit
// that does not know is neither. The zero value is one that follows nobody; it
// is safe for concurrent use.
//
// It does nothing itself. Of each step whose Result Judge leaves empty, the
// caller does what it says and hands it to Settle.
type Escalation struct {
	mu    sync.Mutex
	last  time.Time     // of Judge
	clock time.Duration // that audits have covered: never goes back, and does not leap
	on    map[audit.Subject]*standing
	brake brake
}

// verdict is what an audit means for a subject.
type verdict int

const (
	unknown verdict = iota
	clean
	bad
)

// Judge takes the findings of an audit, which comes once a second, and returns
// who moves. What is beyond Warn in shadow, or held back by the brake, comes
// with its Result. now may go back: no time has passed then.
func (l *Escalation) Judge(now time.Time, audit Findings) []Step {
	l.mu.Lock()
	defer l.mu.Unlock()
	passed := time.Duration(0)
	if !l.last.IsZero() {
		passed = min(max(now.Sub(l.last), 0), longestAudit)
	}
	l.last = now
	l.clock += passed
	found := audit.found()
	l.admit(found)

	var moves []Step
	held := 0
	for _, s := range l.order() {
		st := l.on[s]
		m := move{Step: Step{Subject: s, Time: now, From: st.level}, steps: audit.Steps(s.Tenant), found: found[s], actions: audit.Actions}
		m.doubted = audit.Doubted != nil && audit.Doubted(s.Tenant)
		if l.judge(st, &m, audit.verdict(s, found), passed) {
			moves = append(moves, m.Step)
		}
		if st.held {
			held++
		}
		if st.level == policy.Observe && (st.clean >= forgetAfter || m.steps.Of == 0) { // or the policy has not its tenant any more
			delete(l.on, s)
		}
	}
	l.brake.tell(now, held)
	return moves
}

// found returns the violations that count, by subject. A subject that has only
// others is there with none.
func (f Findings) found() map[audit.Subject][]audit.Violation {
	all := map[audit.Subject][]audit.Violation{}
	for _, v := range f.Violations {
		if v.Tenant == "" || v.Tenant == policy.DefaultTenant {
			continue // is not governed
		}
		list := all[v.Subject]
		if !f.Excused[v.GPU] && len(list) < maxEvidence {
			list = append(list, v)
		}
		all[v.Subject] = list
	}
	return all
}

func (f Findings) verdict(s audit.Subject, found map[audit.Subject][]audit.Violation) verdict {
	status, seen := f.Seen[s]
	list, accused := found[s]
	switch {
	case len(list) > 0:
		return bad // whatever else is not known
	case seen && !status.Known:
		return unknown
	case accused, !seen && f.Partial, slices.ContainsFunc(status.GPUs, func(gpu string) bool { return f.Excused[gpu] }):
		return unknown
	}
	return clean // and who is gone does no harm
}

// A move is a step in the making.
type move struct {
	Step
	steps   policy.Steps
	found   []audit.Violation
	actions int
	doubted bool
}

// judge moves a subject and reports whether it did, or would have.
func (l *Escalation) judge(st *standing, m *move, v verdict, passed time.Duration) bool {
	if st.level <= policy.Warn {
		st.shadow = m.steps.Shadow
	}
	of, confirm := min(max(m.steps.Of, 1), 64), max(m.steps.Confirm, 1)
	if v == bad && st.level == policy.Pause && m.steps.Mode == policy.Pause && !st.shadow {
		v = clean // who stands still can neither mend it nor do worse: it goes on after Hold, and is paused again if it must be
	}
	if v == bad && m.doubted && st.level >= policy.Warn {
		v = unknown
	}
	switch v {
	case bad:
		st.window, st.clean = st.window<<1|1, 0
	case clean:
		st.window, st.clean = st.window<<1, st.clean+passed
	}
	count := bits.OnesCount64(st.window << (64 - of))
	if count < confirm {
		st.held = false
	}
	switch lost := st.level > policy.Warn && st.shadow != m.steps.Shadow; {
	case st.level > m.steps.Mode:
		m.Why = fmt.Sprintf("the policy's mode is %s now", m.steps.Mode)
		return l.fall(st, m, m.steps.Mode)
	case lost: // nobody asked for an action yet, or for no more of them
		m.Why = "shadow mode was turned on or off: it climbs anew from here"
		return l.fall(st, m, policy.Warn)
	case v == bad && count >= confirm && l.clock >= st.retry:
		m.Why = fmt.Sprintf("%d of %d audits found a violation: %s", count, of, m.found[0].Text)
		return l.climb(st, m)
	case v == clean && st.clean >= m.steps.Hold && st.level == policy.Terminate: // those that it was about are gone
		m.Why = fmt.Sprintf("no violation for %v since it was terminated", m.steps.Hold)
		return l.fall(st, m, policy.Observe)
	case v == clean && st.clean >= m.steps.Hold && st.level > policy.Observe:
		m.Why = fmt.Sprintf("no violation for %v", m.steps.Hold)
		return l.fall(st, m, st.level-1)
	}
	return false
}

// climb brings a subject one level up, or says why it does not.
func (l *Escalation) climb(st *standing, m *move) bool {
	m.To = min(st.level+1, policy.Terminate)
	if st.level == policy.Terminate {
		// Something of it is there, or there again, and goes on: it is for as
		// long as it takes to end that it is left alone.
		if m.steps.Shadow || l.clock-st.entered < m.steps.Grace+slack {
			return false
		}
	} else if m.To > m.steps.Mode {
		return false
	}
	m.Evidence = m.found
	if m.To > policy.Warn {
		switch {
		case m.steps.Shadow:
			m.Result = Shadowed
		case !l.brake.free(l.clock, m.actions):
			if st.held { // was said
				return false
			}
			st.held, m.Result = true, Braked
			m.Detail = fmt.Sprintf("there were %d actions on this host in %v", m.actions, brakeWindow)
			st.count(m.Step)
			return true
		default:
			l.brake.use(l.clock, m.Time)
		}
	}
	l.enter(st, m)
	return true
}

// fall brings a subject down. That is never braked.
func (l *Escalation) fall(st *standing, m *move, to policy.Level) bool {
	m.To = to
	if st.shadow && m.From > policy.Warn {
		m.Result = Shadowed
	}
	l.enter(st, m)
	return true
}

// enter has a subject stand where the move leads.
func (l *Escalation) enter(st *standing, m *move) {
	st.level, st.since, st.entered, st.shadow = m.To, m.Time, l.clock, m.steps.Shadow
	st.window, st.held, st.clean = 0, false, 0
	if m.Result != "" {
		st.count(m.Step)
	}
}

// Settle takes a step of Judge's whose Result was empty, with what became of
// it. A level up that failed, or missed, is not entered. One down is: whoever
// undoes an action goes on until it is undone.
func (l *Escalation) Settle(s Step) {
	l.mu.Lock()
	defer l.mu.Unlock()
	st := l.on[s.Subject]
	if st == nil || s.Result == "" || s.Result == Shadowed || s.Result == Braked {
		return // gone meanwhile, or counted when it was judged
	}
	st.count(s)
	if s.To < s.From || s.Result == Done {
		return
	}
	st.level, st.window, st.retry = s.From, 0, l.clock+retryAfter
	if s.To > policy.Warn {
		l.brake.refund()
	}
}

// Brake returns since when the brake holds actions back, and of how many
// subjects; zero while it does not. One time is one episode.
func (l *Escalation) Brake() (since time.Time, held int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.brake.since, l.brake.held
}

// order returns the subjects as they are judged: who the brake holds back
// first, for what it leaves is theirs, and of them who stands longest.
func (l *Escalation) order() []audit.Subject {
	all := make([]audit.Subject, 0, len(l.on))
	for s := range l.on {
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b audit.Subject) int {
		x, y := l.on[a], l.on[b]
		switch {
		case x.held && !y.held:
			return -1
		case y.held && !x.held:
			return 1
		case x.held:
			return cmp.Or(cmp.Compare(x.entered, y.entered), audit.Compare(a, b))
		}
		return audit.Compare(a, b)
	})
	return all
}
