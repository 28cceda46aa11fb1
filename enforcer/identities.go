package enforcer

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"gpusteward/collectors"
	"gpusteward/collectors/host"
	"gpusteward/enforcer/action"
	"gpusteward/enforcer/broker"
	"gpusteward/enforcer/policy"
	"gpusteward/internal/procs"
)

// An identityCache keeps the facts of long-lived processes without a session
// for a while.
type identityCache struct {
	procfs    string
	simulated bool // the processes are simulated: real ones have the same PIDs
	known     map[action.Target]identity
	swept     time.Time
}

type identity struct {
	facts broker.Facts
	ok    bool
	read  time.Time
}

// identityLifetime is how long facts are used.
const identityLifetime = 10 * time.Second

// of returns the facts of a device process.
func (p *identityCache) of(now time.Time, who host.Process) (broker.Facts, bool) {
	if p.simulated {
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
	t := action.Target{PID: who.PID, Start: who.Start}
	known, there := p.known[t]
	if !there || now.Sub(known.read) > identityLifetime {
		f, err := broker.FactsOf(p.procfs, who.PID)
		if errors.Is(err, procs.ErrLate) {
			return known.facts, known.ok // it is asked again at the next tick
		}
		known = identity{f, err == nil && !p.ends(who.PID), now}
		if p.known == nil {
			p.known = map[action.Target]identity{}
		}
		p.known[t] = known
	}
	return known.facts, known.ok
}

// ends reports whether all threads of a process are about to end: its session
// has ended, and the driver may still list its memory.
func (p *identityCache) ends(pid int) bool {
	dir := filepath.Join(p.procfs, strconv.Itoa(pid), "task")
	threads, _ := os.ReadDir(dir) // on an error it is gone, or these are the threads that were there
	var names []string
	for _, thread := range threads {
		names = append(names, filepath.Join("task", thread.Name(), "stat"))
	}
	lines, err := procs.ReadFiles(p.procfs, pid, names)
	for _, line := range lines {
		if s, err := procs.ParseStat([]byte(line)); err == nil && !s.Exiting {
			return false
		}
	}
	return err == nil // a process that blocks its readers is unknown
}

// tenant returns the policy's tenant of a device process; empty if the process
// has ended, or while its workload's name is being looked up.
func (p *identityCache) tenant(by *policy.Policy, now time.Time, h collectors.DeviceProcess) string {
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

// expose gives the kind compute to processes that only pretend to be an MPS
// server; a real one is root's program of that name.
func (p *identityCache) expose(now time.Time, all []collectors.DeviceProcess) []collectors.DeviceProcess {
	for i, h := range all {
		if h.Kind != collectors.KindServer || p.simulated {
			continue
		}
		f, ok := p.of(now, h.Process)
		owner, mode, err := procs.Owner(p.procfs, h.Process.PID, "exe")
		if !ok || err != nil || filepath.Base(f.Exe) != mpsServer || owner != 0 ||
			mode&(unix.S_IWGRP|unix.S_IWOTH) != 0 {
			all[i].Kind = "compute"
		}
	}
	return all
}
