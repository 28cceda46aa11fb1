package swap

import (
	"fmt"
	"maps"
	"slices"

	"gpusteward/collectors"
	"gpusteward/enforcer/action"
	"gpusteward/enforcer/audit"
	"gpusteward/enforcer/jobs"
	"gpusteward/enforcer/suspend"
)

// A candidate is a workload on GPUs with all its processes there.
type candidate struct {
	audit.Subject
	processes []suspend.Process
	mps       bool
	sampled   bool // the driver has samples of each process's GPU time
}

// candidates returns the workloads on GPUs, and those that are suspended: a process that is
// keeps its tenant.
func candidates(b audit.Books, suspended []suspend.Record) []*candidate {
	hooked := b.Hooked()
	all := map[audit.Subject]*candidate{}
	away := map[action.Target]string{} // tenants
	for _, r := range suspended {
		all[r.Subject()] = &candidate{Subject: r.Subject(), processes: slices.Clone(r.Processes), sampled: true}
		for _, p := range r.Processes {
			away[p.Target] = r.Tenant
		}
	}
	for _, h := range b.DeviceProcesses {
		if h.Unknown || h.Kind == collectors.KindServer || h.Process.Workload == nil {
			continue
		}
		tenant, session := hooked[h.Process.PID]
		if !session {
			tenant, _ = b.Tenant(h)
		}
		of, is := away[action.Target{PID: h.Process.PID, Start: h.Process.Start}]
		if is {
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
		if !is {
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

// joining returns a workload with only those of its processes that the record lacks.
func (c *candidate) joining(r suspend.Record) *candidate {
	fresh := *c
	fresh.processes = r.Joining(c.processes)
	return &fresh
}

// suspendable returns a Refusal of a workload that the driver cannot suspend, as far as that
// is known beforehand.
func (c *candidate) suspendable(by *suspend.Suspender, known *jobs.Observer) error {
	if c.mps {
		return by.Refuse(suspend.MPS, "clients of CUDA MPS share a context with others, which the driver cannot suspend")
	}
	for _, p := range c.processes {
		if kinds := known.Shared(p.PID); kinds != 0 {
			return by.Refuse(suspend.Unsupported,
				fmt.Sprintf("process %d has had %v, which the driver cannot suspend", p.PID, kinds))
		}
	}
	return nil
}

func sum(bytes map[string]uint64) (all uint64) {
	for _, n := range bytes {
		all += n
	}
	return all
}
