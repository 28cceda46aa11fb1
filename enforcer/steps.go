package enforcer

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"gpusteward/enforcer/action"
	"gpusteward/enforcer/audit"
	"gpusteward/enforcer/escalation"
	"gpusteward/enforcer/policy"
	"gpusteward/internal/quota"
	"gpusteward/internal/span"
	"gpusteward/internal/wire"
)

// judge moves workloads on the escalation, and carries out the steps.
func (e *Enforcer) judge(now time.Time, b audit.Books, found audit.Audited) {
	t := e.terms.Load()
	findings := escalation.Findings{Violations: found.Violations, Seen: map[audit.Subject]escalation.Status{},
		Partial: found.Partial,
		Excused: map[string]bool{}, Actions: t.Actions(), Steps: t.steps, Holds: found.Holds(e.heldBack())}
	for s, known := range found.Known {
		status := escalation.Status{Known: known}
		if c := e.groups[s]; c != nil {
			status.GPUs = c.gpus
		}
		findings.Seen[s] = status
	}
	for _, h := range b.DeviceProcesses {
		if _, asked := findings.Excused[h.UUID]; !asked {
			findings.Excused[h.UUID] = e.Hardware != nil && e.Hardware(h.UUID, e.Tick.Of(excuse))
		}
	}
	for _, s := range e.escalation.Judge(now, findings) {
		e.carryOut(now, s)
	}
	e.settle()
	for _, end := range e.actor.Continue(now) {
		e.tell(escalation.Step{Subject: end.Subject, Time: now, From: policy.Terminate, To: policy.Terminate,
			Why: "its processes were told to end", Result: end.Result, Detail: end.Detail})
	}
	e.save()
}

// carryOut takes a step that has no result yet, and tells its result.
func (e *Enforcer) carryOut(now time.Time, s escalation.Step) {
	a := e.Broker.Spans.Begin("enforcer.step", span.Parent{})
	if s.Result == "" {
		e.take(now, &s)
		e.escalation.Settle(s)
	}
	failed := s.Result
	if failed == escalation.Done || failed == escalation.Shadowed {
		failed = ""
	}
	a.End(failed, "tenant", s.Tenant, "workload", s.Workload, "from", s.From.String(), "to", s.To.String(),
		"result", s.Result)
	e.tell(s)
}

// take carries out a step.
func (e *Enforcer) take(now time.Time, s *escalation.Step) {
	c := action.ProcessGroup{Subject: s.Subject, Hold: func(on bool) error { return e.terms.hold(s.Subject, on) }}
	if there := e.groups[s.Subject]; there != nil {
		c = there.ProcessGroup
	}
	steps := e.terms.Load().steps(s.Tenant)
	s.Result = escalation.Done
	switch {
	case s.To < s.From:
		e.undo(now, s, c)
	case s.To == policy.Throttle:
		s.Detail = fmt.Sprintf("the tenant has %.0f %% of its weight and limit", 100*steps.Throttle)
		if len(c.Hooked) == 0 {
			s.Detail += "; none of the workload's processes has a session, so this has no effect on it"
		}
	case s.To == policy.Pause:
		s.Result, s.Detail = e.actor.Pause(c, steps.Pause)
	case s.To == policy.Suspend:
		s.Result, s.Detail = e.suspendGroup(now, c, s.Why)
	case s.To == policy.Terminate:
		s.Result, s.Detail = e.actor.Terminate(now, c, steps.Grace)
	}
	e.notify(*s, c)
}

// undo takes back what the levels above s.To did.
func (e *Enforcer) undo(now time.Time, s *escalation.Step, c action.ProcessGroup) {
	if s.To < policy.Pause && s.From >= policy.Pause {
		c.Hold = func(on bool) error { return e.terms.hold(s.Subject, on) } // even if other workloads came meanwhile
		s.Result, s.Detail = e.actor.Resume(c)
	}
	if r, away := e.swap.Suspender.Record(s.Subject); away && !r.Yields && s.To < policy.Suspend && s.From >= policy.Suspend {
		_ = e.swap.Suspender.Resume(now, s.Subject, s.Why) // its record is there
		s.Detail = strings.TrimPrefix(s.Detail+"; its GPU memory comes back", "; ")
	}
}

// suspendGroup begins to suspend a paused workload. Its processes go on until
// the driver stops them, since the driver needs their help. If it cannot be
// suspended, it stays paused.
func (e *Enforcer) suspendGroup(now time.Time, c action.ProcessGroup, why string) (result, detail string) {
	bytes, found, err := e.swap.Begin(now, c.Subject, why)
	switch {
	case err != nil:
		return escalation.Refused, fmt.Sprintf("it stays paused, because it cannot be suspended: %v", err)
	case !found:
		return escalation.Missed, "it has no processes"
	}
	detail = fmt.Sprintf("%s of GPU memory move to the host", quota.Size(bytes))
	c.Hold = func(on bool) error { return e.terms.hold(c.Subject, on) } // as in undo
	if result, text := e.actor.Resume(c); result != escalation.Done {   // this is tried again
		detail += "; " + text
	}
	return escalation.Done, detail
}

// release lets a workload continue that the escalation suspended; false: it did not. It is throttled
// from now on.
func (e *Enforcer) release(now time.Time, of audit.Subject) bool {
	step, escalated := e.escalation.Release(now, of)
	if escalated {
		e.carryOut(now, step)
		e.settle()
		e.save()
	}
	return escalated
}

// stopped reports whether a workload must stand still by the pause: one that is
// suspended does so anyway.
func (e *Enforcer) stopped(s audit.Subject) bool {
	level, shadow := e.escalation.Level(s)
	_, away := e.swap.Suspender.Record(s)
	return !shadow && !away && (level == policy.Pause || level == policy.Suspend)
}

// notify writes a line to the logs of the processes concerned.
func (e *Enforcer) notify(s escalation.Step, c action.ProcessGroup) {
	var pids []int
	for _, t := range c.Hooked {
		pids = append(pids, t.PID)
	}
	if len(pids) > 0 {
		e.broker.Notice(fmt.Sprintf("the quota of tenant %s: %s, now at %s: %s", s.Tenant, s.From, s.To, s.Why),
			pids...)
	}
}

// settle applies the levels in force: throttled tenants get less, and processes
// that joined a paused workload are paused too.
func (e *Enforcer) settle() {
	throttled := map[string]float64{}
	rows, _ := e.escalation.Stats()
	for _, row := range rows {
		s := audit.Subject{Tenant: row.Tenant, Workload: row.Workload}
		level, shadow := e.escalation.Level(s)
		if shadow || level < policy.Throttle {
			delete(e.pausedMembers, s)
			continue
		}
		throttled[s.Tenant] = e.terms.Load().steps(s.Tenant).Throttle
		c := e.groups[s]
		if c == nil || !e.stopped(s) {
			continue
		}
		if members := c.members(); e.pausedMembers[s] != members {
			e.pausedMembers[s] = members
			if result, detail := e.actor.Pause(c.ProcessGroup, e.terms.Load().steps(s.Tenant).Pause); result == escalation.Failed {
				e.log.Warn("new processes of a paused workload are not paused", "tenant", s.Tenant,
					"workload", s.Workload, "detail", detail)
			}
		}
	}
	maps.DeleteFunc(e.pausedMembers, func(s audit.Subject, _ string) bool { return !e.stopped(s) })
	e.terms.change(func(t *terms) { t.throttled = throttled })
}

// tell records a step.
func (e *Enforcer) tell(s escalation.Step) {
	if e.Record != nil {
		e.Record(s)
	}
	log := e.log.Info
	if s.To > policy.Warn && s.To >= s.From && s.Result != escalation.Shadowed {
		log = e.log.Warn
	}
	log("the escalation changed a level", "tenant", s.Tenant, "workload", s.Workload, "from", s.From.String(), "to",
		s.To.String(), "why", s.Why, "result", s.Result, "detail", s.Detail)
	if since, held := e.escalation.Brake(); !since.Equal(e.braked) {
		if e.braked = since; held > 0 {
			e.log.Warn("the brake holds the escalation back: too many actions on this host", "held", held)
		}
	}
}

// rest lets paused workloads go on before the enforcer ends. That comes first, and needs no disk: what the file
// has is undone again by the next enforcer.
func (e *Enforcer) rest() {
	e.actor.Keep = nil
	for _, p := range e.actor.Paused() {
		e.actor.Resume(action.ProcessGroup{Subject: audit.Subject{Tenant: p.Tenant, Workload: p.Workload}})
	}
	e.actor.Close()
	e.swap.Close()
	e.save()
	e.tellCrashes()
}

// publish puts the findings into the statistics.
func (e *Enforcer) publish(b audit.Books, found audit.Audited) {
	s := wire.EnforcerStats{Quotas: found.Quotas, Workloads: found.Workloads}
	s.Escalation, s.Actions = e.escalation.Stats()
	if e.Refused != nil {
		s.Refused = e.Refused()
	}
	if e.Servers != nil {
		s.MPS = e.Servers()
	}
	if e.Gemini != nil {
		s.Gemini = e.Gemini()
		e.beside.look(b, s.Gemini)
	}
	s.Jobs, s.Hangs = e.observed(b)
	s.Stragglers, s.Unread = e.jobs.Stragglers(), e.jobs.Unread()
	s.Kernels = e.kernels.Top(b.Now)
	s.Suspended, s.Suspensions, s.Overcommit = e.swap.Stats(b)
	s.Held = e.heldStats()
	for i := range s.Quotas {
		s.Quotas[i].Holders = e.holders(b, &s.Quotas[i])
	}
	e.stats.Store(&s)
}

// holders returns the backends of a tenant's quota on a GPU. Nobody holds a cap that is a
// part of a memory whose size nobody knows.
func (e *Enforcer) holders(b audit.Books, q *wire.QuotaStats) (all []wire.Holder) {
	unknown := q.MemoryPart > 0 && q.Memory == 0
	of := func(t wire.TenantStats) bool { return t.Tenant == q.Tenant && t.GPU == q.GPU && t.Sessions > 0 }
	if slices.ContainsFunc(b.Tenants, of) {
		for _, resource := range []string{"compute", "memory", "copies"} {
			if resource != "memory" || !unknown {
				all = append(all, wire.Holder{Resource: resource, Backend: "hook"})
			}
		}
	}
	for _, backend := range e.Backends {
		for _, h := range backend.Holds() {
			if h.Tenant == q.Tenant && h.GPU == q.GPU {
				all = append(all, wire.Holder{Resource: h.Resource, Backend: backend.Name()})
			}
		}
	}
	at := place{q.Tenant, q.GPU}
	if !unknown {
		delete(e.unheld, at)
		return all
	}
	if !e.unheld[at] {
		e.log.Warn("a cap in percent is not in force: the memory of the gpu is unknown", "tenant", q.Tenant, "gpu", q.GPU)
	}
	e.unheld[at] = true
	return append(all, wire.Holder{Resource: "memory", Backend: "none"})
}
