package suspend

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"gpusteward/enforcer/audit"
	"gpusteward/internal/span"
)

// Bounds.
const (
	maxSuspended = 1024            // workloads
	maxMoving    = 8               // workloads that are suspended at a time, and as many that are resumed; others wait
	retryFirst   = 2 * time.Second // after a resume that failed; doubles; at a tick of a second
	retryLast    = time.Minute     // the same
)

// An End is the result of a suspension or a resumption.
type End struct {
	Record
	Done Phase // Suspended or Resuming: what ended
	Err  error // why it failed, with a Reason: a suspension was undone, a resumption is tried again
	Took time.Duration
	Lost []int // PIDs of processes that the driver broke
	// Processes are only those that started in a suspended workload; the others are
	// suspended in any case.
	Joined bool
}

// Totals are counters since the start of the process.
type Totals struct {
	Suspended, Resumed uint64 // workloads
	SuspendSeconds     float64
	ResumeSeconds      float64
	Refused            map[Reason]uint64 // suspensions and resumptions that failed
	Broken             uint64            // processes that the driver broke
}

func (t *Totals) refused(err error) {
	if t.Refused == nil {
		t.Refused = map[Reason]uint64{}
	}
	t.Refused[ReasonOf(err)]++
}

// A Suspender suspends workloads and resumes them. It owns the records, and one goroutine may use
// it. Its methods do not wait for the driver, for which other goroutines use its Mover: Look returns
// what has ended.
type Suspender struct {
	Mover
	Tick audit.Tick           // from one call of Look to the next
	Keep func([]Record) error // saves the records; nil: they are not saved
	// is told when Close begins to resume a workload, and when it has ended with all of them; nil: nobody is
	Returning func(is bool)

	work       records
	away, back chan struct{} // have an element for each workload that is being suspended, or resumed
	totals     Totals
}

// Records returns all records in order.
func (s *Suspender) Records() []Record {
	all := make([]Record, 0, len(s.work))
	for _, w := range s.work {
		all = append(all, w.Record)
	}
	slices.SortFunc(all, func(x, y Record) int { return audit.Compare(x.Subject(), y.Subject()) })
	return all
}

// Record returns the record of a subject.
func (s *Suspender) Record(of audit.Subject) (Record, bool) {
	w := s.work[of]
	if w == nil {
		return Record{}, false
	}
	return w.Record, true
}

// Totals returns the counters.
func (s *Suspender) Totals() Totals {
	t := s.totals
	t.Refused = maps.Clone(t.Refused)
	return t
}

// Restore takes over the records of an earlier enforcer. A workload that it had
// not finished to suspend is resumed.
func (s *Suspender) Restore(now time.Time, all []Record) {
	s.work = records{}
	for _, r := range all[:min(len(all), maxSuspended)] {
		r.Processes = slices.DeleteFunc(slices.Clone(r.Processes), func(p Process) bool { return p.PID <= 1 })
		defer s.guard(r.Processes).Wait()
		w := &work{Record: r, again: now}
		s.work[r.Subject()] = w
		switch fresh := len(r.fresh()); {
		case r.Phase == Suspended:
		case r.Phase == Suspending && fresh > 0 && fresh < len(r.Processes):
			w.undo = true
		default:
			w.Phase, w.Since, w.Processes = Resuming, now, r.settled()
			w.Why = "the last enforcer ended while the workload was " + string(r.Phase)
		}
	}
}

func (s *Suspender) keep() error {
	if s.Keep == nil {
		return nil
	}
	return s.Keep(s.Records())
}

// Suspend begins to suspend all processes of a subject, or returns a Refusal.
func (s *Suspender) Suspend(now time.Time, of audit.Subject, processes []Process, why string) error {
	err := s.begin(now, of, processes, why, false)
	if err != nil {
		s.totals.refused(err)
	}
	return err
}

// GiveWay is Suspend for a workload that comes back when it uses the GPU again.
func (s *Suspender) GiveWay(now time.Time, of audit.Subject, processes []Process, why string) error {
	err := s.begin(now, of, processes, why, true)
	if err != nil {
		s.totals.refused(err)
	}
	return err
}

func (s *Suspender) begin(now time.Time, of audit.Subject, processes []Process, why string, yields bool) error {
	if w := s.work[of]; w != nil {
		return s.stay(now, w, processes, why, yields)
	}
	if len(processes) == 0 {
		return refuse(NotCUDA, "it has no processes on a GPU")
	}
	if len(s.work) >= maxSuspended {
		return refuse(Other, "%d workloads are suspended, which is the most", maxSuspended)
	}
	w := &work{Record: Record{Tenant: of.Tenant, Workload: of.Workload, Why: why, Began: now, Yields: yields}}
	if s.work == nil {
		s.work = records{}
	}
	s.work[of] = w
	if err := s.join(now, w, processes); err != nil {
		delete(s.work, of)
		return err
	}
	return nil
}

// stay has a subject stay away that is suspended or on its way, and suspends those of
// its processes that are new. An order cancels a resumption.
func (s *Suspender) stay(now time.Time, w *work, processes []Process, why string, yields bool) error {
	fresh := w.Joining(processes)
	joins := w.Phase == Suspended && len(fresh) > 0
	if !joins && (yields || !w.Yields && w.Phase != Resuming && w.wake == "") {
		return refuse(WrongState, "it is %s already", w.Phase)
	}
	if joins {
		if err := s.join(now, w, fresh); err != nil {
			return err
		}
	}
	if !yields {
		w.Yields, w.Why, w.wake = false, why, "" // it gave way or came back, and now it is to stay away
	}
	switch {
	case w.Phase == Resuming && w.ends == nil:
		s.keepAway(now, w)
	case w.Phase == Resuming:
		w.stays = true
	}
	_ = s.keep() // harmless if it fails: it would come back after a restart
	return nil
}

// keepAway suspends a workload whose resumption was not completed.
func (s *Suspender) keepAway(now time.Time, w *work) {
	w.Phase, w.Since, w.stays = Suspending, now, false
	processes, none := w.Processes, w.Record
	none.Processes = nil
	s.start(w, none, func(of span.Parent) ([]int, error) { return s.suspend(of, processes) })
}

// Join begins to suspend processes that started in a suspended workload.
func (s *Suspender) Join(now time.Time, of audit.Subject, processes []Process) error {
	w := s.work[of]
	var err error = refuse(WrongState, "it is not suspended, or has no other processes")
	if w != nil && w.Phase == Suspended && len(w.Joining(processes)) > 0 {
		err = s.join(now, w, w.Joining(processes))
	}
	if err != nil {
		s.totals.refused(err)
	}
	return err
}

// join begins to suspend further processes of a record.
func (s *Suspender) join(now time.Time, w *work, fresh []Process) error {
	was := w.Record
	w.Processes = slices.Clone(was.Processes)
	for _, p := range fresh {
		p.New = true
		w.Processes = append(w.Processes, p)
	}
	w.Phase, w.Since = Suspending, now
	err := s.room(w.Record, fresh, s.work.arriving(w))
	if err == nil {
		if failed := s.keep(); failed != nil {
			err = refuse(Other, "it would be forgotten after a restart: %v", failed)
		}
	}
	if err != nil {
		w.Record = was
		return err
	}
	moves := w.Record
	moves.Processes = w.fresh()
	s.start(w, moves, func(of span.Parent) ([]int, error) { return s.suspend(of, moves.Processes) })
	return nil
}

// Refuse counts and returns a Refusal of the caller's.
func (s *Suspender) Refuse(reason Reason, text string) error {
	err := refuse(reason, "%s", text)
	s.totals.refused(err)
	return err
}

// Resume begins to resume a subject, or has it resumed once it is suspended, for a reason
// that is not empty. It returns an error if the subject is not suspended.
func (s *Suspender) Resume(now time.Time, of audit.Subject, why string) error {
	w := s.work[of]
	switch {
	case w == nil:
		return errors.New("it is not suspended")
	case w.Phase == Suspending:
		w.wake = why
	case w.Phase == Suspended:
		s.resume(now, w, why)
	case w.ends == nil:
		w.again = now
	default:
		w.stays = false
	}
	return nil
}

// Waits reports whether a resumption waits to be tried again, be it of new processes that
// could not be suspended.
func (s *Suspender) Waits(of audit.Subject) bool {
	w := s.work[of]
	return w != nil && w.ends == nil && (w.Phase == Resuming || w.undo)
}

// Retry tries a resumption again that found no room: there is room now. One that failed in
// the driver keeps its time.
func (s *Suspender) Retry(now time.Time, of audit.Subject) {
	if s.Waits(of) && s.work[of].full {
		s.work[of].again = now
	}
}

// resume begins a resumption.
func (s *Suspender) resume(now time.Time, w *work, why string) {
	w.Phase, w.Since, w.again, w.wait, w.Why = Resuming, now, now, 0, why
	_ = s.keep() // harmless if it fails: the next enforcer finds it half resumed, and resumes the rest
	s.try(w)
}

func (s *Suspender) try(w *work) {
	back, others := w.back(), s.work.returning()
	s.start(w, back, func(of span.Parent) ([]int, error) { return s.giveBack(of, back.Processes, others) })
}

// start does something about the processes of r, once few others are on the same way: so
// suspensions never keep a resumption waiting. The result comes by w.ends. What is done belongs to a span.
func (s *Suspender) start(w *work, r Record, do func(of span.Parent) (lost []int, err error)) {
	if s.away == nil {
		s.away, s.back = make(chan struct{}, maxMoving), make(chan struct{}, maxMoving)
	}
	way, what := s.away, "suspender.suspend"
	if r.Phase == Resuming || w.undo {
		way, what = s.back, "suspender.give_back"
	}
	ends := make(chan End, 1)
	w.ends = ends
	go func() {
		a := s.Spans.Begin(what, span.Parent{})
		way <- struct{}{}
		defer func() { <-way }()
		began := time.Now()
		lost, err := do(a.Child())
		a.End(failure(err), "tenant", r.Tenant, "workload", r.Workload, "processes", len(r.Processes))
		ends <- End{Record: r, Done: r.Phase, Err: err, Took: time.Since(began), Lost: lost}
	}()
}

// Look returns what has ended since the last call, forgets processes that ended,
// and tries again to resume. Call it each tick.
func (s *Suspender) Look(now time.Time) (ends []End) {
	all := s.work.order()
	for _, w := range all {
		select {
		case end := <-w.ends: // nil: never
			w.ends = nil
			ends = append(ends, s.end(now, w, end)...)
		default:
		}
		if w.ends != nil {
			continue
		}
		w.Processes = slices.DeleteFunc(slices.Clone(w.Processes), func(p Process) bool { return !s.Alive(p.Target) })
		switch {
		case s.work[w.Subject()] != w: // it has just ended
		case len(w.Processes) == 0:
			delete(s.work, w.Subject())
		case w.Phase == Suspended && w.wake != "":
			s.resume(now, w, w.wake)
		case (w.Phase == Resuming || w.undo) && !now.Before(w.again):
			s.try(w)
		}
	}
	s.Guard.Keep(s.work.pids())
	if len(all) > 0 {
		_ = s.keep() // the enforcer saves its whole state each second, and logs a failure
	}
	return ends
}

// Close waits lastCall for calls that were under way when Life ended, and as long again for what the kernel
// holds. The driver goes on with them, and the next enforcer resumes what they began. A workload with a
// thread that a guard holds would not survive the end of the guard: it is resumed, and returned.
func (s *Suspender) Close() (ends []End) {
	late, cancel := context.WithTimeout(context.Background(), 2*lastCall)
	defer cancel()
	looked := make(chan struct{})
	go func() {
		defer close(looked)
		s.Guard.Look()
	}()
	for _, w := range s.work {
		if w.ends == nil {
			continue
		}
		select {
		case <-w.ends:
			w.ends = nil
		case <-late.Done():
		}
	}
	select {
	case <-looked:
	case <-late.Done():
	}
	held := slices.DeleteFunc(s.work.order(), func(w *work) bool {
		return !slices.ContainsFunc(w.Processes, func(p Process) bool { return s.Guard.Holds(p.PID) })
	})
	if len(held) > 0 && s.Returning != nil {
		s.Returning(true)
		defer s.Returning(false)
	}
	ends = s.resumeHeld(held)
	s.Guard.Close()
	return ends
}

// resumeHeld resumes workloads at the end, some at the same time: one for which the driver does not answer
// delays no other.
func (s *Suspender) resumeHeld(held []*work) (ends []End) {
	last, others := s.Mover, map[string]uint64{}
	last.Life = nil
	slots, resumed := make(chan struct{}, maxMoving), make(chan End, len(held))
	for _, w := range held {
		w.Phase, w.Since, w.Why = Resuming, time.Now(), "the enforcer ends, and the workload waits for its GPU"
		r, before := w.Record, maps.Clone(others)
		for uuid, n := range r.Bytes() {
			others[uuid] += n
		}
		go func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			lost, err := last.giveBack(span.Parent{}, r.Processes, before)
			resumed <- End{Record: r, Done: Resuming, Err: err, Lost: lost, Took: time.Since(r.Since)}
		}()
	}
	for range held {
		_ = s.keep() // harmless if it fails, as in resume
		end := <-resumed
		if end.Err == nil {
			delete(s.work, end.Subject())
		}
		ends = append(ends, end)
	}
	return ends
}

// end applies a result, and returns what is to be told of it.
func (s *Suspender) end(now time.Time, w *work, end End) []End {
	s.totals.Broken += uint64(len(end.Lost))
	if end.Err != nil && s.lives(w.Processes) { // nothing was refused to a workload that has ended
		s.totals.refused(end.Err)
	}
	switch {
	case w.undo:
		return s.undone(now, w, end)
	case end.Done == Suspending:
		return []End{s.suspended(now, w, end)}
	case end.Err == nil && len(end.Lost) == 0 && !s.lives(w.Processes):
		delete(s.work, w.Subject())
		return nil
	case end.Err == nil:
		delete(s.work, w.Subject())
		s.totals.Resumed++
		s.totals.ResumeSeconds += end.Took.Seconds()
		if !w.stays {
			break
		}
		if err := s.Suspend(now, w.Subject(), w.Processes, w.Why); err != nil {
			return []End{end, {Record: w.Record, Done: Suspended, Err: err}}
		}
	case w.stays:
		s.keepAway(now, w)
		if len(end.Lost) == 0 {
			return nil
		}
	default:
		w.later(now, s.Tick, end.Err)
	}
	return []End{end}
}

// suspended applies the result of a suspension.
func (s *Suspender) suspended(now time.Time, w *work, end End) End {
	fresh := len(w.fresh())
	end.Done, end.Joined = Suspended, fresh > 0 && fresh < len(w.Processes)
	var before *untouched
	switch {
	case end.Err == nil:
		if fresh == len(w.Processes) {
			s.totals.Suspended++
			s.totals.SuspendSeconds += end.Took.Seconds()
		}
		w.Phase, w.Since, w.Processes = Suspended, now, w.settled()
		moved := end.Processes
		end.Record = w.Record
		end.Processes = moved
	case fresh > 0 && errors.As(end.Err, &before):
		s.work.leave(now, w)
	case end.Joined: // undo what is done of it
		w.undo, w.again = true, now
	default:
		w.Phase, w.Since, w.again, w.Processes = Resuming, now, now, w.settled()
		w.Why = "its suspension failed"
	}
	return end
}

// undone applies the result when new processes of a suspended workload were to go on.
func (s *Suspender) undone(now time.Time, w *work, end End) []End {
	if end.Err == nil {
		w.undo = false
		s.work.leave(now, w)
	} else {
		w.later(now, s.Tick, end.Err)
	}
	if len(end.Lost) == 0 {
		return nil
	}
	end.Done, end.Joined = Suspended, true
	return []End{end}
}
