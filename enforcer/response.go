package enforcer

import (
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"time"

	"gpusteward/enforcer/action"
	"gpusteward/enforcer/audit"
	"gpusteward/enforcer/escalation"
	"gpusteward/enforcer/policy"
	"gpusteward/enforcer/suspend"
	"gpusteward/enforcer/swap"
	"gpusteward/internal/quota"
	"gpusteward/internal/span"
)

// response owns the levels of workloads, and what keeps them there: the actor, and the file that lets
// the next enforcer find them. Run's goroutine owns it.
type response struct {
	*Options
	log    *slog.Logger
	terms  *inForce
	swap   *swap.Swapper
	notice func(text string, pids ...int)

	escalation escalation.Escalation
	actor      action.Actor
	state      stateFile
	groups     groups
	members    map[audit.Subject]string // of the process groups that were paused
	braked     time.Time                // episode that was logged
}

// restore takes over the state of an earlier enforcer. A workload that it
// paused and that should not be paused goes on.
func (r *response) restore() {
	s, found := r.state.read()
	if !found {
		return
	}
	r.escalation.Restore(time.Now(), s.Escalation)
	r.actor.Restore(s.Paused)
	r.swap.Restore(time.Now(), s.Suspended)
	for _, p := range s.Paused {
		subject := audit.Subject{Tenant: p.Tenant, Workload: p.Workload}
		if !r.stopped(subject) || r.terms.Load().steps(p.Tenant).Mode < policy.Pause {
			_, detail := r.actor.Resume(action.ProcessGroup{Subject: subject})
			r.log.Info("a paused workload was resumed", "tenant", p.Tenant, "workload", p.Workload, "detail", detail)
		}
	}
}

// saved returns the state that outlives a restart.
func (r *response) saved() saved {
	return saved{r.escalation.Save(), r.actor.Paused(), r.swap.Suspender.Records()}
}

// keep writes the state before the actor pauses a workload: it does not pause
// what it could not remember.
func (r *response) keep(paused []action.Paused) error {
	s := r.saved()
	s.Paused = paused
	return r.state.write(s)
}

// keepSuspended does so before a workload is suspended or resumed.
func (r *response) keepSuspended(all []suspend.Record) error {
	s := r.saved()
	s.Suspended = all
	return r.state.write(s)
}

// judge moves workloads on the escalation, and carries out the steps.
func (r *response) judge(now time.Time, b audit.Books, found audit.Audited, holds audit.Holds) {
	t := r.terms.Load()
	findings := escalation.Findings{Violations: found.Violations, Seen: map[audit.Subject]escalation.Status{},
		Partial: found.Partial,
		Excused: map[string]bool{}, Actions: t.Actions(), Steps: t.steps, Holds: found.Holds(holds)}
	for s, known := range found.Known {
		status := escalation.Status{Known: known}
		if c := r.groups.all[s]; c != nil {
			status.GPUs = c.gpus
		}
		findings.Seen[s] = status
	}
	for _, h := range b.DeviceProcesses {
		if _, asked := findings.Excused[h.UUID]; !asked {
			findings.Excused[h.UUID] = r.Hardware != nil && r.Hardware(h.UUID, r.Tick.Of(excuse))
		}
	}
	for _, s := range r.escalation.Judge(now, findings) {
		r.carryOut(now, s)
	}
	r.settle()
	for _, end := range r.actor.Continue(now) {
		r.tell(escalation.Step{Subject: end.Subject, Time: now, From: policy.Terminate, To: policy.Terminate,
			Why: "its processes were told to end", Result: end.Result, Detail: end.Detail})
	}
	r.state.save(r.saved())
}

// carryOut takes a step that has no result yet, and tells its result.
func (r *response) carryOut(now time.Time, s escalation.Step) {
	a := r.Broker.Spans.Begin("enforcer.step", span.Parent{})
	if s.Result == "" {
		r.take(now, &s)
		r.escalation.Settle(s)
	}
	failed := s.Result
	if failed == escalation.Done || failed == escalation.Shadowed {
		failed = ""
	}
	a.End(failed, "tenant", s.Tenant, "workload", s.Workload, "from", s.From.String(), "to", s.To.String(),
		"result", s.Result)
	r.tell(s)
}

// take carries out a step.
func (r *response) take(now time.Time, s *escalation.Step) {
	c := action.ProcessGroup{Subject: s.Subject, Hold: func(on bool) error { return r.terms.hold(s.Subject, on) }}
	if there := r.groups.all[s.Subject]; there != nil {
		c = there.ProcessGroup
	}
	steps := r.terms.Load().steps(s.Tenant)
	s.Result = escalation.Done
	switch {
	case s.To < s.From:
		r.undo(now, s, c)
	case s.To == policy.Throttle:
		s.Detail = fmt.Sprintf("the tenant has %.0f %% of its weight and limit", 100*steps.Throttle)
		if len(c.Hooked) == 0 {
			s.Detail += "; none of the workload's processes has a session, so this has no effect on it"
		}
	case s.To == policy.Pause:
		s.Result, s.Detail = r.actor.Pause(c, steps.Pause)
	case s.To == policy.Suspend:
		s.Result, s.Detail = r.suspendGroup(now, c, s.Why)
	case s.To == policy.Terminate:
		s.Result, s.Detail = r.actor.Terminate(now, c, steps.Grace)
	}
	r.notify(*s, c)
}

// undo takes back what the levels above s.To did.
func (r *response) undo(now time.Time, s *escalation.Step, c action.ProcessGroup) {
	if s.To < policy.Pause && s.From >= policy.Pause {
		c.Hold = func(on bool) error { return r.terms.hold(s.Subject, on) } // even if other workloads came meanwhile
		s.Result, s.Detail = r.actor.Resume(c)
	}
	if one, away := r.swap.Suspender.Record(s.Subject); away && !one.Yields && s.To < policy.Suspend && s.From >= policy.Suspend {
		_ = r.swap.Suspender.Resume(now, s.Subject, s.Why) // its record is there
		s.Detail = strings.TrimPrefix(s.Detail+"; its GPU memory comes back", "; ")
	}
}

// suspendGroup begins to suspend a paused workload. Its processes go on until
// the driver stops them, since the driver needs their help. If it cannot be
// suspended, it stays paused.
func (r *response) suspendGroup(now time.Time, c action.ProcessGroup, why string) (result, detail string) {
	bytes, found, err := r.swap.Begin(now, c.Subject, why)
	switch {
	case err != nil:
		return escalation.Refused, fmt.Sprintf("it stays paused, because it cannot be suspended: %v", err)
	case !found:
		return escalation.Missed, "it has no processes"
	}
	detail = fmt.Sprintf("%s of GPU memory move to the host", quota.Size(bytes))
	c.Hold = func(on bool) error { return r.terms.hold(c.Subject, on) } // as in undo
	if result, text := r.actor.Resume(c); result != escalation.Done {   // this is tried again
		detail += "; " + text
	}
	return escalation.Done, detail
}

// release lets a workload continue that the escalation suspended; false: it did not. It is throttled
// from now on.
func (r *response) release(now time.Time, of audit.Subject) bool {
	step, escalated := r.escalation.Release(now, of)
	if escalated {
		r.carryOut(now, step)
		r.settle()
		r.state.save(r.saved())
	}
	return escalated
}

// stopped reports whether a workload must stand still by the pause: one that is
// suspended does so anyway.
func (r *response) stopped(s audit.Subject) bool {
	level, shadow := r.escalation.Level(s)
	_, away := r.swap.Suspender.Record(s)
	return !shadow && !away && (level == policy.Pause || level == policy.Suspend)
}

// notify writes a line to the logs of the processes concerned.
func (r *response) notify(s escalation.Step, c action.ProcessGroup) {
	var pids []int
	for _, t := range c.Hooked {
		pids = append(pids, t.PID)
	}
	if len(pids) > 0 {
		r.notice(fmt.Sprintf("the quota of tenant %s: %s, now at %s: %s", s.Tenant, s.From, s.To, s.Why),
			pids...)
	}
}

// settle applies the levels in force: throttled tenants get less, and processes
// that joined a paused workload are paused too.
func (r *response) settle() {
	throttled := map[string]float64{}
	rows, _ := r.escalation.Stats()
	for _, row := range rows {
		s := audit.Subject{Tenant: row.Tenant, Workload: row.Workload}
		level, shadow := r.escalation.Level(s)
		if shadow || level < policy.Throttle {
			delete(r.members, s)
			continue
		}
		throttled[s.Tenant] = r.terms.Load().steps(s.Tenant).Throttle
		c := r.groups.all[s]
		if c == nil || !r.stopped(s) {
			continue
		}
		if members := c.members(); r.members[s] != members {
			r.members[s] = members
			if result, detail := r.actor.Pause(c.ProcessGroup, r.terms.Load().steps(s.Tenant).Pause); result == escalation.Failed {
				r.log.Warn("new processes of a paused workload are not paused", "tenant", s.Tenant,
					"workload", s.Workload, "detail", detail)
			}
		}
	}
	maps.DeleteFunc(r.members, func(s audit.Subject, _ string) bool { return !r.stopped(s) })
	r.terms.change(func(t *terms) { t.throttled = throttled })
}

// tell records a step.
func (r *response) tell(s escalation.Step) {
	if r.Record != nil {
		r.Record(s)
	}
	log := r.log.Info
	if s.To > policy.Warn && s.To >= s.From && s.Result != escalation.Shadowed {
		log = r.log.Warn
	}
	log("the escalation changed a level", "tenant", s.Tenant, "workload", s.Workload, "from", s.From.String(), "to",
		s.To.String(), "why", s.Why, "result", s.Result, "detail", s.Detail)
	if since, held := r.escalation.Brake(); !since.Equal(r.braked) {
		if r.braked = since; held > 0 {
			r.log.Warn("the brake holds the escalation back: too many actions on this host", "held", held)
		}
	}
}

// rest lets paused workloads go on before the enforcer ends. That comes first, and needs no disk: what the file
// has is undone again by the next enforcer.
func (r *response) rest() {
	r.actor.Keep = nil
	for _, p := range r.actor.Paused() {
		r.actor.Resume(action.ProcessGroup{Subject: audit.Subject{Tenant: p.Tenant, Workload: p.Workload}})
	}
	r.actor.Close()
	r.swap.Close()
	r.state.save(r.saved())
}
