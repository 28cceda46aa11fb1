package swap

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"time"

	"gpusteward/collectors"
	"gpusteward/enforcer/action"
	"gpusteward/enforcer/suspend"
	"gpusteward/internal/procs"
)

// maxThreads is how many threads of a suspended process are looked at.
const maxThreads = 1024

// futex is the number of the system call, as /proc/PID/task/TID/syscall has it.
var futex = map[string]string{"amd64": "202", "arm64": "98"}[runtime.GOARCH]

// A use is what is known of a process's use of its GPUs.
type use struct {
	sm   float64 // seconds of the GPU's time
	last time.Time

	// Of a process that gives way: what its threads waited for, by TID, before it was
	// suspended and at the last look.
	first, before map[int]string
	stuck         bool // a thread waits that did not: for the driver
}

// driverThread matches the names of the threads that the driver itself starts in a process.
var driverThread = regexp.MustCompile(`^cuda(-EvtHandlr|[0-9]{11})\n$`)

// waits returns on which futex each thread of a process waits, or for which other
// system call. It leaves out the driver's own threads. It fails if the kernel does not tell.
func waits(procfs string, pid int) (map[int]string, error) {
	dir := filepath.Join(procfs, strconv.Itoa(pid), "task")
	tasks, _ := os.ReadDir(dir)
	var names []string
	for _, task := range tasks[:min(len(tasks), maxThreads)] {
		if name, _ := os.ReadFile(filepath.Join(dir, task.Name(), "comm")); !driverThread.Match(name) {
			names = append(names, filepath.Join("task", task.Name(), "syscall"))
		}
	}
	calls, err := procs.ReadFiles(procfs, pid, names)
	all := map[int]string{}
	for name, text := range calls {
		tid, _ := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		if f := strings.Fields(text); len(f) > 1 && f[0] == futex {
			all[tid] = "futex " + f[1]
		} else if len(f) > 0 {
			all[tid] = f[0]
		}
	}
	return all, err
}

// look notes whether a thread of a process that gave way, or is about to, waits for the
// driver: it waits on a futex on which it did not wait before, and still does at the next
// look. Measured on driver 580: so does each call of a process that is locked, and it takes
// no processor time. The driver's thread cuda-EvtHandlr does so as long as the process is
// locked.
func (u *use) look(procfs string, pid int) {
	now, err := waits(procfs, pid)
	if err != nil {
		return
	}
	if u.first == nil {
		u.first = now
	}
	for tid, what := range now {
		if strings.HasPrefix(what, "futex ") && u.before[tid] == what && u.first[tid] != what {
			u.stuck = true
		}
	}
	u.before = now
}

// uses are those of all processes on GPUs, and of the suspended ones.
type uses map[action.Target]*use

// look notes which processes used their GPUs since the last look. Held reports whether a
// process has a thread that a guard holds.
func (all uses) look(now time.Time, procfs string, listed []collectors.DeviceProcess, suspended []suspend.Record,
	held func(pid int) bool) {
	seen := map[action.Target]bool{}
	of := func(t action.Target) *use {
		u := all[t]
		if u == nil {
			u = &use{last: now}
			all[t] = u
		}
		return u
	}
	for _, r := range suspended {
		for _, p := range r.Processes {
			seen[p.Target] = true
			u := of(p.Target)
			u.last = now
			if r.Phase != suspend.Resuming && r.Yields {
				u.look(procfs, p.PID)
				u.stuck = u.stuck || held(p.PID)
			} else {
				u.first, u.before, u.stuck = nil, nil, false
			}
		}
	}
	for _, h := range listed {
		t := action.Target{PID: h.Process.PID, Start: h.Process.Start}
		u := of(t)
		if h.SM != u.sm { // on one of its GPUs, or the driver was reopened
			u.sm, u.last = h.SM, now
		}
		if !seen[t] { // a suspension may begin and end between two looks
			u.first, u.before, u.stuck = nil, nil, false
		}
		seen[t] = true
	}
	maps.DeleteFunc(all, func(t action.Target, _ *use) bool { return !seen[t] })
}
