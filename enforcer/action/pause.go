package action

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"gpusteward/enforcer/audit"
	"gpusteward/enforcer/escalation"
	"gpusteward/internal/procs"
)

// Ways to pause, as named in Steps.Pause.
const (
	byBroker  = "broker"
	byFreezer = "freezer"
	bySignal  = "signal"
)

// Bounds of the record of paused subjects.
const (
	maxPaused  = 1024
	maxStopped = 4096
)

// A Paused is the record of a pause, from which this enforcer or the next one
// can undo it. Holds at the broker are not in it: they end with the broker.
type Paused struct {
	Tenant   string   `json:"tenant"`
	Workload string   `json:"workload"`
	Frozen   []Frozen `json:"frozen,omitempty"`
	Stopped  []Target `json:"stopped,omitempty"`
	Undo     bool     `json:"undo,omitempty"` // it should resume, and has not yet
}

func (p *Paused) subject() audit.Subject {
	return audit.Subject{Tenant: p.Tenant, Workload: p.Workload}
}

// Paused returns the paused subjects in order; Keep gets the same list.
func (a *Actor) Paused() []Paused {
	var all []Paused
	for _, p := range a.paused {
		c := *p
		c.Frozen, c.Stopped = slices.Clone(p.Frozen), slices.Clone(p.Stopped)
		all = append(all, c)
	}
	slices.SortFunc(all, func(x, y Paused) int { return audit.Compare(x.subject(), y.subject()) })
	return all
}

// Restore takes over the subjects that an earlier enforcer paused. Those that
// stay paused are paused again by the caller; the others resume.
func (a *Actor) Restore(all []Paused) {
	a.paused = map[audit.Subject]*Paused{}
	for _, p := range all[:min(len(all), maxPaused)] {
		p.Frozen = slices.DeleteFunc(slices.Clone(p.Frozen),
			func(f Frozen) bool { return !filepath.IsLocal(strings.TrimPrefix(f.Path, "/")) })
		p.Stopped = slices.DeleteFunc(slices.Clone(p.Stopped), func(t Target) bool { return t.PID <= 1 })
		a.paused[p.subject()] = &p
	}
}

func (a *Actor) keep() error {
	if a.Keep == nil {
		return nil
	}
	return a.Keep(a.Paused())
}

// Pause stops every process of a group. The hooked processes get no turns, if
// broker is one of the ways; all others are paused by the first of the other
// ways that works for all of them. It may be called again for processes that
// came later. If the result is Failed, no process of the group is paused.
func (a *Actor) Pause(c ProcessGroup, ways []string) (result, detail string) {
	targets, held := c.Unhooked, false
	var tried []string
	if len(c.Hooked) > 0 {
		if slices.Contains(ways, byBroker) && c.Hold != nil {
			err := c.Hold(true)
			if err != nil {
				tried = append(tried, fmt.Sprintf("broker: %v", err))
			} else {
				held = true
				tried = append(tried, fmt.Sprintf("broker: %d held", len(c.Hooked)))
			}
		}
		if !held {
			targets = slices.Concat(c.Hooked, c.Unhooked)
		}
	}
	switch {
	case len(targets) == 0 && held:
		return escalation.Done, strings.Join(tried, "; ")
	case len(targets) == 0:
		return escalation.Missed, "it has no processes"
	}
	for _, way := range ways {
		var text string
		switch way {
		case byFreezer:
			result, text = a.freeze(c, targets)
		case bySignal:
			result, text = a.stop(c, targets)
		default:
			continue
		}
		tried = append(tried, text)
		switch {
		case result == escalation.Done, result == escalation.Missed && held:
			return escalation.Done, strings.Join(tried, "; ")
		case result == escalation.Missed:
			return escalation.Missed, strings.Join(tried, "; ")
		}
	}
	if held || a.paused[c.Subject] != nil {
		if undone, text := a.Resume(c); undone == escalation.Failed {
			tried = append(tried, text)
		}
	}
	return escalation.Failed, fmt.Sprintf("no way to pause works for %d processes: %s", len(targets),
		strings.Join(tried, "; "))
}

// Resume undoes Pause. Continue retries what fails, until it succeeds.
func (a *Actor) Resume(c ProcessGroup) (result, detail string) {
	var failed []string
	if c.Hold != nil {
		if err := c.Hold(false); err != nil {
			failed = append(failed, fmt.Sprintf("broker: %v", err))
		}
	}
	p := a.paused[c.Subject]
	frozen, stopped := 0, 0
	if p != nil {
		frozen, stopped = len(p.Frozen), len(p.Stopped)
		p.Undo = true
		failed = append(failed, a.resume(p)...)
	}
	if len(failed) > 0 {
		return escalation.Failed, strings.Join(failed, "; ")
	}
	return escalation.Done, fmt.Sprintf("thawed %d cgroups, continued %d processes", frozen, stopped)
}

// resume undoes as much of a pause as it can, and returns the rest. A process
// that we stopped is continued, even if it belongs to another subject now.
func (a *Actor) resume(p *Paused) (failed []string) {
	p.Frozen = slices.DeleteFunc(p.Frozen, func(f Frozen) bool {
		err := a.freezer().thaw(f)
		if err != nil {
			failed = append(failed, err.Error())
		}
		return err == nil
	})
	var left []Target
	for _, out := range a.Signal(p.Stopped, nil, unix.SIGCONT) {
		if out.Result == escalation.Failed {
			left = append(left, out.Target)
			failed = append(failed, fmt.Sprintf("continue %d: %s", out.PID, out.Detail))
		}
	}
	p.Stopped = left
	if len(failed) == 0 {
		delete(a.paused, p.subject())
	}
	_ = a.keep() // harmless if it fails: the undo would run twice
	return failed
}

// record returns the record of a subject's pause; nil: there is no room for
// more.
func (a *Actor) record(s audit.Subject) *Paused {
	if a.paused == nil {
		a.paused = map[audit.Subject]*Paused{}
	}
	p := a.paused[s]
	if p == nil && len(a.paused) < maxPaused {
		p = &Paused{Tenant: s.Tenant, Workload: s.Workload}
		a.paused[s] = p
	}
	return p
}

// release forgets a subject if nothing of its pause is left.
func (a *Actor) release(p *Paused) {
	if len(p.Frozen)+len(p.Stopped) == 0 {
		delete(a.paused, p.subject())
	}
	_ = a.keep() // harmless if it fails: the undo would find nothing
}

// stop pauses targets with SIGSTOP. It records the targets first, because an
// unrecorded one could stay stopped for ever.
func (a *Actor) stop(c ProcessGroup, targets []Target) (result, detail string) {
	p := a.record(c.Subject)
	if p == nil || len(p.Stopped)+len(targets) > maxStopped {
		return escalation.Failed, "signal: too many processes are paused"
	}
	spared := a.spared()
	var all, open []Outcome
	var fds []int
	defer func() {
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
	}()
	for _, t := range targets {
		fd, s, out := a.open(t, spared, c.Check)
		if fd >= 0 {
			fds = append(fds, fd)
		}
		switch {
		case out.Result != "":
			all = append(all, out)
		case s.State == 'T': // by us, or by its own user, who may continue it
			out.Result = escalation.Done
			all = append(all, out)
			fds = fds[:len(fds)-1]
			_ = unix.Close(fd)
		default:
			open = append(open, out)
		}
	}
	var fresh []Target
	for _, o := range open {
		if !slices.Contains(p.Stopped, o.Target) {
			fresh = append(fresh, o.Target)
		}
	}
	p.Stopped, p.Undo = append(p.Stopped, fresh...), false
	if len(fresh) > 0 {
		if err := a.keep(); err != nil {
			p.Stopped = p.Stopped[:len(p.Stopped)-len(fresh)]
			a.release(p)
			return escalation.Failed, fmt.Sprintf("signal: would be forgotten in a restart: %v", err)
		}
	}
	for i, o := range open {
		all = append(all, send(fds[i], unix.SIGSTOP, o))
	}
	result, detail = p.stopped(all)
	a.release(p)
	return result, detail
}

// stopped concludes a stop with known outcomes.
func (p *Paused) stopped(all []Outcome) (result, detail string) {
	done, _, failed := tally(all)
	drop := map[Target]bool{}
	for _, o := range all {
		drop[o.Target] = o.Result != escalation.Done
	}
	p.Stopped = slices.DeleteFunc(p.Stopped, func(t Target) bool { return drop[t] })
	switch {
	case failed > 0:
		result = escalation.Failed
	case done > 0:
		result = escalation.Done
	default:
		result = escalation.Missed
	}
	return result, describe("signal", all)
}

// Still reports whether everything of a subject that was frozen or stopped
// stands still. That takes a moment; a process in a driver call takes until the
// call ends.
func (a *Actor) Still(s audit.Subject) (bool, error) {
	p := a.paused[s]
	if p == nil {
		return false, nil
	}
	for _, f := range p.Frozen {
		g, err := a.freezer().reopen(f)
		if err == nil {
			still, readErr := g.frozen()
			g.close()
			if err = readErr; err == nil && !still {
				return false, nil
			}
		}
		if err != nil && !gone(err) {
			return false, fmt.Errorf("read the state of cgroup %s: %w", f.Path, err)
		}
	}
	for _, t := range p.Stopped {
		s, err := a.status(t.PID)
		if errors.Is(err, procs.ErrLate) || err == nil && s.Start == t.Start && s.State != 'T' && s.State != 'Z' {
			return false, nil
		}
	}
	return true, nil
}
