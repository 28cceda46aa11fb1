// Package swap moves the GPU memory of workloads to the host and back. Three sources want that: an
// operator (orders.go), the escalation (Begin), and package residency, which has the workloads of an
// overcommitted GPU take turns (residence.go). The suspender (package suspend) carries it out.
//
// Once a second Look reports the moves that have ended, decides about the next ones, and begins
// them. Nothing waits for the driver.
//
//   - A Swapper has the suspender with its records, and what the last look saw.
//   - residence remembers who used a GPU, who waits for one, and how long moves take. That a
//     suspended workload wants its GPU is known from the trace of its hook, or from a thread that
//     waits for the driver or has faulted in its library and is held (use.go). An allocation without
//     room on an overcommitted GPU waits in the hook (queue.go).
//   - away corrects what the driver lists: the memory of suspended processes stays charged to their
//     tenants.
//
// One goroutine, the enforcer's, owns it all and calls the methods, except those that say otherwise:
// Suspend and Resume, and what Serve gives to the broker.
//
// Begin with Look in this file, and with look in residence.go.
package swap

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/host"
	"gpusteward/enforcer/action"
	"gpusteward/enforcer/audit"
	"gpusteward/enforcer/broker"
	"gpusteward/enforcer/jobs"
	"gpusteward/enforcer/policy"
	"gpusteward/enforcer/suspend"
	"gpusteward/internal/quota"
	"gpusteward/internal/wire"
)

// Options configure a Swapper. The functions must not wait.
type Options struct {
	Tick      audit.Tick // from one look to the next
	Log       *slog.Logger
	ProcFS    string
	Simulated bool // no process is suspended
	Mover     suspend.Mover
	Save      func([]suspend.Record) error // before anything is done
	Returning func(is bool)                // see suspend.Suspender
	Tell      func(suspend.End)            // records each suspension and resumption in the journal; may be nil

	Policy  func() *policy.Policy
	Memory  func(uuid string) (total, free, reserved uint64, ok bool) // of a GPU
	Process func(pid int) (host.Process, error)
	Jobs    *jobs.Observer
	Stopped func(audit.Subject) bool // whether the escalation pauses a workload
	// has the escalation release a workload that it suspended; false: it did not suspend it
	Release func(time.Time, audit.Subject) bool
	Reserve func(audit.Books) // has the broker give no more of the memory away that Absent lacks now
}

// free returns the free memory of a GPU.
func (o *Options) free(uuid string) (bytes uint64, known bool) {
	_, bytes, _, known = o.Memory(uuid)
	return bytes, known
}

// size returns the memory of a GPU that programs can have.
func (o *Options) size(uuid string) (bytes uint64, known bool) {
	total, _, kept, known := o.Memory(uuid)
	return total - min(kept, total), known
}

// overcommitted reports whether a GPU's workloads give way to each other.
func (o *Options) overcommitted(uuid string) bool {
	_, is := o.Policy().Overcommitted(uuid)
	return is && !o.Simulated
}

// A Swapper moves the GPU memory of workloads to the host and back.
type Swapper struct {
	Options
	Suspender suspend.Suspender
	Broker    *broker.Broker // to be set before the first look

	seen      audit.Books // the last ones
	away      away
	orders    orders
	residence residence
}

// New returns a Swapper that has suspended nothing.
func New(o Options) *Swapper {
	s := &Swapper{Options: o, away: away{returned: map[action.Target]returned{}}}
	o.Mover.Free, o.Mover.Size = s.free, s.size
	s.Suspender = suspend.Suspender{Mover: o.Mover, Tick: o.Tick, Keep: s.keep, Returning: o.Returning}
	s.away.charge(nil)
	s.orders = orders{suspender: &s.Suspender, begin: make(chan func()), waiting: map[awaited][]chan answer{}}
	s.residence = newResidence(&s.Options, &s.Suspender)
	return s
}

// Serve has a broker ask the Swapper, also concurrently.
func (s *Swapper) Serve(o *broker.Options) {
	o.Holds = s.away.listed(o.Holds)
	o.Granted = func(r broker.Request) { s.residence.queue.grant(time.Now(), waiter{r.PID, r.GPU}) }
	o.Later = func(r broker.Request) time.Duration {
		if size, known := s.size(r.GPU); !s.overcommitted(r.GPU) || !known || r.Bytes > size {
			return 0
		}
		return s.residence.queue.ask(time.Now(), r)
	}
	o.Stays = func(uuid string, pid int, kind wire.Kind) bool { // no driver can suspend a process with unified memory
		return s.overcommitted(uuid) && (kind == wire.KindManaged || s.Jobs.Shared(pid)&wire.SharedManaged != 0)
	}
}

// Restore takes over the records of an earlier enforcer.
func (s *Swapper) Restore(now time.Time, all []suspend.Record) {
	s.Suspender.Restore(now, all)
	for _, r := range all {
		if r.Yields { // it may have used the GPU, which nobody saw
			s.residence.want(r.Subject(), now)
		}
	}
}

// Orders has what Run's goroutine is to do for operators.
func (s *Swapper) Orders() <-chan func() { return s.orders.begin }

// Correct corrects readings of the driver from before memory came back.
func (s *Swapper) Correct(all []collectors.DeviceProcess) []collectors.DeviceProcess {
	return s.away.correct(all)
}

// Remember charges the memory of suspended processes to their tenants, and tells the broker which
// processes these are.
func (s *Swapper) Remember() { s.Broker.Absent(s.away.charge(s.Suspender.Records())) }

// keep saves the records before anything is done.
func (s *Swapper) keep(all []suspend.Record) error {
	s.Remember() // before the driver is asked to suspend the last one
	return s.Save(all)
}

// Look reports what has ended since the last look, and begins what is to be done by now.
func (s *Swapper) Look(now time.Time, b audit.Books) {
	s.seen = b
	for _, end := range s.Suspender.Look(now) {
		s.ended(end)
		s.residence.moved(now, end)
		s.explain(end)
		text, err := told(end, s.unprotected(end.Processes))
		s.orders.answer(awaited{end.Subject(), end.Done}, text, err)
	}
	s.orders.look()
	s.Remember()
	if !s.Simulated {
		s.residence.look(now, b)
		s.Remember()
	}
}

// Begin begins to suspend a workload for the escalation, and returns how many bytes move; found is
// whether the workload has processes.
func (s *Swapper) Begin(now time.Time, of audit.Subject, why string) (bytes uint64, found bool, err error) {
	c := &candidate{Subject: of}
	all := candidates(s.seen, s.Suspender.Records())
	if i := slices.IndexFunc(all, func(c *candidate) bool { return c.Subject == of }); i >= 0 {
		c, found = all[i], true
	}
	if r, away := s.Suspender.Record(of); away {
		c, found = &candidate{Subject: of, processes: r.Processes}, true
	}
	if !found {
		return 0, false, nil
	}
	if err = c.suspendable(&s.Suspender, s.Jobs); err == nil {
		err = s.Suspender.Suspend(now, of, c.processes, why)
	}
	return sum(suspend.Record{Processes: c.processes}.Bytes()), true, err
}

// Close ends all moves, and resumes what would not survive the enforcer's end.
func (s *Swapper) Close() {
	for _, end := range s.Suspender.Close() {
		s.ended(end)
	}
}

// Holds returns what holds back workloads, and processes by PID.
func (s *Swapper) Holds() (workloads map[audit.Subject]audit.Hold, processes map[int]audit.Hold) {
	workloads, processes = map[audit.Subject]audit.Hold{}, map[int]audit.Hold{}
	for _, r := range s.Suspender.Records() {
		hold := audit.Suspended
		if r.Phase == suspend.Resuming {
			hold = audit.Returning
		}
		workloads[r.Subject()] |= hold
		for _, p := range r.Processes {
			processes[p.PID] |= hold
		}
	}
	for _, of := range s.residence.waits {
		workloads[of] |= audit.Waiting
	}
	return workloads, processes
}

// Moving returns the GPUs from or to which memory is on its way.
func (s *Swapper) Moving() map[string]bool {
	all := map[string]bool{}
	for _, r := range s.Suspender.Records() {
		if r.Phase == suspend.Suspended || s.Suspender.Waits(r.Subject()) {
			continue
		}
		for uuid := range r.Bytes() {
			all[uuid] = true
		}
	}
	return all
}

// ended writes the end of a suspension or resumption to the log and the journal.
func (s *Swapper) ended(end suspend.End) {
	log := s.Log.With("tenant", end.Tenant, "workload", end.Workload, "why", end.Why, "took", end.Took.String())
	switch {
	case len(end.Lost) > 0:
		log.Error("the driver broke processes while they were suspended: they can no longer use their GPU, and must "+
			"be started again", "pids", end.Lost, "err", end.Err)
	case end.Err != nil && end.Joined:
		log.Warn("new processes of a suspended workload could not be suspended, and go on", "reason",
			suspend.ReasonOf(end.Err), "err", end.Err)
	case end.Err != nil && end.Done == suspend.Suspended:
		log.Warn("a workload could not be suspended, and goes on", "reason", suspend.ReasonOf(end.Err), "err", end.Err)
	case end.Err != nil:
		log.Warn("a suspended workload could not be resumed; this is tried again", "reason", suspend.ReasonOf(end.Err),
			"err", end.Err)
	case end.Done == suspend.Suspended:
		log.Info("a workload was suspended", "bytes", sum(end.Bytes()))
		if pids := s.unprotected(end.Processes); len(pids) > 0 {
			log.Warn("processes without the hook are suspended, and could not be guarded: the driver may end one that waits "+
				"for its GPU meanwhile", "pids", pids)
		}
	default:
		log.Info("a suspended workload was resumed", "bytes", sum(end.Bytes()))
		s.away.back(end.Processes)
		s.away.correct(s.seen.DeviceProcesses)
	}
	if s.Tell != nil {
		s.Tell(end)
	}
}

// unprotected returns the PIDs of suspended processes that neither run under the hook nor
// are guarded.
func (s *Swapper) unprotected(all []suspend.Process) (pids []int) {
	hooked := s.seen.Hooked()
	for _, p := range all {
		if _, is := hooked[p.PID]; !is && !s.Suspender.Guard.Has(p.PID) {
			pids = append(pids, p.PID)
		}
	}
	return pids
}

// Stats returns the statistics of suspended workloads, of overcommitted GPUs, and of all moves.
func (s *Swapper) Stats(b audit.Books) (all []wire.SuspendedStats, total wire.SuspensionStats,
	overcommit []wire.OvercommitStats) {
	listed := map[awayPlace]uint64{}
	for _, h := range b.DeviceProcesses {
		listed[awayPlace{h.UUID, h.Process.PID}] += h.Memory
	}
	for _, r := range s.Suspender.Records() {
		rows := map[string]*wire.SuspendedStats{}
		for _, p := range r.Processes {
			for uuid, bytes := range p.Memory {
				if rows[uuid] == nil {
					rows[uuid] = &wire.SuspendedStats{Tenant: r.Tenant, Workload: r.Workload, GPU: uuid,
						Phase: string(r.Phase), Why: r.Why, Seconds: max(b.Now.Sub(r.Since).Seconds(), 0)}
				}
				rows[uuid].Bytes += bytes - min(bytes, listed[awayPlace{uuid, p.PID}])
			}
		}
		for _, uuid := range slices.Sorted(maps.Keys(rows)) {
			all = append(all, *rows[uuid])
		}
	}
	t := s.Suspender.Totals()
	total = wire.SuspensionStats{Suspended: t.Suspended, Resumed: t.Resumed, SuspendSeconds: t.SuspendSeconds,
		ResumeSeconds: t.ResumeSeconds, Broken: t.Broken, Refused: map[string]uint64{}}
	for reason, n := range t.Refused {
		total.Refused[string(reason)] = n
	}
	return all, total, s.residence.stats
}

// explain tells a resumed program why it stood still.
func (s *Swapper) explain(end suspend.End) {
	if !end.Yields || end.Done != suspend.Resuming || end.Err != nil {
		return
	}
	var pids []int
	for _, p := range end.Processes {
		pids = append(pids, p.PID)
	}
	s.Broker.Notice(fmt.Sprintf("the GPU memory of this program, %s, was on the host because others needed the GPU or this "+
		"program did not use it; to bring it back took %.1f s", quota.Size(sum(end.Bytes())), end.Took.Seconds()), pids...)
}

// Absent returns the memory of each overcommitted GPU that belongs to
// suspended workloads: others may have it.
func (s *Swapper) Absent() map[string]uint64 {
	away := map[string]uint64{}
	for _, r := range s.Suspender.Records() {
		if r.Phase != suspend.Suspended && !s.Suspender.Waits(r.Subject()) || s.residence.returning[r.Subject()] {
			continue
		}
		for uuid, n := range r.Bytes() {
			if s.overcommitted(uuid) {
				away[uuid] += n
			}
		}
	}
	return away
}
