package host

import (
	"os"
	"slices"
	"time"
)

// recalled is how long a process is remembered after it is no longer known.
const recalled = 10 * time.Minute

// Recall returns the process that had the PID at a time in the last ten
// minutes, or false if none is known: the current process, or one that was
// looked up before it ended. It never returns a process that began later,
// within the one-second precision of the boot time.
func (t *Table) Recall(pid int, at time.Time) (Process, bool) {
	const exact = time.Second
	if p, err := t.Lookup(pid); err == nil && !p.Began.After(at.Add(exact)) {
		return p, true
	}
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range slices.Backward(t.past) {
		if e.PID == pid && !e.Began.After(at.Add(exact)) && !at.After(e.forgotten.Add(exact)) &&
			now.Sub(e.forgotten) <= recalled {
			return t.process(e, now), true
		}
	}
	return Process{}, false
}

// initialPIDs is the kernel's fixed name of the initial PID namespace
// (PROC_PID_INIT_INO).
const initialPIDs = "pid:[4026531836]"

// InitialPIDs reports whether this process is in the initial PID namespace,
// whose PIDs appear in the kernel's log.
func InitialPIDs() bool {
	name, err := os.Readlink("/proc/self/ns/pid")
	return err == nil && name == initialPIDs
}

// remember keeps an entry that is no longer known, and drops the oldest if
// there is no room.
func (t *Table) remember(e *entry) {
	e.forgotten = time.Now()
	if t.past = append(t.past, e); len(t.past) > mostKnown {
		t.past = slices.Delete(t.past, 0, 1)
	}
}

// forgetPast drops entries that are too old to be recalled.
func (t *Table) forgetPast(now time.Time) {
	old := 0
	for old < len(t.past) && now.Sub(t.past[old].forgotten) > recalled {
		old++
	}
	t.past = slices.Delete(t.past, 0, old)
}
