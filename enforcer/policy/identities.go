package policy

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"gpusteward/collectors"
	"gpusteward/collectors/host"
	"gpusteward/enforcer/broker"
	"gpusteward/internal/procs"
)

// Identities keep the facts of long-lived processes without a session for a
// while. One goroutine may use them.
type Identities struct {
	ProcFS    string
	Simulated bool // the processes are simulated: real ones have the same PIDs
	known     map[origin]identity
	swept     time.Time
}

// An origin identifies a process.
type origin struct {
	pid   int
	start uint64
}

type identity struct {
	facts broker.Facts
	ok    bool
	read  time.Time
}

// identityLifetime is how long facts are used.
const identityLifetime = 10 * time.Second

// of returns the facts of a device process.
func (p *Identities) of(now time.Time, who host.Process) (broker.Facts, bool) {
	if p.Simulated {
		return broker.Facts{PID: who.PID, UID: uint32(who.UID)}, true
	}
	if now.Sub(p.swept) > identityLifetime {
		for t, known := range p.known {
			if now.Sub(known.read) > identityLifetime {
				delete(p.known, t)
			}
		}
		p.swept = now
	}
	t := origin{who.PID, who.Start}
	known, there := p.known[t]
	if !there || now.Sub(known.read) > identityLifetime {
		f, err := broker.FactsOf(p.ProcFS, who.PID)
		if errors.Is(err, procs.ErrLate) {
			return known.facts, known.ok // it is asked again at the next tick
		}
		known = identity{f, err == nil && !p.ends(who.PID), now}
		if p.known == nil {
			p.known = map[origin]identity{}
		}
		p.known[t] = known
	}
	return known.facts, known.ok
}

// ends reports whether all threads of a process are about to end: its session
// has ended, and the driver may still list its memory.
func (p *Identities) ends(pid int) bool {
	dir := filepath.Join(p.ProcFS, strconv.Itoa(pid), "task")
	threads, _ := os.ReadDir(dir) // on an error it is gone, or these are the threads that were there
	var names []string
	for _, thread := range threads {
		names = append(names, filepath.Join("task", thread.Name(), "stat"))
	}
	lines, err := procs.ReadFiles(p.ProcFS, pid, names)
	for _, line := range lines {
		if s, err := procs.ParseStat([]byte(line)); err == nil && !s.Exiting {
			return false
		}
	}
	return err == nil // a process that blocks its readers is unknown
}

// Tenant returns the policy's tenant of a device process; empty if the process
// has ended, or while its workload's name is being looked up.
func (p *Identities) Tenant(by *Policy, now time.Time, h collectors.DeviceProcess) string {
	if h.Process.Workload == nil {
		return ""
	}
	f, ok := p.of(now, h.Process)
	if !ok {
		return ""
	}
	return by.Whose(f, h.Process.Workload)
}

// mpsServer is NVIDIA's name of the program.
const mpsServer = "nvidia-cuda-mps-server"

// Expose gives the kind compute to processes that only pretend to be an MPS
// server; a real one is root's program of that name.
func (p *Identities) Expose(now time.Time, all []collectors.DeviceProcess) []collectors.DeviceProcess {
	for i, h := range all {
		if h.Kind != collectors.KindServer || p.Simulated {
			continue
		}
		f, ok := p.of(now, h.Process)
		owner, mode, err := procs.Owner(p.ProcFS, h.Process.PID, "exe")
		if !ok || err != nil || filepath.Base(f.Exe) != mpsServer || owner != 0 ||
			mode&(unix.S_IWGRP|unix.S_IWOTH) != 0 {
			all[i].Kind = "compute"
		}
	}
	return all
}
