package enforcer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"gpusteward/enforcer/audit"
	"gpusteward/enforcer/broker"
	"gpusteward/enforcer/crash"
	"gpusteward/enforcer/jobs"
	"gpusteward/enforcer/profile"
	"gpusteward/internal/wire"
)

// observed returns what the traces of hooked processes tell, and NCCL about
// others, under the names of their workloads.
func (e *Enforcer) observed(b audit.Books) ([]wire.JobStats, []wire.HangStats) {
	e.neighbours.look(b)
	holds := e.heldBack()
	e.jobs.Held = func(tenant, workload string) bool {
		return holds.Of(audit.Subject{Tenant: tenant, Workload: workload}).Has(audit.Standing)
	}
	if !e.Simulated {
		e.jobs.See(gpuProcesses(b))
	}
	return e.jobs.Look(e.workload)
}

// Crashes returns the crashes whose records a user may read, the oldest first.
func (e *Enforcer) Crashes(uid uint32) []crash.Head { return e.crashes.Heads(uid) }

// Crash returns the JSON of a crash.Record that a user may read, and whether there is one. It
// reads the disk.
func (e *Enforcer) Crash(uid uint32, id int) ([]byte, bool, error) { return e.crashes.Record(uid, id) }

// ErrNoProgram is why there is no profile: no such program of the user is under the hook.
var ErrNoProgram = errors.New("no such program of yours is under the hook")

// Profile observes a program for some time. It is named by its PID, or by its workload if that has one process under
// the hook. A user may observe his own programs, and root all.
func (e *Enforcer) Profile(ctx context.Context, uid uint32, pid int, workload string, d time.Duration, spans bool) (profile.Profile, error) {
	var own []broker.Session
	for _, s := range e.broker.Sessions() {
		if (uid == 0 || s.UID == uid) && (s.PID == pid || workload != "" && e.workload(s.PID) == workload) &&
			!slices.ContainsFunc(own, func(o broker.Session) bool { return o.PID == s.PID }) {
			own = append(own, s)
		}
	}
	switch len(own) {
	case 0:
		return profile.Profile{}, ErrNoProgram
	case 1:
	default:
		var pids []string
		for _, s := range own {
			pids = append(pids, strconv.Itoa(s.PID))
		}
		return profile.Profile{}, fmt.Errorf("%s has %d processes under the hook: name one of them by its PID: %s", workload, len(own),
			strings.Join(pids[:min(len(pids), maxPIDs)], ", "))
	}
	p, err := e.profiles.Profile(ctx, uid, own[0].PID, d, spans)
	p.Tenant, p.Workload = own[0].Tenant, e.workload(own[0].PID)
	if one, failed := e.Host.Process(own[0].PID); failed == nil {
		p.Comm = one.Comm
	}
	return p, err
}

// hooked returns the parties of the processes with a session.
func (e *Enforcer) hooked() map[int]string {
	parties := map[int]string{}
	for _, s := range e.broker.Sessions() {
		parties[s.PID] = s.Party
	}
	return parties
}

// glance observes a process for a moment.
func (e *Enforcer) glance(ctx context.Context, pid int, d time.Duration) (profile.Profile, error) {
	p, err := e.profiles.Glance(ctx, pid, d)
	p.Workload = e.workload(pid)
	for _, s := range e.broker.Sessions() {
		if s.PID == pid {
			p.Tenant = s.Tenant
		}
	}
	return p, err
}

// maxPIDs is how many processes an error names.
const maxPIDs = 16

// tellCrashes keeps the crashes since the last look, and logs the new ones.
func (e *Enforcer) tellCrashes() {
	for _, h := range e.crashes.Look(func(pid int) (comm, workload string) {
		p, err := e.Host.Process(pid)
		if err != nil || p.Workload == nil {
			return p.Comm, ""
		}
		return p.Comm, p.Workload.Key
	}) {
		e.log.Warn("a program under the hook crashed", "crash", h.ID, "pid", h.PID, "comm", h.Comm, "tenant", h.Tenant,
			"workload", h.Workload, "what", h.Says)
		if e.Crashed != nil {
			e.Crashed(h)
		}
	}
}

// workload returns the workload of a process with a session, which the driver
// may not list; empty: it is not known.
func (e *Enforcer) workload(pid int) string {
	p, err := e.Host.Process(pid)
	if err != nil || p.Workload == nil {
		return ""
	}
	return p.Workload.Key
}

// gpuProcesses returns the processes that compute on GPUs.
func gpuProcesses(b audit.Books) (all []jobs.GPUProcess) {
	hooked := map[int]bool{}
	for _, s := range b.Sessions {
		hooked[s.PID] = true
	}
	for _, h := range b.DeviceProcesses {
		if h.Kind != "compute" || h.Unknown || h.Process.Workload == nil {
			continue
		}
		tenant, _ := b.Tenant(h)
		all = append(all, jobs.GPUProcess{PID: h.Process.PID, GPU: h.UUID, Tenant: tenant,
			Workload: h.Process.Workload.Key, Hooked: hooked[h.Process.PID], Used: h.SM, Sampled: h.Sampled})
	}
	return all
}

// evidence returns what is known of a GPU for slow steps of a process.
func (e *Enforcer) evidence(uuid string, pid int) (known jobs.Evidence) {
	if e.Evidence != nil {
		known = e.Evidence(uuid)
	}
	known.Neighbours = e.neighbours.others(uuid, pid)
	return known
}
