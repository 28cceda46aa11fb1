package enforcer

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"gpusteward/collectors"
	"gpusteward/collectors/host"
	"gpusteward/enforcer/action"
	"gpusteward/enforcer/broker"
	"gpusteward/enforcer/policy"
)

// An identityCache keeps the facts of processes without a session that do not
// end. Facts are believed for a while.
type identityCache struct {
	procfs    string
	simulated bool // the processes are: this host's of the same numbers are others
	known     map[action.Target]identity
	swept     time.Time
}

type identity struct {
	facts broker.Facts
	ok    bool
	read  time.Time
}

// identityLifetime is how long facts are believed.
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
		known = identity{f, err == nil && !p.ends(who.PID), now}
		if p.known == nil {
			p.known = map[action.Target]identity{}
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
func (p *identityCache) ends(pid int) bool {
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

// tenant returns whose a device process is, by the policy; empty where
// it has ended, and while its workload's name is asked for.
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

// mpsServer is what NVIDIA calls the program.
const mpsServer = "nvidia-cuda-mps-server"

// expose makes those that only call themselves MPS's server what they are:
// root's program of that name is it.
func (p *identityCache) expose(now time.Time, all []collectors.DeviceProcess) []collectors.DeviceProcess {
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
