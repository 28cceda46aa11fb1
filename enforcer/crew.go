package enforcer

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"gpusteward/collectors"
	"gpusteward/collectors/host"
	"gpusteward/enforcer/action"
	"gpusteward/enforcer/audit"
	"gpusteward/enforcer/backend"
	"gpusteward/enforcer/broker"
	"gpusteward/enforcer/policy"
)

// A crew is the processes of a subject that are on GPUs.
type crew struct {
	action.Crew
	gpus []string // UUIDs
}

// roll returns who is in the crew, as text: another one is another crew.
func (c *crew) roll() string {
	all := slices.Concat(c.Hooked, c.Unhooked)
	slices.SortFunc(all, func(a, b action.Target) int { return a.PID - b.PID })
	return fmt.Sprint(all)
}

// muster finds the crews of governed tenants.
func (e *Enforcer) muster(b audit.Books) {
	sessions := map[int]string{} // tenants by PID
	for _, s := range b.Sessions {
		sessions[s.PID] = s.Tenant
	}
	e.crews = map[audit.Subject]*crew{}
	workloads := map[string]map[string]bool{} // with a session, by tenant
	for _, h := range b.Holdings {
		tenant, hooked := sessions[h.Process.PID]
		governed := hooked && tenant != policy.DefaultTenant
		if !hooked {
			tenant, governed = b.Tenant(h)
		}
		if !governed || h.Unknown || h.Kind == collectors.KindServer || h.Process.Workload == nil {
			continue
		}
		s := audit.Subject{Tenant: tenant, Workload: h.Process.Workload.Key}
		c := e.crews[s]
		if c == nil {
			c = &crew{Crew: action.Crew{Subject: s}}
			c.Check = func(pid int) bool { return e.isOf(pid, s, sessions[pid] == s.Tenant) }
			e.crews[s] = c
		}
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
	for s, c := range e.crews {
		if len(workloads[s.Tenant]) <= 1 { // a turn is the tenant's: to hold it would hold the others too
			c.Hold = func(on bool) error { return e.hold(s, on) }
		}
	}
}

// isOf reports whether whoever has a PID now is of a subject. Who had a session
// may have asked for the tenant; else it is the policy's word.
func (e *Enforcer) isOf(pid int, s audit.Subject, hooked bool) bool {
	p, err := e.Host.Process(pid)
	if err != nil || p.Workload == nil || p.Workload.Key != s.Workload {
		return false
	}
	if hooked {
		return true
	}
	f, err := broker.FactsOf(e.papers.procfs, pid)
	return err == nil && e.terms.Load().Whose(f, p.Workload) == s.Tenant
}

// hold has the broker give a subject's tenant no turns, or some again.
func (e *Enforcer) hold(s audit.Subject, on bool) error {
	if on {
		e.held[s] = true
	} else {
		delete(e.held, s)
	}
	held := map[string]bool{}
	for s := range e.held {
		held[s.Tenant] = true
	}
	e.change(func(t *terms) { t.held = held })
	return nil
}

// demands returns what the backends are to hold: each tenant's quota on each
// GPU, and whose processes are there.
func (e *Enforcer) demands(b audit.Books) []backend.Demand {
	type spot struct{ tenant, gpu string }
	hooked := map[int]string{}
	for _, s := range b.Sessions {
		hooked[s.PID] = s.Tenant
	}
	there := map[spot]*backend.Demand{}
	at := func(tenant, gpu string) *backend.Demand {
		d := there[spot{tenant, gpu}]
		if d == nil {
			d = &backend.Demand{Tenant: tenant, GPU: gpu, Quota: b.Quota(tenant, gpu)}
			there[spot{tenant, gpu}] = d
		}
		return d
	}
	for _, h := range b.Holdings {
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
	users := map[int]string{} // whose all their processes are; empty: of several tenants
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

// TenantOf returns the one tenant that all of a user's processes on GPUs are of;
// false where they are of none or of several.
func (e *Enforcer) TenantOf(uid int) (string, bool) {
	users := e.users.Load()
	if users == nil || (*users)[uid] == "" {
		return "", false
	}
	return (*users)[uid], true
}

// papers are the facts of processes without a session that do not end, which
// are believed for a while.
type papers struct {
	procfs    string
	simulated bool // the processes are: this host's of the same numbers are others
	known     map[action.Target]paper
	swept     time.Time
}

type paper struct {
	facts broker.Facts
	ok    bool
	read  time.Time
}

// freshPaper is how long facts are believed.
const freshPaper = 10 * time.Second

// of returns the facts of the process of a holding.
func (p *papers) of(now time.Time, who host.Process) (broker.Facts, bool) {
	if p.simulated {
		return broker.Facts{PID: who.PID, UID: uint32(who.UID)}, true
	}
	if now.Sub(p.swept) > freshPaper {
		for t, known := range p.known {
			if now.Sub(known.read) > freshPaper {
				delete(p.known, t)
			}
		}
		p.swept = now
	}
	t := action.Target{PID: who.PID, Start: who.Start}
	known, there := p.known[t]
	if !there || now.Sub(known.read) > freshPaper {
		f, err := broker.FactsOf(p.procfs, who.PID)
		known = paper{f, err == nil && !p.ends(who.PID), now}
		if p.known == nil {
			p.known = map[action.Target]paper{}
		}
		p.known[t] = known
	}
	return known.facts, known.ok
}

// pfExiting marks a thread that is about to end in field 9 of its stat
// (linux/sched.h).
const pfExiting = 0x00000004

// ends reports whether a process is about to end, all its threads: its session
// has ended then, and the driver may not have let go of what it had.
func (p *papers) ends(pid int) bool {
	dir := filepath.Join(p.procfs, strconv.Itoa(pid), "task")
	threads, _ := os.ReadDir(dir) // it is gone, or these are those that were there
	return !slices.ContainsFunc(threads, func(thread os.DirEntry) bool {
		line, _ := os.ReadFile(filepath.Join(dir, thread.Name(), "stat"))
		fields := bytes.Fields(line[bytes.LastIndexByte(line, ')')+1:]) // the name, in brackets, may contain anything
		if len(fields) < 7 {
			return false
		}
		flags, err := strconv.ParseUint(string(fields[6]), 10, 64)
		return err == nil && flags&pfExiting == 0
	})
}

// tenant returns whose the process of a holding is, by the policy; empty where
// it has ended, and while its workload's name is asked for.
func (p *papers) tenant(by *policy.Policy, now time.Time, h collectors.Holding) string {
	if h.Process.Workload == nil {
		return ""
	}
	f, ok := p.of(now, h.Process)
	if !ok {
		return ""
	}
	return by.Whose(f, h.Process.Workload)
}

// mpsServer is what NVIDIA calls the program.
const mpsServer = "nvidia-cuda-mps-server"

// expose makes those that only call themselves MPS's server what they are:
// root's program of that name is it.
func (p *papers) expose(now time.Time, all []collectors.Holding) []collectors.Holding {
	for i, h := range all {
		if h.Kind != collectors.KindServer || p.simulated {
			continue
		}
		var st unix.Stat_t
		f, ok := p.of(now, h.Process)
		err := unix.Stat(filepath.Join(p.procfs, fmt.Sprint(h.Process.PID), "exe"), &st)
		if !ok || err != nil || filepath.Base(f.Exe) != mpsServer || st.Uid != 0 || st.Mode&(unix.S_IWGRP|unix.S_IWOTH) != 0 {
			all[i].Kind = "compute"
		}
	}
	return all
}
