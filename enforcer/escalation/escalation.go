// Package escalation decides what to do about workloads that violate their
// quota: one level up for each confirmed violation, one down for each clean
// period. It is pure.
//
// The levels are observe, warn, throttle, pause, suspend and terminate. K of the
// last N audits raise a workload by one level. Levels above warn are only
// reported in shadow mode. A brake bounds the actions on a host in ten minutes.
// A workload on a GPU with a fault of its own, or that does not answer, is
// excused. While the broker starves or was away, and for a minute after, no
// workload rises above warn; the same holds for a tenant whose limits refused
// one of its processes. A paused workload continues after the hold, because it
// cannot correct anything while it stands still. Before a workload is terminated
// it is suspended for the grace, and its owner can ask for it.
package escalation

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"
	"sync"
	"time"

	"gpusteward/enforcer/audit"
	"gpusteward/enforcer/policy"
)

// Results of a step, as in Step.Result.
const (
	Done     = "done"
	Shadowed = "shadow" // only announced
	Braked   = "braked" // too many actions on this host
	Missed   = "missed" // its target no longer existed
	Failed   = "failed" // no way worked
	// it cannot be suspended, and stays paused at this level
	Refused = "refused"
)

// Bounds of the escalation, at a tick of a second.
const (
	maxStanding  = 1024
	maxEvidence  = 16               // violations in a step
	longestAudit = 10 * time.Second // that one audit counts for at most: a host may have slept
	forgetAfter  = time.Hour
	slack        = 10 * time.Second // that processes may take to end after SIGKILL
	retryAfter   = 10 * time.Second // until the next attempt after a failure, at the earliest
)

// A Status is an audit's view of a subject.
type Status struct {
	Known bool     // the audit could tell whether it keeps to its quota
	GPUs  []string // UUIDs of its GPUs
}

// Findings are the result of one audit, and the policy to judge it by.
type Findings struct {
	Violations []audit.Violation
	Seen       map[audit.Subject]Status
	// nothing is known of some GPU: an unseen subject may be there
	Partial bool
	// UUIDs of GPUs with a hardware fault in the last minute: their subjects
	// are not judged
	Excused map[string]bool
	Steps   func(tenant string) policy.Steps // zero if the policy does not have the tenant
	Actions int                              // most actions on this host in ten minutes
	// Whom we hold back ourselves. The broker may be at fault for what is Starved: its violations do not
	// lead beyond Warn. An audit cannot see whether a subject that is Suspended would keep to its quota,
	// and one that is Returning can do nothing about what an audit sees of it.
	Holds audit.Holds
}

// An Escalation decides what to do about subjects. Violations in Confirm of the
// last Of audits bring a subject one level up, and the count restarts. Hold
// without a violation brings it one level down, from Terminate to Observe. An
// audit that does not know a subject changes neither. A suspended subject does no
// harm, and is terminated all the same after Grace, unless its owner asked for it
// (Release). The zero value is empty; it is safe for concurrent use.
//
// It takes no action itself. If Judge leaves a step's Result empty, the caller
// carries out the step and hands it to Settle.
type Escalation struct {
	Tick audit.Tick // from one audit to the next

	mu    sync.Mutex
	last  time.Time     // of Judge
	clock time.Duration // covered by audits: never goes back or leaps
	on    map[audit.Subject]*standing
	brake brake
}

// verdict is the meaning of an audit for a subject.
type verdict int

const (
	unknown verdict = iota
	clean
	bad
)

// Judge takes the findings of an audit, once a tick, and returns the steps. A
// step beyond Warn in shadow has its Result already, and so has one that the
// brake holds back. now may go back: no time has passed then.
func (l *Escalation) Judge(now time.Time, findings Findings) []Step {
	l.mu.Lock()
	defer l.mu.Unlock()
	passed := time.Duration(0)
	if !l.last.IsZero() {
		passed = min(max(now.Sub(l.last), 0), l.Tick.Of(longestAudit))
	}
	l.last = now
	l.clock += passed
	found := findings.found()
	l.admit(found)

	var moves []Step
	held := 0
	for _, s := range l.order() {
		st := l.on[s]
		m := move{Step: Step{Subject: s, Time: now, From: st.level}, steps: findings.Steps(s.Tenant), found: found[s],
			actions: findings.Actions, hold: findings.Holds.Of(s)}
		if l.judge(st, &m, findings.verdict(s, found), passed) {
			moves = append(moves, m.Step)
		}
		if st.held {
			held++
		}
		// or its tenant is no longer in the policy
		if st.level == policy.Observe && (st.clean >= l.Tick.Of(forgetAfter) || m.steps.Of == 0) {
			delete(l.on, s)
		}
	}
	l.brake.tell(now, held)
	return moves
}

// found returns the violations that count, by subject. A subject with only
// others has an empty list.
func (f Findings) found() map[audit.Subject][]audit.Violation {
	all := map[audit.Subject][]audit.Violation{}
	for _, v := range f.Violations {
		if v.Tenant == "" || v.Tenant == policy.DefaultTenant {
			continue // not governed
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
	case f.Holds.Of(s).Has(audit.Returning):
		return unknown
	case len(list) > 0:
		return bad // even if other things are unknown
	case seen && !status.Known:
		return unknown
	case accused, !seen && f.Partial, slices.ContainsFunc(status.GPUs, func(gpu string) bool { return f.Excused[gpu] }):
		return unknown
	}
	return clean // a subject that left does no harm
}

// A move is a step under construction.
type move struct {
	Step
	steps   policy.Steps
	found   []audit.Violation
	actions int
	hold    audit.Hold
}

// weigh returns what a verdict means for a subject at its level.
func (st *standing) weigh(m *move, v verdict) verdict {
	switch {
	case v != bad:
	case m.steps.Mode == st.level && (st.level == policy.Pause || st.level == policy.Suspend) && !st.shadow:
		// A subject that stands still can neither improve nor do worse: it goes on
		// after Hold, and is stopped again if necessary.
		return clean
	case m.hold.Has(audit.Starved) && st.level >= policy.Warn:
		return unknown
	}
	return v
}

// add counts a verdict, and returns how many of the last audits found a violation.
func (st *standing) add(v verdict, passed time.Duration, of int) int {
	switch v {
	case bad:
		st.window, st.clean = st.window<<1|1, 0
	case clean:
		st.window, st.clean = st.window<<1, st.clean+passed
	}
	return bits.OnesCount64(st.window << (64 - of))
}

// judge moves a subject, and reports whether it did, or would have.
func (l *Escalation) judge(st *standing, m *move, v verdict, passed time.Duration) bool {
	if st.level <= policy.Warn {
		st.shadow = m.steps.Shadow
	}
	v = st.weigh(m, v)
	// a suspended subject does no harm, so that only its time decides
	waits := m.hold.Has(audit.Suspended) && st.level == policy.Suspend && m.steps.Mode == policy.Terminate && !st.shadow
	over := waits && v != unknown && !m.hold.Has(audit.Starved) && l.clock-st.entered >= m.steps.Grace
	if waits {
		v = unknown
	}
	of, confirm := min(max(m.steps.Of, 1), 64), max(m.steps.Confirm, 1)
	count := st.add(v, passed, of)
	if count < confirm && !over {
		st.held = false
	}
	lost, calm := st.level > policy.Warn && st.shadow != m.steps.Shadow, v == clean && st.clean >= m.steps.Hold
	switch {
	case st.level > m.steps.Mode:
		m.Why = fmt.Sprintf("the policy's mode is %s now", m.steps.Mode)
		return l.fall(st, m, m.steps.Mode)
	case lost: // nobody ordered an action yet, or no further one
		m.Why = "shadow mode was turned on or off: the workload starts again at this level"
		return l.fall(st, m, policy.Warn)
	case over && l.clock >= st.retry:
		m.Why = fmt.Sprintf("nobody asked for it within %v of its suspension", m.steps.Grace)
		if len(m.found) == 0 {
			m.found = st.evidence
		}
		return l.climb(st, m)
	case v == bad && count >= confirm && l.clock >= st.retry:
		m.Why = fmt.Sprintf("%d of %d audits found a violation: %s", count, of, m.found[0].Text)
		return l.climb(st, m)
	case calm && st.level == policy.Terminate: // its processes are gone
		m.Why = fmt.Sprintf("no violation for %v since it was terminated", m.steps.Hold)
		return l.fall(st, m, policy.Observe)
	case calm && st.level > policy.Observe:
		m.Why = fmt.Sprintf("no violation for %v", m.steps.Hold)
		return l.fall(st, m, st.level-1)
	}
	return false
}

// climb brings a subject one level up, or says why not.
func (l *Escalation) climb(st *standing, m *move) bool {
	m.To = min(st.level+1, policy.Terminate)
	if st.level == policy.Terminate {
		// Processes of it are there, or there again, and run: the subject is
		// left alone for as long as they take to end.
		if m.steps.Shadow || l.clock-st.entered < m.steps.Grace+l.Tick.Of(slack) {
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
		case !l.brake.free(l.clock-l.window(), m.actions):
			if st.held { // already announced
				return false
			}
			st.held, m.Result = true, Braked
			m.Detail = fmt.Sprintf("there were %d actions on this host in %v", m.actions, l.window())
			st.count(m.Step)
			return true
		default:
			l.brake.use(l.clock, m.Time)
		}
	}
	l.enter(st, m)
	return true
}

// fall brings a subject down. The brake never prevents that.
func (l *Escalation) fall(st *standing, m *move, to policy.Level) bool {
	m.To = to
	if st.shadow && m.From > policy.Warn {
		m.Result = Shadowed
	}
	l.enter(st, m)
	return true
}

// enter puts a subject at the level of the move.
func (l *Escalation) enter(st *standing, m *move) {
	st.level, st.since, st.entered, st.shadow = m.To, m.Time, l.clock, m.steps.Shadow
	st.window, st.held, st.clean = 0, false, 0
	st.evidence = nil
	if m.To == policy.Suspend {
		st.evidence = m.Evidence
	}
	if m.Result != "" {
		st.count(m.Step)
	}
}

// Release brings a suspended subject down to Throttle, because its owner asked for
// it; false: it is not suspended by the escalation. The caller carries out the
// step and hands it to Settle.
func (l *Escalation) Release(now time.Time, s audit.Subject) (Step, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	st := l.on[s]
	if st == nil || st.level != policy.Suspend || st.shadow {
		return Step{}, false
	}
	m := move{Step: Step{Subject: s, Time: now, From: st.level, To: policy.Throttle, Why: "its owner asked for it"}}
	l.enter(st, &m)
	return m.Step, true
}

// Settle takes a step of Judge's that had no Result, with its outcome. A level
// up that failed or missed is not entered. A level down always is: the caller
// retries the undoing until it succeeds.
func (l *Escalation) Settle(s Step) {
	l.mu.Lock()
	defer l.mu.Unlock()
	st := l.on[s.Subject]
	if st == nil || s.Result == "" || s.Result == Shadowed || s.Result == Braked {
		return // gone meanwhile, or counted by Judge
	}
	st.count(s)
	switch {
	case s.To < s.From, s.Result == Done:
		return
	case s.Result == Refused:
		l.brake.refund()
		return
	}
	st.level, st.window, st.retry = s.From, 0, l.clock+l.Tick.Of(retryAfter)
	if s.To > policy.Warn {
		l.brake.refund()
	}
}

// Brake returns since when the brake holds actions back, and of how many
// subjects; zero while it does not. Each time marks one episode.
func (l *Escalation) Brake() (since time.Time, held int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.brake.since, l.brake.held
}

// order returns the subjects in the order of judgement: first those that the
// brake holds back, since free actions are theirs, and among them the longest
// at their level.
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
