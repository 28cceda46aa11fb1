package swap

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"gpusteward/enforcer/audit"
	"gpusteward/enforcer/suspend"
)

// orders are an operator's orders to suspend or resume a workload, and who waits for their end.
// Their callers hand them to Run's goroutine, which owns the rest.
type orders struct {
	suspender *suspend.Suspender
	begin     chan func()               // for Run's goroutine
	waiting   map[awaited][]chan answer // for the end of an order
}

// names reports whether the name in an order means the workload: its key, or the
// PID of one of its processes.
func names(name string, s audit.Subject, processes []suspend.Process) bool {
	pid, err := strconv.Atoi(name)
	return s.Workload == name ||
		err == nil && slices.ContainsFunc(processes, func(p suspend.Process) bool { return p.PID == pid })
}

// Suspend takes the GPU memory of a workload, which is named by its key or by
// the PID of one of its processes. It returns a message for the operator, once
// the workload is suspended or when ctx ends, whichever is first.
func (s *Swapper) Suspend(ctx context.Context, workload, why string) (string, error) {
	return s.orders.order(ctx, suspend.Suspended, func() (audit.Subject, error) {
		var found []*candidate
		var known []string
		for _, c := range candidates(s.seen, s.Suspender.Records()) {
			known = append(known, c.Workload)
			if names(workload, c.Subject, c.processes) {
				found = append(found, c)
			}
		}
		switch {
		case s.Simulated:
			return audit.Subject{}, errors.New("the GPUs are simulated: no process can be suspended")
		case len(found) == 0:
			return audit.Subject{}, fmt.Errorf("no workload %q has processes on a GPU; those that have are: %s", workload,
				cmp.Or(strings.Join(slices.Compact(known), ", "), "none"))
		case len(found) > 1:
			return audit.Subject{}, fmt.Errorf("%q has processes of several tenants, %s and %s: name the PID of one of them",
				workload, found[0].Tenant, found[1].Tenant)
		}
		c := found[0]
		r, _ := s.Suspender.Record(c.Subject)
		if err := c.joining(r).suspendable(&s.Suspender, s.Jobs); err != nil {
			return c.Subject, err
		}
		err := s.Suspender.Suspend(time.Now(), c.Subject, c.processes, why)
		if err == nil {
			s.orders.answer(awaited{c.Subject, suspend.Resuming}, "",
				errors.New("not resumed: meanwhile it was ordered to stay suspended"))
		}
		return c.Subject, err
	})
}

// Resume gives a suspended workload its GPU memory back, as Suspend takes it.
func (s *Swapper) Resume(ctx context.Context, workload, why string) (string, error) {
	return s.orders.order(ctx, suspend.Resuming, func() (audit.Subject, error) {
		var known []string
		for _, c := range candidates(s.seen, s.Suspender.Records()) {
			r, away := s.Suspender.Record(c.Subject)
			if !away {
				continue
			}
			if names(workload, c.Subject, c.processes) {
				now, err := time.Now(), error(nil)
				if !s.Release(now, c.Subject) {
					err = s.Suspender.Resume(now, c.Subject, why)
				}
				if r.Phase == suspend.Resuming {
					s.orders.answer(awaited{c.Subject, suspend.Suspended}, "",
						errors.New("not suspended: meanwhile it was ordered to be resumed"))
				}
				return c.Subject, err
			}
			known = append(known, c.Workload)
		}
		return audit.Subject{}, fmt.Errorf("no workload %q is suspended; those that are: %s", workload,
			cmp.Or(strings.Join(known, ", "), "none"))
	})
}

// An awaited is the end of a subject's suspension or resumption.
type awaited struct {
	audit.Subject
	done suspend.Phase
}

// An answer goes to the caller that gave an order.
type answer struct {
	text string
	err  error
}

// order has Run begin something, and waits until that is done.
func (o *orders) order(ctx context.Context, done suspend.Phase, do func() (audit.Subject, error)) (string, error) {
	began, ended := make(chan error, 1), make(chan answer, 1)
	select {
	case o.begin <- func() {
		of, err := do()
		if err == nil {
			if r, _ := o.suspender.Record(of); r.Phase == suspend.Suspended { // it gave way before
				ended <- answer{text: staysSuspended(r.Workload)}
			} else {
				it := awaited{of, done}
				o.waiting[it] = append(o.waiting[it], ended)
			}
		}
		began <- err
	}:
	case <-ctx.Done():
		return "", errors.New("the enforcer did not answer in time")
	}
	if err := <-began; err != nil {
		return "", err
	}
	select {
	case a := <-ended:
		return a.text, a.err
	case <-ctx.Done():
		return "this takes longer; gpusteward status shows when it is done", nil
	}
}

// answer answers all callers that await the end of a suspension or resumption.
func (o *orders) answer(it awaited, text string, err error) {
	for _, waits := range o.waiting[it] {
		waits <- answer{text, err} // it has room
	}
	delete(o.waiting, it)
}

// look answers all callers whose workload has no record any more.
func (o *orders) look() {
	for it := range o.waiting {
		switch _, is := o.suspender.Record(it.Subject); {
		case is:
		case it.done == suspend.Suspended:
			o.answer(it, "", errors.New("its processes have ended"))
		default:
			o.answer(it, it.Workload+" is no longer suspended: it goes on, or has ended.", nil)
		}
	}
}

func staysSuspended(workload string) string {
	return workload + " is suspended, and stays so. gpusteward resume-process gives its GPU memory back."
}

// told describes the end of an order to the operator. Pids are of processes that could not be guarded.
func told(end suspend.End, pids []int) (string, error) {
	switch mib := sum(end.Bytes()) >> 20; {
	case len(end.Lost) > 0:
		return "", errors.Join(fmt.Errorf("the driver broke processes %v: they can no longer use their GPU", end.Lost),
			end.Err)
	case end.Err != nil && end.Joined:
		return "", fmt.Errorf("its new processes are not suspended, and go on; the others stay suspended: %w", end.Err)
	case end.Err != nil && end.Done == suspend.Suspended:
		return "", fmt.Errorf("not suspended, and it goes on: %w", end.Err)
	case end.Err != nil:
		return "", fmt.Errorf("not resumed yet, this is tried again: %w", end.Err)
	case end.Done == suspend.Suspended && len(end.Processes) == 0:
		return staysSuspended(end.Workload), nil
	case end.Done == suspend.Suspended:
		text := fmt.Sprintf("%s is suspended: %d MiB of GPU memory freed in %.1f s. gpusteward resume-process gives it back.",
			end.Workload, mib, end.Took.Seconds())
		if len(pids) > 0 {
			text += fmt.Sprintf(" Processes %v run without the hook, and something else traces them: the driver may end one that "+
				"waits for its GPU meanwhile.", pids)
		}
		return text, nil
	default:
		return fmt.Sprintf("%s runs again: %d MiB of GPU memory restored in %.1f s.", end.Workload, mib,
			end.Took.Seconds()), nil
	}
}
