// Package action carries out the escalation's decisions: it pauses processes,
// resumes them, and ends them.
//
// Init, the enforcer and its ancestors are never touched. Pauses are written down
// before they happen. When the enforcer ends, paused workloads continue, and the
// next enforcer pauses them again. A workload that is its tenant's only one is
// paused by the broker, which gives it no turns; others by their cgroup or by
// signals.
package action

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"gpusteward/enforcer/audit"
	"gpusteward/enforcer/escalation"
	"gpusteward/internal/procs"
)

// A Target is a process to act on.
type Target struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // clock ticks from boot to its start; with PID, its identity
}

// An Outcome is the result of an action on one process.
type Outcome struct {
	Target
	Result string // Done, Missed or Failed
	Detail string // the reason, if it is not Done
}

// A ProcessGroup is the processes of a subject, as an audit saw them. It is not
// a process group of setpgid(2).
type ProcessGroup struct {
	audit.Subject
	Hooked, Unhooked []Target
	Check            func(pid int) bool // whether the process that has the PID now belongs to the subject
	// Hold stops the turns of its hooked processes at the broker, or starts
	// them again; nil: there is no broker.
	Hold func(on bool) error
}

// An Actor acts on processes. It acts only through a pidfd, and only after it
// has verified that the pidfd is the target's: a process that has since
// received the PID is missed, never hit. An Actor does not wait: actions that
// take time go on in Continue. One goroutine may use it. Set the roots; the
// rest may be zero.
type Actor struct {
	ProcFS   string               // "/proc"
	CgroupFS string               // "/sys/fs/cgroup"
	Keep     func([]Paused) error // saves the record of pauses, before each pause; nil: it is not saved

	paused map[audit.Subject]*Paused
	dying  []*dying
}

// pfKthread marks kernel threads in field 9 of /proc/PID/stat (linux/sched.h).
const pfKthread = 0x00200000

// status is the content of /proc/PID/stat.
type status struct {
	state  byte
	parent int
	kernel bool // it is a kernel thread
	start  uint64
}

// status reads /proc/PID/stat.
func (a *Actor) status(pid int) (status, error) {
	fields, err := procs.Stat(a.ProcFS, pid)
	if err != nil {
		return status{}, err
	}
	if len(fields) < 20 {
		return status{}, fmt.Errorf("read stat of %d: %d fields", pid, len(fields))
	}
	parent, err1 := strconv.Atoi(string(fields[1]))
	flags, err2 := strconv.ParseUint(string(fields[6]), 10, 64)
	start, err3 := strconv.ParseUint(string(fields[19]), 10, 64)
	return status{state: fields[0][0], parent: parent, kernel: flags&pfKthread != 0, start: start},
		errors.Join(err1, err2, err3)
}

// Alive reports whether a target still exists. One that cannot be read counts as
// alive.
func (a *Actor) Alive(t Target) bool {
	s, err := a.status(t.PID)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return false
	}
	return err != nil || s.start == t.Start && s.state != 'Z' && s.state != 'X'
}

// spared returns the processes that are never acted on, and the reasons: this
// process and its ancestors.
func (a *Actor) spared() map[int]string {
	all := map[int]string{1: "it is init"}
	why := "it is the enforcer"
	for pid := os.Getpid(); pid > 1 && all[pid] == ""; why = "the enforcer descends from it" {
		all[pid] = why
		s, err := a.status(pid)
		if err != nil {
			s.parent = os.Getppid() // the best guess without stat
		}
		pid = s.parent
	}
	return all
}

// open returns a pidfd of a target, which the caller closes, and the target's
// status. There is no pidfd if Result is set.
func (a *Actor) open(t Target, spared map[int]string, check func(pid int) bool) (fd int, s status, out Outcome) {
	fd = -1
	refuse := func(result, format string, args ...any) (int, status, Outcome) {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
		return -1, s, Outcome{Target: t, Result: result, Detail: fmt.Sprintf(format, args...)}
	}
	if t.PID <= 0 {
		return refuse(escalation.Failed, "refused: %d is not a process", t.PID)
	}
	fd, err := unix.PidfdOpen(t.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return refuse(escalation.Missed, "it has ended")
	} else if err != nil {
		return refuse(escalation.Failed, "refused: open its pidfd: %v", err)
	}
	s, err = a.status(t.PID)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ESRCH):
		return refuse(escalation.Missed, "it has ended")
	case err != nil:
		return refuse(escalation.Failed, "refused: %v", err)
	case s.start != t.Start:
		return refuse(escalation.Missed, "its PID is another process's now")
	case s.kernel:
		return refuse(escalation.Failed, "refused: it is a kernel thread")
	case spared[t.PID] != "":
		return refuse(escalation.Failed, "refused: %s", spared[t.PID])
	case check != nil && !check(t.PID):
		return refuse(escalation.Missed, "it no longer belongs to the workload")
	case ended(fd): // the status may be another process's
		return refuse(escalation.Missed, "it has ended")
	}
	return fd, s, Outcome{Target: t}
}

// ended reports whether all threads of a pidfd's process have ended.
func ended(fd int) bool {
	poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(poll, 0)
	return err == nil && n > 0
}

// Signal sends a signal to each target that is still the same process and
// passes check; check may be nil.
func (a *Actor) Signal(targets []Target, check func(pid int) bool, sig unix.Signal) []Outcome {
	spared := a.spared()
	all := make([]Outcome, 0, len(targets))
	for _, t := range targets {
		fd, _, out := a.open(t, spared, check)
		if out.Result == "" {
			out = send(fd, sig, out)
			_ = unix.Close(fd)
		}
		all = append(all, out)
	}
	return all
}

// send sends a signal through a pidfd.
func send(fd int, sig unix.Signal, out Outcome) Outcome {
	switch err := unix.PidfdSendSignal(fd, sig, nil, 0); {
	case err == nil:
		out.Result = escalation.Done
	case errors.Is(err, unix.ESRCH):
		out.Result, out.Detail = escalation.Missed, "it has ended"
	default:
		out.Result, out.Detail = escalation.Failed, fmt.Sprintf("send %s: %v", unix.SignalName(sig), err)
	}
	return out
}

// tally counts outcomes by result.
func tally(all []Outcome) (done, missed, failed int) {
	for _, o := range all {
		switch o.Result {
		case escalation.Done:
			done++
		case escalation.Missed:
			missed++
		default:
			failed++
		}
	}
	return done, missed, failed
}

// describe summarises outcomes for people: their numbers, and the first few
// that went wrong.
func describe(what string, all []Outcome) string {
	done, missed, failed := tally(all)
	text := fmt.Sprintf("%s: %d done, %d missed, %d failed", what, done, missed, failed)
	var details []string
	for _, o := range all {
		if o.Detail != "" && len(details) < 4 {
			details = append(details, fmt.Sprintf("%d: %s", o.PID, o.Detail))
		}
	}
	if len(details) > 0 {
		text += " (" + strings.Join(details, "; ") + ")"
	}
	return text
}
