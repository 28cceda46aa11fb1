package enforcer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"gpusteward/collectors"
	"gpusteward/enforcer/action"
	"gpusteward/enforcer/audit"
	"gpusteward/enforcer/suspend"
	"gpusteward/internal/wire"
)

// awayMemory is the GPU memory of suspended processes. The driver no longer
// lists it, and it remains charged to their tenants.
type awayMemory map[awayPlace]uint64

type awayPlace struct {
	gpu string // UUID
	pid int
}

// holds returns the driver's listing with what suspended processes had.
func (e *Enforcer) holds(listed func(uuid string, pid int) (uint64, time.Time, bool)) func(string, int) (uint64,
	time.Time, bool) {
	if listed == nil {
		return nil
	}
	return func(uuid string, pid int) (uint64, time.Time, bool) {
		bytes, at, is := listed(uuid, pid)
		if away, suspended := (*e.away.Load())[awayPlace{uuid, pid}]; suspended {
			return max(bytes, away), at, true
		}
		return bytes, at, is
	}
}

// free returns the free memory of a GPU.
func (e *Enforcer) free(uuid string) (bytes uint64, known bool) {
	_, bytes, _, known = e.Host.Memory(uuid)
	return bytes, known
}

// size returns the memory of a GPU that programs can have.
func (e *Enforcer) size(uuid string) (bytes uint64, known bool) {
	total, _, kept, known := e.Host.Memory(uuid)
	return total - min(kept, total), known
}

// remember records the suspended processes and their memory, and passes the PIDs to
// the broker.
func (e *Enforcer) remember() { e.broker.Absent(e.charge()) }

// charge records the memory of the suspended processes, and returns their PIDs.
func (e *Enforcer) charge() map[int]bool {
	away, absent := awayMemory{}, map[int]bool{}
	for _, r := range e.suspender.Records() {
		for _, p := range r.Processes {
			absent[p.PID] = true
			for uuid, bytes := range p.Memory {
				away[awayPlace{uuid, p.PID}] = bytes
			}
		}
	}
	e.away.Store(&away)
	return absent
}

// moving returns the GPUs from or to which memory is on its way.
func (e *Enforcer) moving() map[string]bool {
	all := map[string]bool{}
	for _, r := range e.suspender.Records() {
		if r.Phase == suspend.Suspended || e.suspender.Waits(r.Subject()) {
			continue
		}
		for uuid := range r.Bytes() {
			all[uuid] = true
		}
	}
	return all
}

// lookAtSuspended reports the suspensions and resumptions that have ended.
func (e *Enforcer) lookAtSuspended(now time.Time) {
	for _, end := range e.suspender.Look(now) {
		e.ended(end)
		e.residence.moved(now, end)
		e.explain(end)
		text, err := e.told(end)
		e.answer(awaited{end.Subject(), end.Done}, text, err)
	}
	for it := range e.waiting {
		switch _, is := e.suspender.Record(it.Subject); {
		case is:
		case it.done == suspend.Suspended:
			e.answer(it, "", errors.New("its processes have ended"))
		default:
			e.answer(it, it.Workload+" is no longer suspended: it goes on, or has ended.", nil)
		}
	}
	e.remember()
}

// ended writes the end of a suspension or resumption to the log and the journal.
func (e *Enforcer) ended(end suspend.End) {
	log := e.log.With("tenant", end.Tenant, "workload", end.Workload, "why", end.Why, "took", end.Took.String())
	switch {
	case len(end.Lost) > 0:
		log.Error("the driver broke processes while they were suspended: they can no longer use their GPU, and must "+
			"be started again", "pids", end.Lost, "err", end.Err)
	case end.Err != nil && end.Joined:
		log.Warn("new processes of a suspended workload could not be suspended, and go on", "reason",
			suspend.ReasonOf(end.Err), "err", end.Err)
	case end.Err != nil && end.Done == suspend.Suspended:
		log.Warn("a workload could not be suspended, and goes on", "reason", suspend.ReasonOf(end.Err), "err", end.Err)
	case end.Err != nil:
		log.Warn("a suspended workload could not be resumed; this is tried again", "reason", suspend.ReasonOf(end.Err),
			"err", end.Err)
	case end.Done == suspend.Suspended:
		log.Info("a workload was suspended", "bytes", sum(end.Bytes()))
		if pids := e.unprotected(end.Processes); len(pids) > 0 {
			log.Warn("processes without the hook are suspended, and could not be guarded: the driver may end one that waits "+
				"for its GPU meanwhile", "pids", pids)
		}
	default:
		log.Info("a suspended workload was resumed", "bytes", sum(end.Bytes()))
		e.seeReturned(end)
	}
	if e.Tell != nil {
		e.Tell(end)
	}
}

// answer answers all callers that await the end of a suspension or resumption.
func (e *Enforcer) answer(it awaited, text string, err error) {
	for _, waits := range e.waiting[it] {
		waits <- answer{text, err} // it has room
	}
	delete(e.waiting, it)
}

// A returned process is one whose memory has come back.
type returned struct {
	at     time.Time
	memory map[string]uint64 // bytes by UUID
}

// seeReturned corrects the last look, and those to come, by the memory that has come back.
func (e *Enforcer) seeReturned(end suspend.End) {
	for _, p := range end.Processes {
		e.returned[p.Target] = returned{time.Now(), p.Memory}
	}
	e.withReturned(e.seen.DeviceProcesses)
}

// withReturned corrects readings from before memory came back, and forgets the processes with
// newer readings.
func (e *Enforcer) withReturned(all []collectors.DeviceProcess) []collectors.DeviceProcess {
	awaited := map[action.Target]bool{}
	for i := range all {
		h := &all[i]
		t := action.Target{PID: h.Process.PID, Start: h.Process.Start}
		if r, is := e.returned[t]; is && !h.At.After(r.at) {
			h.Memory, awaited[t] = max(h.Memory, r.memory[h.UUID]), true
		}
	}
	maps.DeleteFunc(e.returned, func(t action.Target, _ returned) bool { return !awaited[t] })
	return all
}

func sum(bytes map[string]uint64) (all uint64) {
	for _, n := range bytes {
		all += n
	}
	return all
}

// A candidate is a workload on GPUs with all its processes there.
type candidate struct {
	audit.Subject
	processes []suspend.Process
	mps       bool
	sampled   bool // the driver has samples of each process's GPU time
}

// candidates returns the workloads on GPUs, by the last look, and those that are
// suspended: a process that is keeps its tenant.
func (e *Enforcer) candidates() []*candidate {
	hooked := tenantsOf(e.seen.Sessions)
	all := map[audit.Subject]*candidate{}
	away := map[action.Target]string{} // tenants
	for _, r := range e.suspender.Records() {
		all[r.Subject()] = &candidate{Subject: r.Subject(), processes: slices.Clone(r.Processes), sampled: true}
		for _, p := range r.Processes {
			away[p.Target] = r.Tenant
		}
	}
	for _, h := range e.seen.DeviceProcesses {
		if h.Unknown || h.Kind == collectors.KindServer || h.Process.Workload == nil {
			continue
		}
		tenant, session := hooked[h.Process.PID]
		if !session {
			tenant, _ = e.seen.Tenant(h)
		}
		of, suspended := away[action.Target{PID: h.Process.PID, Start: h.Process.Start}]
		if suspended {
			tenant = of
		}
		s := audit.Subject{Tenant: tenant, Workload: h.Process.Workload.Key}
		c := all[s]
		if c == nil {
			c = &candidate{Subject: s, sampled: true}
			all[s] = c
		}
		c.mps = c.mps || h.Kind == "mps"
		c.sampled = c.sampled && !h.Sampled.IsZero()
		if !suspended {
			c.add(h)
		}
	}
	return slices.SortedFunc(maps.Values(all), func(x, y *candidate) int { return audit.Compare(x.Subject, y.Subject) })
}

func (c *candidate) add(h collectors.DeviceProcess) {
	t := action.Target{PID: h.Process.PID, Start: h.Process.Start}
	at := slices.IndexFunc(c.processes, func(p suspend.Process) bool { return p.Target == t })
	if at < 0 {
		at = len(c.processes)
		c.processes = append(c.processes, suspend.Process{Target: t, Memory: map[string]uint64{}})
	}
	c.processes[at].Memory[h.UUID] += h.Memory
}

// names reports whether the name in an order means the workload: its key, or the
// PID of one of its processes.
func names(name string, s audit.Subject, processes []suspend.Process) bool {
	pid, err := strconv.Atoi(name)
	return s.Workload == name ||
		err == nil && slices.ContainsFunc(processes, func(p suspend.Process) bool { return p.PID == pid })
}

// Suspend takes the GPU memory of a workload, which is named by its key or by
// the PID of one of its processes. It returns a message for the operator, once
// the workload is suspended or when ctx ends, whichever is first.
func (e *Enforcer) Suspend(ctx context.Context, workload, why string) (string, error) {
	return e.order(ctx, suspend.Suspended, func() (audit.Subject, error) {
		var found []*candidate
		var known []string
		for _, c := range e.candidates() {
			known = append(known, c.Workload)
			if names(workload, c.Subject, c.processes) {
				found = append(found, c)
			}
		}
		switch {
		case e.Simulated:
			return audit.Subject{}, errors.New("the GPUs are simulated: no process can be suspended")
		case len(found) == 0:
			return audit.Subject{}, fmt.Errorf("no workload %q has processes on a GPU; those that have are: %s", workload,
				cmp.Or(strings.Join(slices.Compact(known), ", "), "none"))
		case len(found) > 1:
			return audit.Subject{}, fmt.Errorf("%q has processes of several tenants, %s and %s: name the PID of one of them",
				workload, found[0].Tenant, found[1].Tenant)
		}
		c := found[0]
		r, _ := e.suspender.Record(c.Subject)
		if err := e.suspendable(c.joining(r)); err != nil {
			return c.Subject, err
		}
		err := e.suspender.Suspend(time.Now(), c.Subject, c.processes, why)
		if err == nil {
			e.answer(awaited{c.Subject, suspend.Resuming}, "",
				errors.New("not resumed: meanwhile it was ordered to stay suspended"))
		}
		return c.Subject, err
	})
}

// joining returns a workload with only those of its processes that the record lacks.
func (c *candidate) joining(r suspend.Record) *candidate {
	fresh := *c
	fresh.processes = r.Joining(c.processes)
	return &fresh
}

// obstacle returns why the driver cannot suspend a workload, as far as that is
// known beforehand; empty if nothing is.
func (e *Enforcer) obstacle(c *candidate) (reason suspend.Reason, text string) {
	if c.mps {
		return suspend.MPS, "clients of CUDA MPS share a context with others, which the driver cannot suspend"
	}
	for _, p := range c.processes {
		if kinds := e.jobs.Shared(p.PID); kinds != 0 {
			return suspend.Unsupported, fmt.Sprintf("process %d has had %v, which the driver cannot suspend", p.PID, kinds)
		}
	}
	return "", ""
}

// suspendable returns a Refusal of a workload that the driver cannot suspend.
func (e *Enforcer) suspendable(c *candidate) error {
	if reason, text := e.obstacle(c); text != "" {
		return e.suspender.Refuse(reason, text)
	}
	return nil
}

// candidate returns a workload on GPUs; nil: it has no processes there.
func (e *Enforcer) candidate(s audit.Subject) *candidate {
	all := e.candidates()
	if i := slices.IndexFunc(all, func(c *candidate) bool { return c.Subject == s }); i >= 0 {
		return all[i]
	}
	return nil
}

// ResumeProcess gives a suspended workload its GPU memory back, as Suspend takes
// it.
func (e *Enforcer) ResumeProcess(ctx context.Context, workload, why string) (string, error) {
	return e.order(ctx, suspend.Resuming, func() (audit.Subject, error) {
		var known []string
		for _, c := range e.candidates() {
			r, away := e.suspender.Record(c.Subject)
			if !away {
				continue
			}
			if names(workload, c.Subject, c.processes) {
				err := e.release(time.Now(), c.Subject, why)
				if r.Phase == suspend.Resuming {
					e.answer(awaited{c.Subject, suspend.Suspended}, "",
						errors.New("not suspended: meanwhile it was ordered to be resumed"))
				}
				return c.Subject, err
			}
			known = append(known, c.Workload)
		}
		return audit.Subject{}, fmt.Errorf("no workload %q is suspended; those that are: %s", workload,
			cmp.Or(strings.Join(known, ", "), "none"))
	})
}

// release begins to resume a suspended workload. One that the escalation
// suspended is throttled from now on.
func (e *Enforcer) release(now time.Time, of audit.Subject, why string) error {
	step, escalated := e.escalation.Release(now, of)
	if !escalated {
		return e.suspender.Resume(now, of, why)
	}
	e.carryOut(now, step)
	e.settle()
	e.save()
	return nil
}

// An awaited is the end of a subject's suspension or resumption.
type awaited struct {
	audit.Subject
	done suspend.Phase
}

// An answer goes to the caller that gave an order.
type answer struct {
	text string
	err  error
}

// order has Run begin something, and waits until that is done.
func (e *Enforcer) order(ctx context.Context, done suspend.Phase, do func() (audit.Subject, error)) (string, error) {
	began, ended := make(chan error, 1), make(chan answer, 1)
	select {
	case e.orders <- func() {
		s, err := do()
		if err == nil {
			if r, _ := e.suspender.Record(s); r.Phase == suspend.Suspended { // it gave way before
				ended <- answer{text: staysSuspended(r.Workload)}
			} else {
				it := awaited{s, done}
				e.waiting[it] = append(e.waiting[it], ended)
			}
		}
		began <- err
	}:
	case <-ctx.Done():
		return "", errors.New("the enforcer did not answer in time")
	}
	if err := <-began; err != nil {
		return "", err
	}
	select {
	case a := <-ended:
		return a.text, a.err
	case <-ctx.Done():
		return "this takes longer; gpusteward status shows when it is done", nil
	}
}

func staysSuspended(workload string) string {
	return workload + " is suspended, and stays so. gpusteward resume-process gives its GPU memory back."
}

// unprotected returns the PIDs of suspended processes that neither run under the hook nor
// are guarded.
func (e *Enforcer) unprotected(all []suspend.Process) (pids []int) {
	hooked := tenantsOf(e.seen.Sessions)
	for _, p := range all {
		if _, is := hooked[p.PID]; !is && !e.suspender.Guard.Has(p.PID) {
			pids = append(pids, p.PID)
		}
	}
	return pids
}

// told describes the end of an order to the operator.
func (e *Enforcer) told(end suspend.End) (string, error) {
	switch mib := sum(end.Bytes()) >> 20; {
	case len(end.Lost) > 0:
		return "", errors.Join(fmt.Errorf("the driver broke processes %v: they can no longer use their GPU", end.Lost),
			end.Err)
	case end.Err != nil && end.Joined:
		return "", fmt.Errorf("its new processes are not suspended, and go on; the others stay suspended: %w", end.Err)
	case end.Err != nil && end.Done == suspend.Suspended:
		return "", fmt.Errorf("not suspended, and it goes on: %w", end.Err)
	case end.Err != nil:
		return "", fmt.Errorf("not resumed yet, this is tried again: %w", end.Err)
	case end.Done == suspend.Suspended && len(end.Processes) == 0:
		return staysSuspended(end.Workload), nil
	case end.Done == suspend.Suspended:
		text := fmt.Sprintf("%s is suspended: %d MiB of GPU memory freed in %.1f s. gpusteward resume-process gives it back.",
			end.Workload, mib, end.Took.Seconds())
		if pids := e.unprotected(end.Processes); len(pids) > 0 {
			text += fmt.Sprintf(" Processes %v run without the hook, and something else traces them: the driver may end one that "+
				"waits for its GPU meanwhile.", pids)
		}
		return text, nil
	default:
		return fmt.Sprintf("%s runs again: %d MiB of GPU memory restored in %.1f s.", end.Workload, mib,
			end.Took.Seconds()), nil
	}
}

// suspended returns the statistics of suspended workloads.
func (e *Enforcer) suspended(b audit.Books) (all []wire.SuspendedStats, total wire.SuspensionStats) {
	listed := map[awayPlace]uint64{}
	for _, h := range b.DeviceProcesses {
		listed[awayPlace{h.UUID, h.Process.PID}] += h.Memory
	}
	for _, r := range e.suspender.Records() {
		rows := map[string]*wire.SuspendedStats{}
		for _, p := range r.Processes {
			for uuid, bytes := range p.Memory {
				if rows[uuid] == nil {
					rows[uuid] = &wire.SuspendedStats{Tenant: r.Tenant, Workload: r.Workload, GPU: uuid,
						Phase: string(r.Phase), Why: r.Why, Seconds: max(b.Now.Sub(r.Since).Seconds(), 0)}
				}
				rows[uuid].Bytes += bytes - min(bytes, listed[awayPlace{uuid, p.PID}])
			}
		}
		for _, uuid := range slices.Sorted(maps.Keys(rows)) {
			all = append(all, *rows[uuid])
		}
	}
	t := e.suspender.Totals()
	total = wire.SuspensionStats{Suspended: t.Suspended, Resumed: t.Resumed, SuspendSeconds: t.SuspendSeconds,
		ResumeSeconds: t.ResumeSeconds, Broken: t.Broken, Refused: map[string]uint64{}}
	for reason, n := range t.Refused {
		total.Refused[string(reason)] = n
	}
	return all, total
}
