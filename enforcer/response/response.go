// Package response does what the escalation decides, and has the terms that are in force meanwhile.
//
//	violations -> escalation -> step -> actor: pause, terminate
//	                                 -> swapper: suspend
//	                                 -> Terms: throttle, hold      -> broker
//	bandwidth samples -> pacer       -> Terms: limits of GPU time  -> broker
//
// The terms in force are the policy's, less what the escalation and the pacer take (terms.go). The
// pacer takes time from tenants whose kernels exceed their part of the memory's bandwidth (pace.go):
// such kernels are known only from the driver's samples. A step acts on the processes of a workload,
// which Group finds in the books (groups.go).
//
// Invariants:
//
//   - What is paused or suspended is recorded before it happens (state.go), and the next enforcer
//     finds it.
//   - When the enforcer ends, paused workloads continue.
//   - Turns belong to the tenant: a workload beside others of its tenant is not held by the broker.
//
// TestDay (make day) lets 100 tenants with random quotas, loads and faults live for a day of
// simulated time, and compares the decisions with the truth.
//
// Begin with Look in this file, and Terms in terms.go.
package response

import (
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"strings"
	"time"

	"gpusteward/collectors/host"
	"gpusteward/enforcer/action"
	"gpusteward/enforcer/audit"
	"gpusteward/enforcer/escalation"
	"gpusteward/enforcer/policy"
	"gpusteward/enforcer/suspend"
	"gpusteward/enforcer/swap"
	"gpusteward/internal/quota"
	"gpusteward/internal/span"
	"gpusteward/internal/wire"
)

// excuse is the time, at a tick of a second, after a hardware fault for which workloads on the GPU are not judged.
const excuse = time.Minute

// Options configure a Response. The functions must not wait.
type Options struct {
	Tick             audit.Tick // from one look to the next
	Log              *slog.Logger
	Terms            *Terms
	ProcFS, CgroupFS string
	StateFile        string         // empty: there is none
	Spans            *span.Recorder // nil: there are none
	Process          func(pid int) (host.Process, error)
	Hardware         func(uuid string, within time.Duration) bool // whether the GPU had a fault of its own; nil: none has
	Record           func(escalation.Step)                        // records each step in the journal; may be nil
	Notice           func(text string, pids ...int)               // writes to the logs of processes
}

// A Response owns the levels of workloads, and what keeps them there: the actor, and the file that
// lets the next enforcer find them. One goroutine, the enforcer's, calls its methods.
type Response struct {
	Options
	Actor action.Actor
	Swap  *swap.Swapper // to be set before anything else is called

	escalation escalation.Escalation
	state      stateFile
	groups     groups
	members    map[audit.Subject]string // of the process groups that were paused
	braked     time.Time                // episode that was logged
}

// New returns a Response to nothing yet.
func New(o Options) *Response {
	r := &Response{Options: o, state: stateFile{StateFile: host.StateFile{Path: o.StateFile}, log: o.Log},
		groups: groups{terms: o.Terms, process: o.Process, procfs: o.ProcFS}, members: map[audit.Subject]string{}}
	r.Actor = action.Actor{ProcFS: o.ProcFS, CgroupFS: o.CgroupFS, Keep: r.keep}
	r.escalation.Tick = o.Tick
	return r
}

// Restore takes over the state of an earlier enforcer. A workload that it
// paused and that should not be paused goes on.
func (r *Response) Restore() {
	s, found := r.state.read()
	if !found {
		return
	}
	r.escalation.Restore(time.Now(), s.Escalation)
	r.Actor.Restore(s.Paused)
	r.Swap.Restore(time.Now(), s.Suspended)
	for _, p := range s.Paused {
		subject := audit.Subject{Tenant: p.Tenant, Workload: p.Workload}
		if !r.Stopped(subject) || r.Terms.now.Load().steps(p.Tenant).Mode < policy.Pause {
			_, detail := r.Actor.Resume(action.ProcessGroup{Subject: subject})
			r.Log.Info("a paused workload was resumed", "tenant", p.Tenant, "workload", p.Workload, "detail", detail)
		}
	}
}

// saved returns the state that outlives a restart.
func (r *Response) saved() saved {
	return saved{r.escalation.Save(), r.Actor.Paused(), r.Swap.Suspender.Records()}
}

// keep writes the state before the actor pauses a workload: it does not pause
// what it could not remember.
func (r *Response) keep(paused []action.Paused) error {
	s := r.saved()
	s.Paused = paused
	return r.state.write(s)
}

// Save does so before a workload is suspended or resumed.
func (r *Response) Save(all []suspend.Record) error {
	s := r.saved()
	s.Suspended = all
	return r.state.write(s)
}

// Look moves workloads on the escalation, and carries out the steps. Call Group before.
func (r *Response) Look(now time.Time, b audit.Books, found audit.Audited, holds audit.Holds) {
	t := r.Terms.now.Load()
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
	for _, end := range r.Actor.Continue(now) {
		r.tell(escalation.Step{Subject: end.Subject, Time: now, From: policy.Terminate, To: policy.Terminate,
			Why: "its processes were told to end", Result: end.Result, Detail: end.Detail})
	}
	r.state.save(r.saved())
}

// carryOut takes a step that has no result yet, and tells its result.
func (r *Response) carryOut(now time.Time, s escalation.Step) {
	a := r.Spans.Begin("enforcer.step", span.Parent{})
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
func (r *Response) take(now time.Time, s *escalation.Step) {
	c := action.ProcessGroup{Subject: s.Subject, Hold: func(on bool) error { return r.Terms.Hold(s.Subject, on) }}
	if there := r.groups.all[s.Subject]; there != nil {
		c = there.ProcessGroup
	}
	steps := r.Terms.now.Load().steps(s.Tenant)
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
		s.Result, s.Detail = r.Actor.Pause(c, steps.Pause)
	case s.To == policy.Suspend:
		s.Result, s.Detail = r.suspendGroup(now, c, s.Why)
	case s.To == policy.Terminate:
		s.Result, s.Detail = r.Actor.Terminate(now, c, steps.Grace)
	}
	r.notify(*s, c)
}

// undo takes back what the levels above s.To did.
func (r *Response) undo(now time.Time, s *escalation.Step, c action.ProcessGroup) {
	if s.To < policy.Pause && s.From >= policy.Pause {
		c.Hold = func(on bool) error { return r.Terms.Hold(s.Subject, on) } // even if other workloads came meanwhile
		s.Result, s.Detail = r.Actor.Resume(c)
	}
	if one, away := r.Swap.Suspender.Record(s.Subject); away && !one.Yields && s.To < policy.Suspend && s.From >= policy.Suspend {
		_ = r.Swap.Suspender.Resume(now, s.Subject, s.Why) // its record is there
		s.Detail = strings.TrimPrefix(s.Detail+"; its GPU memory comes back", "; ")
	}
}

// suspendGroup begins to suspend a paused workload. Its processes go on until
// the driver stops them, since the driver needs their help. If it cannot be
// suspended, it stays paused.
func (r *Response) suspendGroup(now time.Time, c action.ProcessGroup, why string) (result, detail string) {
	bytes, found, err := r.Swap.Begin(now, c.Subject, why)
	switch {
	case err != nil:
		return escalation.Refused, fmt.Sprintf("it stays paused, because it cannot be suspended: %v", err)
	case !found:
		return escalation.Missed, "it has no processes"
	}
	detail = fmt.Sprintf("%s of GPU memory move to the host", quota.Size(bytes))
	c.Hold = func(on bool) error { return r.Terms.Hold(c.Subject, on) } // as in undo
	if result, text := r.Actor.Resume(c); result != escalation.Done {   // this is tried again
		detail += "; " + text
	}
	return escalation.Done, detail
}

// Release lets a workload continue that the escalation suspended; false: it did not. It is throttled
// from now on.
func (r *Response) Release(now time.Time, of audit.Subject) bool {
	step, escalated := r.escalation.Release(now, of)
	if escalated {
		r.carryOut(now, step)
		r.settle()
		r.state.save(r.saved())
	}
	return escalated
}

// Stopped reports whether a workload must stand still by the pause: one that is
// suspended does so anyway.
func (r *Response) Stopped(s audit.Subject) bool {
	level, shadow := r.escalation.Level(s)
	_, away := r.Swap.Suspender.Record(s)
	return !shadow && !away && (level == policy.Pause || level == policy.Suspend)
}

// Group finds the process groups of the workloads in the books.
func (r *Response) Group(b audit.Books) { r.groups.look(b, r.Swap.Suspender.Records()) }

// Stats returns the statistics of the escalation.
func (r *Response) Stats() ([]wire.EscalationStats, []wire.ActionStats) { return r.escalation.Stats() }

// Holds adds the paused workloads to those that are held back.
func (r *Response) Holds(workloads map[audit.Subject]audit.Hold) {
	rows, _ := r.escalation.Stats()
	for _, row := range rows {
		if s := (audit.Subject{Tenant: row.Tenant, Workload: row.Workload}); r.Stopped(s) {
			workloads[s] |= audit.Paused
		}
	}
}

// Workloads returns the workloads of governed tenants at the last look.
func (r *Response) Workloads() iter.Seq[audit.Subject] { return maps.Keys(r.groups.all) }

// notify writes a line to the logs of the processes concerned.
func (r *Response) notify(s escalation.Step, c action.ProcessGroup) {
	var pids []int
	for _, t := range c.Hooked {
		pids = append(pids, t.PID)
	}
	if len(pids) > 0 {
		r.Notice(fmt.Sprintf("the quota of tenant %s: %s, now at %s: %s", s.Tenant, s.From, s.To, s.Why),
			pids...)
	}
}

// settle applies the levels in force: throttled tenants get less, and processes
// that joined a paused workload are paused too.
func (r *Response) settle() {
	throttled := map[string]float64{}
	rows, _ := r.escalation.Stats()
	for _, row := range rows {
		s := audit.Subject{Tenant: row.Tenant, Workload: row.Workload}
		level, shadow := r.escalation.Level(s)
		if shadow || level < policy.Throttle {
			delete(r.members, s)
			continue
		}
		throttled[s.Tenant] = r.Terms.now.Load().steps(s.Tenant).Throttle
		c := r.groups.all[s]
		if c == nil || !r.Stopped(s) {
			continue
		}
		if members := c.members(); r.members[s] != members {
			r.members[s] = members
			if result, detail := r.Actor.Pause(c.ProcessGroup, r.Terms.now.Load().steps(s.Tenant).Pause); result == escalation.Failed {
				r.Log.Warn("new processes of a paused workload are not paused", "tenant", s.Tenant,
					"workload", s.Workload, "detail", detail)
			}
		}
	}
	maps.DeleteFunc(r.members, func(s audit.Subject, _ string) bool { return !r.Stopped(s) })
	r.Terms.Throttle(throttled)
}

// tell records a step.
func (r *Response) tell(s escalation.Step) {
	if r.Record != nil {
		r.Record(s)
	}
	log := r.Log.Info
	if s.To > policy.Warn && s.To >= s.From && s.Result != escalation.Shadowed {
		log = r.Log.Warn
	}
	log("the escalation changed a level", "tenant", s.Tenant, "workload", s.Workload, "from", s.From.String(), "to",
		s.To.String(), "why", s.Why, "result", s.Result, "detail", s.Detail)
	if since, held := r.escalation.Brake(); !since.Equal(r.braked) {
		if r.braked = since; held > 0 {
			r.Log.Warn("the brake holds the escalation back: too many actions on this host", "held", held)
		}
	}
}

// Close lets paused workloads go on before the enforcer ends. That comes first, and needs no disk: what the file
// has is undone again by the next enforcer.
func (r *Response) Close() {
	r.Actor.Keep = nil
	for _, p := range r.Actor.Paused() {
		r.Actor.Resume(action.ProcessGroup{Subject: audit.Subject{Tenant: p.Tenant, Workload: p.Workload}})
	}
	r.Actor.Close()
	r.Swap.Close()
	r.state.save(r.saved())
}
