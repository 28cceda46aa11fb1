package enforcer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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

// observers own what the traces of processes under the hook tell, and give it the names of workloads.
// Anybody may ask for crashes and profiles, and the broker shows traces; Run's goroutine calls the rest.
type observers struct {
	*Options
	log    *slog.Logger
	broker *broker.Broker

	jobs       jobs.Observer
	crashes    crash.Recorder
	profiles   profile.Recorder
	kernels    profile.Totals
	neighbours audit.Neighbours
}

// open prepares the observers, before there is a broker.
func (o *observers) open(procfs string) {
	o.crashes.Dir, o.crashes.Log = o.CrashDir, o.log
	o.profiles.Time = func(pid int, every time.Duration) { o.broker.Time(pid, every) }
	o.profiles.Look = func() { o.broker.ShowTraces() }
	o.jobs.Procfs, o.jobs.Evidence = procfs, o.evidence
	if !o.Simulated {
		o.jobs.RAS, o.jobs.Trusted, o.jobs.Log = o.NCCL, o.Trusted, o.log
	}
}

// observe takes what the broker shows of a trace.
func (o *observers) observe(t broker.Traced) {
	o.jobs.Observe(t)
	o.crashes.Observe(t)
	o.profiles.Observe(t)
}

// look returns what the traces of hooked processes tell, and NCCL about
// others, under the names of their workloads.
func (o *observers) look(b audit.Books, holds audit.Holds) ([]wire.JobStats, []wire.HangStats) {
	o.neighbours.Look(b)
	o.jobs.Held = func(tenant, workload string) bool {
		return holds.Of(audit.Subject{Tenant: tenant, Workload: workload}).Has(audit.Standing)
	}
	if !o.Simulated {
		o.jobs.See(gpuProcesses(b))
	}
	return o.jobs.Look(o.workload)
}

// ErrNoProgram is why there is no profile: no such program of the user is under the hook.
var ErrNoProgram = errors.New("no such program of yours is under the hook")

// profile is Enforcer.Profile.
func (o *observers) profile(ctx context.Context, uid uint32, pid int, workload string, d time.Duration, spans bool) (profile.Profile, error) {
	var own []broker.Session
	for _, s := range o.broker.Sessions() {
		if (uid == 0 || s.UID == uid) && (s.PID == pid || workload != "" && o.workload(s.PID) == workload) &&
			!slices.ContainsFunc(own, func(other broker.Session) bool { return other.PID == s.PID }) {
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
	p, err := o.profiles.Profile(ctx, uid, own[0].PID, d, spans)
	p.Tenant, p.Workload = own[0].Tenant, o.workload(own[0].PID)
	if one, failed := o.Host.Process(own[0].PID); failed == nil {
		p.Comm = one.Comm
	}
	return p, err
}

// hooked returns the parties of the processes with a session.
func (o *observers) hooked() map[int]string {
	parties := map[int]string{}
	for _, s := range o.broker.Sessions() {
		parties[s.PID] = s.Party
	}
	return parties
}

// glance observes a process for a moment.
func (o *observers) glance(ctx context.Context, pid int, d time.Duration) (profile.Profile, error) {
	p, err := o.profiles.Glance(ctx, pid, d)
	p.Workload = o.workload(pid)
	for _, s := range o.broker.Sessions() {
		if s.PID == pid {
			p.Tenant = s.Tenant
		}
	}
	return p, err
}

// maxPIDs is how many processes an error names.
const maxPIDs = 16

// tellCrashes keeps the crashes since the last look, and logs the new ones.
func (o *observers) tellCrashes() {
	for _, h := range o.crashes.Look(func(pid int) (comm, workload string) {
		p, err := o.Host.Process(pid)
		if err != nil || p.Workload == nil {
			return p.Comm, ""
		}
		return p.Comm, p.Workload.Key
	}) {
		o.log.Warn("a program under the hook crashed", "crash", h.ID, "pid", h.PID, "comm", h.Comm, "tenant", h.Tenant,
			"workload", h.Workload, "what", h.Says)
		if o.Crashed != nil {
			o.Crashed(h)
		}
	}
}

// workload returns the workload of a process with a session, which the driver
// may not list; empty: it is not known.
func (o *observers) workload(pid int) string {
	p, err := o.Host.Process(pid)
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
func (o *observers) evidence(uuid string, pid int) (known jobs.Evidence) {
	if o.Evidence != nil {
		known = o.Evidence(uuid)
	}
	known.Neighbours = o.neighbours.Others(uuid, pid)
	return known
}
