package suspend

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"gpusteward/enforcer/action"
	"gpusteward/enforcer/audit"
	"gpusteward/internal/span"
)

// Bounds.
const (
	maxSuspended = 1024             // workloads
	maxMoving    = 8                // workloads that are suspended at a time, and as many that are resumed; others wait
	lockWithin   = 5 * time.Second  // until the work that a process has submitted must have ended
	callWithin   = 15 * time.Second // for a call that copies nothing
	slowestCopy  = 256 << 20        // bytes a second that a copy is granted at least
	retryFirst   = 2 * time.Second  // after a resume that failed; doubles; at a tick of a second
	retryLast    = time.Minute      // the same
	spare        = 256 << 20        // bytes that are free on a GPU beyond what is restored there
	lastCall     = time.Second / 4  // for a call that is under way when Life ends
)

// A Phase is what is happening to a workload.
type Phase string

// The phases. A workload that is found in another phase than Suspended after a
// restart is resumed.
const (
	Suspending Phase = "suspending"
	Suspended  Phase = "suspended"
	Resuming   Phase = "resuming"
)

// A Process is one of a workload's processes, with the GPU memory that the
// driver listed for it before it was suspended, in bytes by UUID.
type Process struct {
	action.Target
	Memory map[string]uint64 `json:"memory,omitempty"`
	// Of a workload that is being suspended: nothing was done to the process before.
	// Others may be suspended already.
	New bool `json:"new,omitempty"`
}

// A Record is a workload that is suspended, or about to be, or to be resumed.
type Record struct {
	Tenant    string    `json:"tenant"`
	Workload  string    `json:"workload"`
	Phase     Phase     `json:"phase"`
	Why       string    `json:"why"`   // of what was done last, for people
	Since     time.Time `json:"since"` // when the phase began
	Began     time.Time `json:"began"` // when its suspension did
	Processes []Process `json:"processes"`
	// It gave way, and comes back when it uses the GPU again; others come back by
	// order.
	Yields bool `json:"yields,omitempty"`
}

// Subject returns whose record it is.
func (r Record) Subject() audit.Subject { return audit.Subject{Tenant: r.Tenant, Workload: r.Workload} }

// Bytes returns the GPU memory that its processes had, by UUID.
func (r Record) Bytes() map[string]uint64 {
	all := map[string]uint64{}
	for _, p := range r.Processes {
		for uuid, n := range p.Memory {
			all[uuid] += n
		}
	}
	return all
}

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

// A Suspender suspends workloads and resumes them. Its methods do not wait for
// the driver: Look returns what has ended. One goroutine may use it, and it calls
// Call, Alive and Free from others. Set these and Room; the rest may be zero.
type Suspender struct {
	Tick audit.Tick // from one call of Look to the next
	Call Call
	Free func(uuid string) (bytes uint64, known bool) // memory that is free on a GPU
	// Settle is how long a resumption waits for a driver that does not tell its free memory,
	// as when the agent has just started.
	Settle time.Duration
	Size   func(uuid string) (bytes uint64, known bool) // memory of a GPU that programs can have; nil: unknown
	Room   func(bytes, others map[int]uint64) error     // by PID; see Host
	Alive  func(action.Target) bool                     // whether that process still exists
	Keep   func([]Record) error                         // saves the records; nil: they are not saved
	Life   context.Context                              // when it ends, no more calls are made; nil: never
	Guard  *Guards                                      // of the suspended processes; nil: they are not guarded
	Spans  *span.Recorder                               // nil: there are none
	// is told when Close begins to resume a workload, and when it has ended with all of them; nil: nobody is
	Returning func(is bool)

	work       map[audit.Subject]*work
	away, back chan struct{} // have an element for each workload that is being suspended, or resumed
	totals     Totals
}

// work is a record, and what is being done about it.
type work struct {
	Record
	ends  chan End // nil: nothing
	wait  time.Duration
	again time.Time // when a resumption is tried again
	wake  string    // why it is to be resumed as soon as it is suspended; empty: it is not
	stays bool      // it is to be suspended again as soon as the resumption has ended
	undo  bool      // its new processes go on, because they could not be suspended
	full  bool      // its last resumption found no room, and asked the driver for nothing
}

// fresh returns the processes to which nothing was done before.
func (r Record) fresh() (all []Process) {
	for _, p := range r.Processes {
		if p.New {
			all = append(all, p)
		}
	}
	return all
}

// settled returns the processes without the mark that they are new.
func (r Record) settled() []Process {
	all := slices.Clone(r.Processes)
	for i := range all {
		all[i].New = false
	}
	return all
}

// Joining returns those of a workload's processes that the record does not have.
func (r Record) Joining(processes []Process) (all []Process) {
	for _, p := range processes {
		if !slices.ContainsFunc(r.Processes, func(q Process) bool { return q.Target == p.Target }) {
			all = append(all, p)
		}
	}
	return all
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
	s.work = map[audit.Subject]*work{}
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

// guard guards processes, from before their state is taken until they have that back. Where this
// cannot be, they are not guarded.
func (s *Suspender) guard(all []Process) *sync.WaitGroup {
	var guarded sync.WaitGroup
	for _, p := range all {
		if s.Guard != nil && s.Alive(p.Target) {
			guarded.Go(func() { _ = s.Guard.Take(p.PID) }) // Guards says whether it succeeded
		}
	}
	return &guarded
}

// Holds reports whether a thread of a suspended process waits for its GPU.
func (s *Suspender) Holds(pid int) bool { return s.Guard != nil && s.Guard.Holds(pid) }

// Guards reports whether a process is guarded.
func (s *Suspender) Guards(pid int) bool { return s.Guard != nil && s.Guard.Has(pid) }

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
		s.refused(err)
	}
	return err
}

// GiveWay is Suspend for a workload that comes back when it uses the GPU again.
func (s *Suspender) GiveWay(now time.Time, of audit.Subject, processes []Process, why string) error {
	err := s.begin(now, of, processes, why, true)
	if err != nil {
		s.refused(err)
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
		s.work = map[audit.Subject]*work{}
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
		s.refused(err)
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
	err := s.room(w, fresh)
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

// room returns a Refusal unless the host has room for new processes of a record, beside
// those that are on the way there, and its GPUs could have them all back.
func (s *Suspender) room(w *work, fresh []Process) error {
	for uuid, bytes := range w.Bytes() {
		if s.Size == nil {
			break
		}
		if size, known := s.Size(uuid); known && bytes+spare > size {
			return refuse(GPUMemory, "%s could not give %d MiB back: it has %d MiB, and %d MiB stay free", uuid, bytes>>20,
				size>>20, spare>>20)
		}
	}
	others := map[int]uint64{}
	for _, o := range s.work {
		if o != w && o.Phase == Suspending {
			maps.Copy(others, byPID(o.fresh()))
		}
	}
	fresh = slices.DeleteFunc(slices.Clone(fresh), func(p Process) bool { return !s.Alive(p.Target) })
	return s.Room(byPID(fresh), others)
}

// Refuse counts and returns a Refusal of the caller's.
func (s *Suspender) Refuse(reason Reason, text string) error {
	err := refuse(reason, "%s", text)
	s.refused(err)
	return err
}

// byPID returns the GPU memory of processes.
func byPID(all []Process) map[int]uint64 {
	bytes := map[int]uint64{}
	for _, p := range all {
		bytes[p.PID] += p.bytes()
	}
	return bytes
}

func (p Process) bytes() (sum uint64) {
	for _, n := range p.Memory {
		sum += n
	}
	return sum
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
	back, others := w.back(), s.returning()
	s.start(w, back, func(of span.Parent) ([]int, error) { return s.giveBack(of, back.Processes, others) })
}

// back returns the record with the processes that are to go on.
func (w *work) back() Record {
	r := w.Record
	if w.undo {
		r.Processes = w.fresh()
	}
	return r
}

// returning returns the GPU memory that others are being given back now, by UUID. The
// driver may still list it as free.
func (s *Suspender) returning() map[string]uint64 {
	all := map[string]uint64{}
	for _, w := range s.work {
		if w.Phase != Resuming && !w.undo || w.ends == nil {
			continue
		}
		for uuid, n := range w.back().Bytes() {
			all[uuid] += n
		}
	}
	return all
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

// failure is the reason of an error; empty for nil.
func failure(err error) string {
	if err == nil {
		return ""
	}
	return string(ReasonOf(err))
}

// Look returns what has ended since the last call, forgets processes that ended,
// and tries again to resume. Call it each tick.
func (s *Suspender) Look(now time.Time) (ends []End) {
	all := s.order()
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
	if s.Guard != nil {
		s.Guard.Keep(s.pids())
	}
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
		if s.Guard != nil {
			s.Guard.Look()
		}
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
	if s.Guard == nil {
		return nil
	}
	held := slices.DeleteFunc(s.order(), func(w *work) bool {
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
	last, others := *s, map[string]uint64{}
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

// pids returns the processes of all records.
func (s *Suspender) pids() map[int]bool {
	all := map[int]bool{}
	for _, w := range s.work {
		for _, p := range w.Processes {
			all[p.PID] = true
		}
	}
	return all
}

func (s *Suspender) order() []*work {
	return slices.SortedFunc(maps.Values(s.work), func(x, y *work) int {
		return cmp.Or(x.Since.Compare(y.Since), audit.Compare(x.Subject(), y.Subject()))
	})
}

// end applies a result, and returns what is to be told of it.
func (s *Suspender) end(now time.Time, w *work, end End) []End {
	s.totals.Broken += uint64(len(end.Lost))
	if end.Err != nil && s.lives(w) { // nothing was refused to a workload that has ended
		s.refused(end.Err)
	}
	switch {
	case w.undo:
		return s.undone(now, w, end)
	case end.Done == Suspending:
		return []End{s.suspended(now, w, end)}
	case end.Err == nil && len(end.Lost) == 0 && !s.lives(w):
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
		s.later(now, w, end.Err)
	}
	return []End{end}
}

// lives reports whether a process of a workload has not ended.
func (s *Suspender) lives(w *work) bool {
	return slices.ContainsFunc(w.Processes, func(p Process) bool { return s.Alive(p.Target) })
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
		s.leave(now, w)
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
		s.leave(now, w)
	} else {
		s.later(now, w, end.Err)
	}
	if len(end.Lost) == 0 {
		return nil
	}
	end.Done, end.Joined = Suspended, true
	return []End{end}
}

// leave forgets the new processes of a workload, and the workload if it has no others.
func (s *Suspender) leave(now time.Time, w *work) {
	w.Phase, w.Since = Suspended, now
	w.Processes = slices.DeleteFunc(slices.Clone(w.Processes), func(p Process) bool { return p.New })
	if len(w.Processes) == 0 {
		delete(s.work, w.Subject())
	}
}

// later has a resumption tried again.
func (s *Suspender) later(now time.Time, w *work, err error) {
	var before *untouched
	w.full = errors.As(err, &before)
	w.wait = min(max(2*w.wait, s.Tick.Of(retryFirst)), s.Tick.Of(retryLast))
	w.again = now.Add(w.wait)
}

func (s *Suspender) refused(err error) {
	if s.totals.Refused == nil {
		s.totals.Refused = map[Reason]uint64{}
	}
	s.totals.Refused[ReasonOf(err)]++
}

// call makes one call with its deadline, as a part of a span.
func (s *Suspender) call(of span.Parent, op Op, p Process) (state State, err error) {
	a := s.Spans.Begin("driver."+string(op), of)
	defer func() { a.End(failure(err), "pid", p.PID, "bytes", p.bytes()) }()
	if !s.Alive(p.Target) {
		return Unknown, refuse(NotCUDA, "%s of %d: the process has ended", op, p.PID)
	}
	within := callWithin
	if op == Checkpoint || op == Restore {
		within += time.Duration(float64(p.bytes()) / slowestCopy * float64(time.Second))
	}
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	if s.Life != nil {
		if s.Life.Err() != nil {
			return Unknown, refuse(NoAnswer, "%s of %d: the enforcer ends", op, p.PID)
		}
		defer context.AfterFunc(s.Life, func() { time.AfterFunc(lastCall, cancel) })()
	}
	return s.Call(ctx, op, p.PID)
}

// An untouched is an error before anything was done.
type untouched struct{ error }

func (u *untouched) Unwrap() error { return u.error }

// suspend suspends all processes: no process is checkpointed before all are
// locked, since those that are not yet may wait for the others. It undoes
// nothing. A process that the driver broke is lost. Of several, some may end
// meanwhile. What is locked or checkpointed already is this suspender's, unless it
// is new.
func (s *Suspender) suspend(of span.Parent, all []Process) (lost []int, err error) {
	needs := map[Op][]Process{}
	for _, p := range all {
		switch state, err := s.call(of, Ask, p); {
		case ReasonOf(err) == NotCUDA && !s.Alive(p.Target):
		case err != nil:
			return nil, &untouched{err}
		case state == Running:
			needs[Lock], needs[Checkpoint] = append(needs[Lock], p), append(needs[Checkpoint], p)
		case !p.New && state == Locked:
			needs[Checkpoint] = append(needs[Checkpoint], p)
		case p.New || state != Checkpointed:
			return nil, &untouched{refuse(WrongState, "the driver says that %d is %s", p.PID, state)}
		}
	}
	for _, op := range []Op{Lock, Checkpoint} {
		if op == Checkpoint {
			s.guard(needs[op]).Wait()
		}
		for _, p := range needs[op] {
			switch state, err := s.call(of, op, p); {
			case ReasonOf(err) == NotCUDA && !s.Alive(p.Target):
			case err != nil && state == Broken:
				return []int{p.PID}, err
			case err != nil:
				return nil, err
			}
		}
	}
	if !slices.ContainsFunc(all, func(p Process) bool { return s.Alive(p.Target) }) {
		return nil, refuse(NotCUDA, "its processes ended")
	}
	return nil, nil
}

// giveBack lets all processes run again, whatever was done of their suspension
// or resumption: no process goes on before all have their memory. If one of them
// cannot have it, none keeps it. A process that the driver broke is lost, and
// so is one that ended. Others take memory at the same time, in bytes by UUID.
func (s *Suspender) giveBack(of span.Parent, all []Process, others map[string]uint64) (lost []int, err error) {
	var locked, away []Process
	for _, p := range all {
		switch state, err := s.call(of, Ask, p); {
		case err != nil && !s.Alive(p.Target):
		case err != nil:
			return lost, err
		case state == Broken:
			lost = append(lost, p.PID)
		case state == Locked:
			locked = append(locked, p)
		case state == Checkpointed:
			away = append(away, p)
		}
	}
	if err := s.fits(away, others); err != nil {
		return lost, &untouched{err}
	}
	for _, p := range away {
		switch state, err := s.call(of, Restore, p); {
		case err != nil && !s.Alive(p.Target):
		case err != nil && state == Broken:
			lost = append(lost, p.PID)
		case err != nil:
			return lost, errors.Join(err, s.takeAgain(of, locked))
		default:
			locked = append(locked, p)
		}
	}
	for _, p := range locked {
		if _, e := s.call(of, Unlock, p); e != nil && s.Alive(p.Target) {
			err = errors.Join(err, e)
		} else if s.Guard != nil {
			s.Guard.Give(p.PID)
		}
	}
	return lost, err
}

// fits returns a Refusal unless the GPUs have room for processes, beside others in bytes
// by UUID. The driver is not asked to try: drivers of the 580 series break a process for
// whose memory there is no room.
func (s *Suspender) fits(all []Process, others map[string]uint64) error {
	for uuid, bytes := range (Record{Processes: all}).Bytes() {
		free, known := s.Free(uuid)
		lives := func() bool { return s.Life == nil || s.Life.Err() == nil }
		for began := time.Now(); !known && time.Since(began) < s.Settle && lives(); free, known = s.Free(uuid) {
			time.Sleep(s.Settle / 50)
		}
		switch {
		case !known:
			return refuse(GPUMemory, "it is unknown whether %s has room: the driver does not tell its free memory", uuid)
		case free < bytes+others[uuid]+spare:
			return refuse(GPUMemory, "%s has no room for %d MiB: %d MiB are free, and %d MiB are kept for others", uuid, bytes>>20,
				free>>20, (others[uuid]+spare)>>20)
		}
	}
	return nil
}

// takeAgain checkpoints processes again whose workload could not be restored.
func (s *Suspender) takeAgain(of span.Parent, locked []Process) (err error) {
	for _, p := range locked {
		if _, e := s.call(of, Checkpoint, p); e != nil && s.Alive(p.Target) {
			err = errors.Join(err, fmt.Errorf("and %d keeps its memory: %w", p.PID, e))
		}
	}
	return err
}
