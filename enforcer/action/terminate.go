package action

import (
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"gpusteward/enforcer/audit"
	"gpusteward/enforcer/escalation"
	"gpusteward/internal/procs"
)

const (
	// killWait is the longest wait for a process to end after SIGKILL: an
	// uninterruptible sleep, as in the GPU's driver, may last for ever.
	killWait = 5 * time.Second

	// maxDying bounds the processes that are ending, each of which has a file
	// descriptor.
	maxDying = 1024
)

// A dying process has been sent SIGTERM.
type dying struct {
	Outcome
	subject  audit.Subject
	fd       int
	deadline time.Time // of the last signal
	killed   bool
}

type deaths []*dying

// An Ending is the result of a termination, once all processes of the subject
// are accounted for.
type Ending struct {
	audit.Subject
	Result   string // Done, or Failed if a process did not end
	Detail   string // for people
	Outcomes []Outcome
}

// Terminate sends SIGTERM to all processes of a group, and to those that were
// frozen with them, because these may start others. It undoes Pause so that they
// can react. Continue sends SIGKILL to those that are left after the grace. The
// result is Done if at least one of them is ending.
func (a *Actor) Terminate(now time.Time, c ProcessGroup, grace time.Duration) (result, detail string) {
	spared := a.spared()
	var all []Outcome
	for _, t := range a.frozenWith(c, spared) {
		if slices.ContainsFunc(a.dying, func(d *dying) bool { return d.Target == t }) {
			all = append(all, Outcome{Target: t, Result: escalation.Done, Detail: "is being ended"})
			continue
		}
		if len(a.dying) >= maxDying {
			all = append(all, Outcome{Target: t, Result: escalation.Failed,
				Detail: "too many processes are being ended"})
			continue
		}
		fd, _, out := a.open(t, spared, c.Check)
		if out.Result == "" {
			if out = send(fd, unix.SIGTERM, out); out.Result == escalation.Done {
				a.dying = append(a.dying, &dying{Outcome: out, subject: c.Subject, fd: fd, deadline: now.Add(grace)})
			} else {
				_ = unix.Close(fd)
			}
		}
		all = append(all, out)
	}
	detail = describe("SIGTERM", all)
	done, missed, failed := tally(all)
	switch {
	case done > 0:
		result = escalation.Done
	case failed > 0:
		return escalation.Failed, detail
	case missed > 0:
		return escalation.Missed, detail
	default:
		return escalation.Missed, "it has no processes"
	}
	if undone, text := a.Resume(c); undone == escalation.Failed {
		detail += "; " + text
	}
	return result, detail
}

// Continue advances the actions that take time, and returns the terminations
// that are complete. Call it once a second, with times that never go back, as
// those of time.Now.
func (a *Actor) Continue(now time.Time) []Ending {
	a.waited = 0
	for _, p := range a.paused {
		if p.Undo {
			a.resume(p)
		}
	}
	var over []*dying
	for _, d := range a.dying {
		switch {
		case d.fd < 0: // waits for the others of its subject
		case procs.Ended(d.fd):
			d.Result, d.Detail = escalation.Done, "it ended after SIGTERM"
			if d.killed {
				d.Detail = "it ended after SIGKILL"
			}
			over = append(over, d)
		case now.Before(d.deadline):
		case !d.killed:
			d.killed, d.deadline = true, now.Add(killWait)
			if out := send(d.fd, unix.SIGKILL, d.Outcome); out.Result == escalation.Failed {
				d.Outcome = out
				over = append(over, d)
			}
		default:
			s, err := a.status(d.PID)
			d.Result, d.Detail = escalation.Failed, d.stuck(s, err)
			over = append(over, d)
		}
	}
	return a.dying.bury(over)
}

// stuck returns why a killed process still exists.
func (t Target) stuck(s procs.Stat, err error) string {
	switch {
	case err != nil || s.Start != t.Start:
		return fmt.Sprintf("SIGKILL did not end it in %v", killWait)
	case s.State == 'D':
		return fmt.Sprintf("it is in uninterruptible sleep (state D) %v after SIGKILL: given up, the kernel ends it "+
			"when it wakes", killWait)
	}
	return fmt.Sprintf("it is in state %c %v after SIGKILL: given up", s.State, killWait)
}

// bury removes the processes whose results are known once no other process of
// their subject is dying. Until then it keeps them without a descriptor.
func (all *deaths) bury(over []*dying) []Ending {
	for _, d := range over {
		_ = unix.Close(d.fd)
		d.fd = -1
	}
	var endings []Ending
	for _, d := range over {
		waits := func(o *dying) bool { return o.subject == d.subject && o.fd >= 0 }
		told := func(e Ending) bool { return e.Subject == d.subject }
		if slices.ContainsFunc(*all, waits) || slices.ContainsFunc(endings, told) {
			continue
		}
		e := Ending{Subject: d.subject, Result: escalation.Done}
		*all = slices.DeleteFunc(*all, func(o *dying) bool {
			if o.subject != d.subject {
				return false
			}
			e.Outcomes = append(e.Outcomes, o.Outcome)
			if o.Result != escalation.Done {
				e.Result = escalation.Failed
			}
			return true
		})
		e.Detail = describe("terminate", e.Outcomes)
		endings = append(endings, e)
	}
	return endings
}

// Close gives up the processes that are ending: they have had SIGTERM, and get
// no SIGKILL.
func (a *Actor) Close() {
	for _, d := range a.dying {
		if d.fd >= 0 {
			_ = unix.Close(d.fd)
		}
	}
	a.dying = nil
}
