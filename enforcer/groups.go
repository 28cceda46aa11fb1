package enforcer

import (
	"fmt"
	"slices"
	"strings"

	"gpusteward/collectors"
	"gpusteward/enforcer/action"
	"gpusteward/enforcer/audit"
	"gpusteward/enforcer/backend"
	"gpusteward/enforcer/broker"
	"gpusteward/enforcer/policy"
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

// groupProcesses finds the process groups of governed tenants.
func (e *Enforcer) groupProcesses(b audit.Books) {
	sessions := b.Hooked()
	e.groups = map[audit.Subject]*processGroup{}
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
		c := e.group(s, sessions)
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
	e.groupSuspended(sessions)
	for s, c := range e.groups {
		if len(workloads[s.Tenant]) <= 1 { // turns belong to the tenant: a hold would stop its other workloads too
			c.Hold = func(on bool) error { return e.terms.hold(s, on) }
		}
	}
}

// group returns the group of a subject, which it adds if there is none.
func (e *Enforcer) group(s audit.Subject, sessions map[int]string) *processGroup {
	c := e.groups[s]
	if c == nil {
		c = &processGroup{ProcessGroup: action.ProcessGroup{Subject: s}}
		c.Check = func(pid int) bool { return e.isOf(pid, s, sessions[pid] == s.Tenant) }
		e.groups[s] = c
	}
	return c
}

// groupSuspended adds the suspended processes, which the driver does not list.
func (e *Enforcer) groupSuspended(sessions map[int]string) {
	for _, r := range e.swap.Suspender.Records() {
		s := r.Subject()
		if !e.terms.Load().Governed(s.Tenant) {
			continue
		}
		c := e.group(s, sessions)
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
func (e *Enforcer) isOf(pid int, s audit.Subject, hooked bool) bool {
	p, err := e.Host.Process(pid)
	if err != nil || p.Workload == nil || p.Workload.Key != s.Workload {
		return false
	}
	if hooked {
		return true
	}
	f, err := broker.FactsOf(e.identities.procfs, pid)
	return err == nil && e.terms.Load().Whose(f, p.Workload) == s.Tenant
}

// demands returns the backends' demands: each tenant's quota on each GPU, and
// the tenant's processes there.
func (e *Enforcer) demands(b audit.Books) []backend.Demand {
	type spot struct{ tenant, gpu string }
	hooked := b.Hooked()
	there := map[spot]*backend.Demand{}
	at := func(tenant, gpu string) *backend.Demand {
		d := there[spot{tenant, gpu}]
		if d == nil {
			d = &backend.Demand{Tenant: tenant, GPU: gpu, Quota: b.Quota(tenant, gpu)}
			there[spot{tenant, gpu}] = d
		}
		return d
	}
	for _, h := range b.DeviceProcesses {
		tenant, session := hooked[h.Process.PID]
		if !session {
			tenant, _ = b.Tenant(h)
		}
		if h.Unknown || tenant == "" || h.Kind == collectors.KindServer {
			continue
		}
		d := at(tenant, h.UUID)
		d.Processes = append(d.Processes, h.Process)
		d.Hooked = d.Hooked || session
		for _, name := range b.Names {
			at(name, h.UUID)
		}
	}
	var all []backend.Demand
	users := map[int]string{} // tenant of all their processes; empty: several tenants
	for _, d := range there {
		all = append(all, *d)
		for _, p := range d.Processes {
			if of, known := users[p.UID]; known && of != d.Tenant {
				users[p.UID] = ""
			} else if !known {
				users[p.UID] = d.Tenant
			}
		}
	}
	e.users.Store(&users)
	slices.SortFunc(all, func(x, y backend.Demand) int {
		if c := strings.Compare(x.Tenant, y.Tenant); c != 0 {
			return c
		}
		return strings.Compare(x.GPU, y.GPU)
	})
	return all
}

// TenantOf returns the one tenant of all of a user's processes on GPUs; false
// if there is none, or several.
func (e *Enforcer) TenantOf(uid int) (string, bool) {
	users := e.users.Load()
	if users == nil || (*users)[uid] == "" {
		return "", false
	}
	return (*users)[uid], true
}
