package worker

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A Witness finds out whether the kernel blocks a thread, from the thread's state and system call.
// Elapsed time is no evidence: on a busy host, any thread may wait long for a processor.
// The zero value is ready. Its methods may be called concurrently.
type Witness struct {
	Every  time.Duration // between two looks that count; 0: LookEvery
	Enough int           // looks in a row that must see the thread wait in the same place; 0: 100

	mu    sync.Mutex
	where string    // it waited when it was last seen; empty: it did not
	looks int       // in a row that saw it wait there
	last  time.Time // look that counted
}

// The defaults of a Witness.
const (
	LookEvery = 10 * time.Millisecond
	enough    = 100
)

// Interval returns the time between two looks that count.
func (w *Witness) Interval() time.Duration { return cmp.Or(w.Every, LookEvery) }

// Held looks at a thread, and reports whether the kernel holds it. Its directory is
// /proc/PID/task/TID; without it, nothing is held.
func (w *Witness) Held(task string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	where := waits(task)
	now := time.Now()
	switch {
	case where == "" || where != w.where:
		w.looks, w.last = 0, now
	case now.Sub(w.last) >= w.Interval():
		w.looks, w.last = w.looks+1, now
	}
	w.where = where
	return w.looks >= cmp.Or(w.Enough, enough)
}

// waits returns where a thread waits for the kernel: in a sleep that only its end can
// interrupt, or in a call of ptrace. It is empty for one that runs or is runnable, and for
// one that waits for something else, such as its turn among the threads of Go.
func waits(task string) string {
	status, _ := os.ReadFile(task + "/status") // none: it has ended
	call, _ := os.ReadFile(task + "/syscall")  // "running" as long as it is runnable
	after := func(key string) string {
		_, rest, _ := bytes.Cut(status, []byte("\n"+key+":\t"))
		value, _, _ := bytes.Cut(rest, []byte("\n"))
		return string(value)
	}
	switch state := after("State"); {
	case state == "":
		return ""
	case state[0] == 'D': // in one sleep, if it did not run in between
		return "D" + string(call) + after("voluntary_ctxt_switches")
	case state[0] == 'S' && bytes.HasPrefix(call, fmt.Appendf(nil, "%d ", unix.SYS_PTRACE)):
		return string(call) // signals have it wait again
	}
	return ""
}
