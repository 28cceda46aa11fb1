// Package action carries out the escalation's decisions: it pauses processes,
// resumes them, and ends them.
//
// An Actor acts on a ProcessGroup, the processes of a workload as the audit saw
// them. A pause has ways, tried in the operator's order: the broker gives the
// hooked processes no turns, the freezer stops cgroups that are the workload's
// alone (freeze.go), or SIGSTOP stops each process. A termination is SIGTERM, a
// grace, and SIGKILL (terminate.go). Nothing waits: Continue, once a second,
// goes on with what takes time.
//
// Invariants:
//
//   - A signal goes through a pidfd, after a look at the start time: a process
//     that got the PID since is missed, never hit.
//   - Init, the enforcer and its ancestors are never touched.
//   - Pauses are written down before they happen. What cannot be written down is
//     not done.
//   - A pause that fails for one process is undone for all.
//   - When the enforcer ends, paused workloads continue, and the next enforcer
//     pauses them again.
//
// Begin with Actor in this file, and Pause in pause.go.
package action

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

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
// received the PID is missed, never hit. An Actor does not wait, except for moments
// (lateMost): actions that take time go on in Continue. One goroutine may use it. Set the roots; the
// rest may be zero.
type Actor struct {
	ProcFS   string               // "/proc"
	CgroupFS string               // "/sys/fs/cgroup"
	Keep     func([]Paused) error // saves the record of pauses, before each pause; nil: it is not saved

	paused map[audit.Subject]*Paused
	dying  deaths
	look   func(procfs string, pid int) (procs.Stat, error) // nil: procs.ReadStat
	waited time.Duration                                    // for late looks, since Continue
}

// lateMost is for how long between two calls of Continue an action waits for late looks at its targets.
const lateMost = 100 * time.Millisecond

func (a *Actor) status(pid int) (procs.Stat, error) {
	if a.look != nil {
		return a.look(a.ProcFS, pid)
	}
	return procs.ReadStat(a.ProcFS, pid)
}

// known is status for a process that is to be acted on: on a busy host, an answer that is late is there
// in a moment.
func (a *Actor) known(pid int) (procs.Stat, error) {
	for {
		s, err := a.status(pid)
		if !errors.Is(err, procs.ErrLate) || a.waited >= lateMost {
			return s, err
		}
		time.Sleep(time.Millisecond)
		a.waited += time.Millisecond
	}
}

// Alive reports whether a target still exists. One that cannot be read counts as
// alive.
func (a *Actor) Alive(t Target) bool {
	s, err := a.status(t.PID)
	if procs.Gone(err) {
		return false
	}
	return err != nil || s.Start == t.Start && s.State != 'Z' && s.State != 'X'
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
			s.Parent = os.Getppid() // the best guess without stat
		}
		pid = s.Parent
	}
	return all
}

// A refusal is the reason not to act on a process.
type refusal struct{ result, detail string }

func (r refusal) Error() string { return r.detail }

// open returns a pidfd of a target, which the caller closes, and the target's
// status. There is no pidfd if Result is set.
func (a *Actor) open(t Target, spared map[int]string, check func(pid int) bool) (fd int, s procs.Stat, out Outcome) {
	if t.PID <= 0 {
		return -1, s, Outcome{t, escalation.Failed, fmt.Sprintf("refused: %d is not a process", t.PID)}
	}
	fd, err := procs.Pidfd(t.PID, func() (err error) {
		s, err = a.known(t.PID)
		switch {
		case err != nil:
			return err
		case s.Start != t.Start:
			return refusal{escalation.Missed, "its PID is another process's now"}
		case s.Kernel:
			return refusal{escalation.Failed, "refused: it is a kernel thread"}
		case spared[t.PID] != "":
			return refusal{escalation.Failed, "refused: " + spared[t.PID]}
		case check != nil && !check(t.PID):
			return refusal{escalation.Missed, "it no longer belongs to the workload"}
		}
		return nil
	})
	out = Outcome{Target: t}
	var why refusal
	switch {
	case err == nil:
	case errors.As(err, &why):
		out.Result, out.Detail = why.result, why.detail
	case procs.Gone(err):
		out.Result, out.Detail = escalation.Missed, "it has ended"
	default:
		out.Result, out.Detail = escalation.Failed, fmt.Sprintf("refused: %v", err)
	}
	return fd, s, out
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
