package response

import (
	"fmt"
	"slices"

	"gpusteward/collectors"
	"gpusteward/collectors/host"
	"gpusteward/enforcer/action"
	"gpusteward/enforcer/audit"
	"gpusteward/enforcer/broker"
	"gpusteward/enforcer/policy"
	"gpusteward/enforcer/suspend"
)

// A processGroup is the processes of a subject on GPUs.
type processGroup struct {
	action.ProcessGroup
	gpus []string // UUIDs
}

// members returns the group's processes as text: another text is another group.
func (c *processGroup) members() string {
	all := slices.Concat(c.Hooked, c.Unhooked)
	slices.SortFunc(all, func(a, b action.Target) int { return a.PID - b.PID })
	return fmt.Sprint(all)
}

// groups are the process groups of governed tenants at the last look.
type groups struct {
	terms   *Terms
	process func(pid int) (host.Process, error)
	procfs  string
	all     map[audit.Subject]*processGroup
}

// look finds the process groups. The driver does not list the suspended processes.
func (g *groups) look(b audit.Books, suspended []suspend.Record) {
	sessions := b.Hooked()
	g.all = map[audit.Subject]*processGroup{}
	workloads := map[string]map[string]bool{} // with a session, by tenant
	for _, h := range b.DeviceProcesses {
		tenant, hooked := sessions[h.Process.PID]
		governed := hooked && tenant != policy.DefaultTenant
		if !hooked {
			tenant, governed = b.Tenant(h)
		}
		if !governed || h.Unknown || h.Kind == collectors.KindServer || h.Process.Workload == nil {
			continue
		}
		s := audit.Subject{Tenant: tenant, Workload: h.Process.Workload.Key}
		c := g.of(s, sessions)
		if !slices.Contains(c.gpus, h.UUID) {
			c.gpus = append(c.gpus, h.UUID)
		}
		t := action.Target{PID: h.Process.PID, Start: h.Process.Start}
		switch {
		case slices.Contains(c.Hooked, t) || slices.Contains(c.Unhooked, t): // on another GPU too
		case hooked:
			c.Hooked = append(c.Hooked, t)
			if workloads[tenant] == nil {
				workloads[tenant] = map[string]bool{}
			}
			workloads[tenant][s.Workload] = true
		default:
			c.Unhooked = append(c.Unhooked, t)
		}
	}
	g.add(suspended, sessions)
	for s, c := range g.all {
		if len(workloads[s.Tenant]) <= 1 { // turns belong to the tenant: a hold would stop its other workloads too
			c.Hold = func(on bool) error { return g.terms.Hold(s, on) }
		}
	}
}

// of returns the group of a subject, which it adds if there is none.
func (g *groups) of(s audit.Subject, sessions map[int]string) *processGroup {
	c := g.all[s]
	if c == nil {
		c = &processGroup{ProcessGroup: action.ProcessGroup{Subject: s}}
		c.Check = func(pid int) bool { return g.isOf(pid, s, sessions[pid] == s.Tenant) }
		g.all[s] = c
	}
	return c
}

// add adds the suspended processes.
func (g *groups) add(suspended []suspend.Record, sessions map[int]string) {
	for _, r := range suspended {
		s := r.Subject()
		if !g.terms.now.Load().Governed(s.Tenant) {
			continue
		}
		c := g.of(s, sessions)
		for _, p := range r.Processes {
			switch {
			case slices.Contains(c.Hooked, p.Target) || slices.Contains(c.Unhooked, p.Target):
			case sessions[p.PID] == s.Tenant:
				c.Hooked = append(c.Hooked, p.Target)
			default:
				c.Unhooked = append(c.Unhooked, p.Target)
			}
		}
	}
}

// isOf reports whether the process that has a PID now belongs to a subject. A
// process that had a session may have asked for the tenant; for others the
// policy decides.
func (g *groups) isOf(pid int, s audit.Subject, hooked bool) bool {
	p, err := g.process(pid)
	if err != nil || p.Workload == nil || p.Workload.Key != s.Workload {
		return false
	}
	if hooked {
		return true
	}
	f, err := broker.FactsOf(g.procfs, pid)
	return err == nil && g.terms.now.Load().Whose(f, p.Workload) == s.Tenant
}
