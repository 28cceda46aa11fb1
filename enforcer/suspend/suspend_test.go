package suspend

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"gpusteward/enforcer/action"
	"gpusteward/enforcer/audit"
	"gpusteward/internal/fixture"
	"gpusteward/internal/span"
)

// A card is a GPU with a driver, whose calls end at once.
type card struct {
	mu     sync.Mutex
	free   int
	state  map[int]State
	needs  map[int]int
	wrong  map[string]error // of a call such as "checkpoint 2"
	gone   map[int]bool     // processes that ended
	calls  []string
	left   int     // calls until the caller is killed; negative: never
	said   *uint64 // free memory that the driver tells; 0: it does not; nil: much
	killed bool    // it made a call after it was killed
	breaks bool    // what goes wrong breaks the process
	times  int     // that a caller began: the former ones are dead
}

var errKilled = errors.New("killed")

func newCard(free int, needs map[int]int) *card {
	c := &card{free: free, state: map[int]State{}, needs: needs, wrong: map[string]error{}, gone: map[int]bool{}, left: -1}
	for pid := range needs {
		c.state[pid] = Running
	}
	return c
}

// caller returns the calls of a new suspender.
func (c *card) caller() Call {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.times++
	c.killed = false
	me := c.times
	return func(_ context.Context, op Op, pid int) (State, error) { return c.call(me, op, pid) }
}

func (c *card) call(by int, op Op, pid int) (State, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.left == 0 || by != c.times {
		c.killed = c.killed || by == c.times
		return 0, errKilled
	}
	c.left--
	name := fmt.Sprintf("%s %d", op, pid)
	if op != Ask {
		c.calls = append(c.calls, name)
	}
	if c.gone[pid] {
		return 0, refuse(NotCUDA, "gone")
	}
	if err := c.wrong[name]; err != nil {
		if c.breaks {
			c.state[pid] = Broken
		}
		return c.state[pid], err
	}
	moves := map[Op][2]State{Lock: {Running, Locked}, Checkpoint: {Locked, Checkpointed},
		Restore: {Checkpointed, Locked}, Unlock: {Locked, Running}}
	if move, is := moves[op]; is {
		switch {
		case c.state[pid] != move[0]:
			return c.state[pid], refuse(WrongState, "%s is %s", name, c.state[pid])
		case op == Restore && c.free < c.needs[pid]:
			return c.state[pid], refuse(GPUMemory, "%s: no room", name)
		case op == Restore:
			c.free -= c.needs[pid]
		case op == Checkpoint:
			c.free += c.needs[pid]
		}
		c.state[pid] = move[1]
	}
	return c.state[pid], nil
}

// room returns the free memory as the driver tells it.
func (c *card) room(string) (uint64, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.said == nil {
		return 1 << 40, true
	}
	return *c.said, *c.said > 0
}

func (c *card) set(do func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	do()
}

func (c *card) alive(t action.Target) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.gone[t.PID]
}

// all reports whether the given processes have a state.
func (c *card) all(want State, pids ...int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !slices.ContainsFunc(pids, func(pid int) bool { return c.state[pid] != want })
}

// A bench is a suspender on a card, with a file and a clock of its own.
type bench struct {
	*Suspender
	t    *testing.T
	card *card
	file []Record
	now  time.Time
}

var (
	job     = audit.Subject{Tenant: "a", Workload: "slurm:1"}
	another = audit.Subject{Tenant: "b", Workload: "x"}
)

func newBench(t *testing.T, c *card) *bench {
	b := &bench{t: t, card: c, now: time.Unix(1e9, 0)}
	b.begin()
	return b
}

// begin starts another suspender, with what is in the file.
func (b *bench) begin() {
	b.Suspender = &Suspender{Mover: Mover{Call: b.card.caller(), Free: b.card.room, Alive: b.card.alive,
		Room: func(_, _ map[int]uint64) error { return nil }},
		Keep: func(all []Record) error { // as a file has them
			b.file = nil
			return json.Unmarshal(fixture.Value(json.Marshal(all))(b.t), &b.file)
		}}
	b.Restore(b.now, b.file)
}

func processes(pids ...int) (all []Process) {
	for _, pid := range pids {
		all = append(all, Process{Target: action.Target{PID: pid, Start: 1}, Memory: map[string]uint64{"GPU-0": 100}})
	}
	return all
}

func (b *bench) order(pids ...int) {
	b.t.Helper()
	fixture.Must(b.t, b.Suspend(b.now, job, processes(pids...), "ordered"))
}

// end returns the next end, in so many seconds of the clock.
func (b *bench) end() End {
	b.t.Helper()
	var ends []End
	fixture.Eventually(b.t, "something ends", func() bool {
		b.now = b.now.Add(time.Second)
		ends = b.Look(b.now)
		return len(ends) > 0
	})
	return ends[0]
}

// runs awaits an end without an error, and holds that these processes run.
func (b *bench) runs(pids ...int) {
	b.t.Helper()
	end := b.end()
	fixture.If(b.t, end.Err != nil || !b.card.all(Running, pids...), "%+v, %v", end, b.card.state)
}

// lives reports whether something ended before the enforcer was killed. There is
// nothing to wait for if all that is recorded is suspended.
func (b *bench) lives() bool {
	b.t.Helper()
	killed := false
	fixture.Eventually(b.t, "something ends, or it is killed", func() bool {
		b.card.set(func() { killed = b.card.killed })
		if r, is := b.Record(job); killed || !is || r.Phase == Suspended {
			return true
		}
		b.now = b.now.Add(time.Second)
		b.Look(b.now)
		return false
	})
	return !killed
}

func TestAWorkloadIsSuspendedAndResumed(t *testing.T) {
	b := newBench(t, newCard(0, map[int]int{2: 5, 3: 7}))
	b.order(2, 3)
	if end := b.end(); end.Done != Suspended || end.Err != nil || end.Bytes()["GPU-0"] != 200 {
		t.Fatalf("%+v", end)
	}
	if r, _ := b.Record(job); r.Phase != Suspended || b.file[0].Phase != Suspended || b.card.free != 12 {
		t.Errorf("%+v, in the file %+v, %d free", r, b.file, b.card.free)
	}
	if err := b.Resume(b.now, job, "wanted"); err != nil || b.file[0].Phase != Resuming {
		t.Fatalf("%v, in the file %+v", err, b.file)
	}
	if end := b.end(); end.Done != Resuming || end.Err != nil || end.Why != "wanted" {
		t.Fatalf("%+v", end)
	}
	want := "lock 2, lock 3, checkpoint 2, checkpoint 3, restore 2, restore 3, unlock 2, unlock 3"
	fixture.Equal(t, strings.Join(b.card.calls, ", "), want, "the calls are")
	_, is := b.Record(job)
	fixture.If(t, is || len(b.file) > 0 || !b.card.all(Running, 2, 3), "it is not forgotten: %+v", b.file)
	n := b.Totals()
	fixture.If(t, n.Suspended != 1 || n.Resumed != 1 || len(n.Refused) != 0 || n.SuspendSeconds <= 0 ||
		n.ResumeSeconds <= 0, "%+v", n)
	fixture.Fails(t, b.Resume(b.now, job, "wanted"), "", "resuming what is not suspended")
}

// TestASuspensionIsASpan has one that fails, and its undoing: each call of the driver is a part of it.
func TestASuspensionIsASpan(t *testing.T) {
	c := newCard(0, map[int]int{2: 5, 3: 7})
	c.wrong["checkpoint 3"] = refuse(Busy, "no")
	b := newBench(t, c)
	b.Spans = span.New()
	b.Spans.Set(1e-9)
	b.order(2, 3)
	b.end()
	fixture.Equal(t, b.end().Done, Resuming, "what ended:")
	var said []string
	for _, s := range b.Spans.Read(0).Spans {
		if s.Name != "driver.state" {
			said = append(said, fmt.Sprint(s.Name, " ", s.Tags["pid"], " ", s.Parent.ID == [8]byte{}, " "+s.Failed))
		}
	}
	fixture.EqualSlices(t, said, []string{"driver.lock 2 false ", "driver.lock 3 false ", "driver.checkpoint 2 false ",
		"driver.checkpoint 3 false busy", "suspender.suspend <nil> true busy", "driver.restore 2 false ", "driver.unlock 3 false ",
		"driver.unlock 2 false ", "suspender.give_back <nil> true "}, "spans")
}

// TestSuspensionsKeepNoResumptionWaiting orders many suspensions whose driver does not answer: some
// begin. A workload that is suspended comes back meanwhile, and then all others are suspended.
func TestSuspensionsKeepNoResumptionWaiting(t *testing.T) {
	const many = 3 * maxMoving
	needs := map[int]int{2: 5}
	for pid := range many {
		needs[10+pid] = 1
	}
	b := newBench(t, newCard(0, needs))
	b.away(2)
	var locking atomic.Int32
	answers, call := make(chan struct{}), b.Call
	b.Call = func(ctx context.Context, op Op, pid int) (State, error) {
		if op == Lock {
			locking.Add(1)
			<-answers
		}
		return call(ctx, op, pid)
	}
	for pid := range many {
		of := audit.Subject{Tenant: "a", Workload: fmt.Sprint(pid)}
		fixture.Must(t, b.Suspend(b.now, of, processes(10+pid), "ordered"))
	}
	fixture.Eventually(t, "as many begin as may", func() bool { return locking.Load() >= maxMoving })
	fixture.Must(t, b.Resume(b.now, job, "wanted"))
	end := b.end()
	fixture.If(t, end.Done != Resuming || end.Err != nil || end.Subject() != job, "%+v", end)
	fixture.Equal(t, locking.Load(), maxMoving, "suspensions that began")
	close(answers)
	fixture.Eventually(t, "all are suspended", func() bool { b.Look(b.now); return b.Totals().Suspended == many+1 })
}

// TestNothingIsDoneThatIsNotRecorded does not touch a workload that a restart would forget.
func TestNothingIsDoneThatIsNotRecorded(t *testing.T) {
	b := newBench(t, newCard(0, map[int]int{2: 5}))
	b.Keep = func([]Record) error { return errors.New("disk full") }
	fixture.Fails(t, b.Suspend(b.now, job, processes(2), ""), "disk full", "the order")
	if len(b.card.calls) > 0 || len(b.Records()) > 0 {
		t.Errorf("%v, %+v", b.card.calls, b.Records())
	}
}

// TestAFailureUndoesEverything lets a workload go on of which one process cannot be suspended.
func TestAFailureUndoesEverything(t *testing.T) {
	for call, reason := range map[string]Reason{"lock 3": Busy, "checkpoint 2": Unsupported, "checkpoint 3": NoAnswer} {
		b := newBench(t, newCard(0, map[int]int{2: 5, 3: 7}))
		b.card.wrong[call] = refuse(reason, "%s", call)
		b.order(2, 3)
		if end := b.end(); end.Done != Suspended || ReasonOf(end.Err) != reason {
			t.Errorf("%s: %+v", call, end)
		}
		if end := b.end(); end.Done != Resuming || end.Err != nil || !b.card.all(Running, 2, 3) || b.card.free != 0 {
			t.Errorf("%s: %+v, %v", call, end, b.card.state)
		}
		n := b.Totals().Refused
		fixture.If(t, n[reason] != 1 || len(n) != 1, "%s: refusals %v", call, n)
	}
}

// TestAProcessEndsDuringTheSuspension suspends the others.
func TestAProcessEndsDuringTheSuspension(t *testing.T) {
	for _, at := range []Op{Ask, Lock, Checkpoint} {
		b := newBench(t, newCard(0, map[int]int{2: 5, 3: 7}))
		call := b.Call
		b.Call = func(ctx context.Context, op Op, pid int) (State, error) {
			if op == at && pid == 2 {
				b.card.set(func() { b.card.gone[pid] = true })
			}
			return call(ctx, op, pid)
		}
		b.order(2, 3)
		if end := b.end(); end.Done != Suspended || end.Err != nil || !b.card.all(Checkpointed, 3) {
			t.Errorf("%s: %+v, %v", at, end, b.card.state)
		}
		r, _ := b.Record(job)
		fixture.If(t, r.Phase != Suspended || len(r.Processes) != 1 || r.Processes[0].PID != 3, "%s: %+v", at, r)
	}
	b := newBench(t, newCard(0, map[int]int{2: 5}))
	b.Call = func(_ context.Context, _ Op, pid int) (State, error) {
		b.card.set(func() { b.card.gone[pid] = true })
		return Unknown, refuse(NotCUDA, "gone")
	}
	b.order(2)
	if end := b.end(); ReasonOf(end.Err) != NotCUDA || len(b.Records()) > 0 {
		t.Errorf("alone: %+v, %+v", end, b.Records())
	}
}

func TestRefusals(t *testing.T) {
	b := newBench(t, newCard(0, map[int]int{2: 5, 3: 7}))
	b.order(2)
	fixture.Equal(t, ReasonOf(b.Suspend(b.now, job, processes(2), "")), WrongState, "twice")
	other := audit.Subject{Tenant: "b", Workload: "x"}
	for i := range maxSuspended - 1 {
		b.work[audit.Subject{Workload: fmt.Sprint(i)}] = &work{Record: Record{Workload: fmt.Sprint(i), Phase: Suspended}}
	}
	fixture.Equal(t, ReasonOf(b.Suspend(b.now, other, processes(3), "")), Other, "one too many")
	maps.DeleteFunc(b.work, func(s audit.Subject, _ *work) bool { return s != job })
	fixture.Equal(t, ReasonOf(b.Suspend(b.now, other, nil, "")), NotCUDA, "without processes")
	b.Room = func(bytes, _ map[int]uint64) error {
		fixture.If(t, !maps.Equal(bytes, map[int]uint64{3: 100}), "room is asked for %v", bytes)
		return refuse(HostMemory, "full")
	}
	fixture.Equal(t, ReasonOf(b.Suspend(b.now, other, processes(3), "")), HostMemory, "without room")
	n := b.Totals().Refused
	fixture.If(t, n[WrongState] != 1 || n[NotCUDA] != 1 || n[HostMemory] != 1, "%v", n)
}

// TestAResumptionWaitsForRoom holds that no process of a workload keeps memory
// while another has none, and that the next try comes later each time.
func TestAResumptionWaitsForRoom(t *testing.T) {
	b := newBench(t, newCard(0, map[int]int{2: 5, 3: 7}))
	b.away(2, 3)
	b.card.set(func() { b.card.free = 11 })
	_ = b.Resume(b.now, job, "wanted")
	var at []time.Duration
	began := b.now
	for range 4 {
		end := b.end()
		fixture.Stop(t, end.Done != Resuming || ReasonOf(end.Err) != GPUMemory, "%+v", end)
		r, _ := b.Record(job)
		fixture.Stop(t, r.Since.After(began), "it has been resuming since %v, not %v", r.Since, began)
		fixture.Stop(t, !b.card.all(Checkpointed, 2, 3) || b.card.free != 11, "%v, %d free", b.card.state, b.card.free)
		at = append(at, b.now.Sub(began))
		began = b.now
	}
	fixture.If(t, at[3] < 2*retryFirst || at[3] < at[1], "tries after %v", at)
	b.card.set(func() { b.card.free = 12 })
	b.runs(2, 3)
}

// TestMemoryThatStaysIsReported tells of a process that keeps its memory while another one of its workload has none.
func TestMemoryThatStaysIsReported(t *testing.T) {
	b := newBench(t, newCard(0, map[int]int{2: 5, 3: 7}))
	b.away(2, 3)
	b.card.set(func() { b.card.free, b.card.wrong["checkpoint 2"] = 5, refuse(NoAnswer, "the driver is silent") })
	_ = b.Resume(b.now, job, "wanted")
	fixture.Fails(t, b.end().Err, "and 2 keeps its memory: the driver is silent", "the resumption")
	b.card.set(func() { b.card.free = 7 })
	b.runs(2, 3)
}

// TestNoRestoreWithoutRoom asks the driver to restore nothing for which there is no room.
func TestNoRestoreWithoutRoom(t *testing.T) {
	b := newBench(t, newCard(0, map[int]int{2: 5, 3: 7}))
	b.away(2, 3)
	for _, free := range []uint64{200 + spare - 1, 0} {
		b.card.set(func() { b.card.said = &free })
		_ = b.Resume(b.now, job, "wanted")
		fixture.Need(t, ReasonOf(b.end().Err), GPUMemory, "the end")
	}
	calls := strings.Join(b.card.calls, ", ")
	fixture.If(t, strings.Contains(calls, "restore"), "the calls are %s", calls)
	enough := uint64(200 + spare)
	b.card.set(func() { b.card.said = &enough })
	b.runs(2, 3)
}

// TestAResumptionWaitsForTheFirstReading resumes a workload just after the start of the
// agent, when nobody knows the free memory yet.
func TestAResumptionWaitsForTheFirstReading(t *testing.T) {
	b := newBench(t, newCard(0, map[int]int{2: 5}))
	b.away(2)
	asked := 0
	b.Settle = 5 * time.Second
	b.Free = func(string) (uint64, bool) { asked++; return 1 << 40, asked > 3 }
	_ = b.Resume(b.now, job, "wanted")
	end := b.end()
	fixture.If(t, end.Err != nil || !b.card.all(Running, 2) || asked != 4, "asked %d times: %+v", asked, end)
}

// TestEndedProcessNeedsNoRoom suspends a workload of which a process has just ended.
func TestEndedProcessNeedsNoRoom(t *testing.T) {
	b := newBench(t, newCard(0, map[int]int{2: 5, 3: 7}))
	b.card.set(func() { b.card.gone[3] = true })
	b.Room = func(bytes, _ map[int]uint64) error {
		if _, is := bytes[3]; is {
			return refuse(CgroupMemory, "its cgroup is unknown")
		}
		return nil
	}
	b.order(2, 3)
	end := b.end()
	fixture.If(t, end.Err != nil || !b.card.all(Checkpointed, 2), "%+v", end)
}

// TestEndedWorkloadIsNoRefusal suspends a workload whose processes have just ended.
func TestEndedWorkloadIsNoRefusal(t *testing.T) {
	b := newBench(t, newCard(0, map[int]int{2: 5, 3: 7}))
	b.card.set(func() { b.card.gone[2], b.card.gone[3] = true, true })
	b.order(2, 3)
	if end := b.end(); end.Err == nil || len(b.Totals().Refused) != 0 {
		t.Errorf("%+v, refused %v", end, b.Totals().Refused)
	}
}

// TestDeadlines gives a call that copies as long as 256 MiB a second take, and 15 s besides.
func TestDeadlines(t *testing.T) {
	var mu sync.Mutex
	left := map[Op]time.Duration{}
	c := newCard(0, map[int]int{2: 5})
	b := newBench(t, c)
	calls := b.Call
	b.Call = func(ctx context.Context, op Op, pid int) (State, error) {
		end, _ := ctx.Deadline()
		mu.Lock()
		left[op] = time.Until(end)
		mu.Unlock()
		return calls(ctx, op, pid)
	}
	p := processes(2)
	p[0].Memory = map[string]uint64{"GPU-0": 3 << 30, "GPU-1": 1 << 30}
	fixture.Must(t, b.Suspend(b.now, job, p, ""))
	b.end()
	_ = b.Resume(b.now, job, "wanted")
	b.end()
	mu.Lock()
	defer mu.Unlock()
	for op, want := range map[Op]time.Duration{Ask: 15 * time.Second, Lock: 15 * time.Second, Unlock: 15 * time.Second,
		Checkpoint: 31 * time.Second, Restore: 31 * time.Second} {
		got := left[op]
		fixture.If(t, got > want || got < want-5*time.Second, "%s has %v, want %v", op, got, want)
	}
}

// TestLifeEndsCalls makes no more calls after the end. Close waits for one that is under way, but not for ever.
func TestLifeEndsCalls(t *testing.T) {
	for name, returns := range map[string]time.Duration{"a call that returns": lastCall / 2,
		"a call that does not": time.Hour} {
		t.Run(name, func(t *testing.T) { synctest.Test(t, func(t *testing.T) { lifeEndsCalls(t, returns) }) })
	}
}

func lifeEndsCalls(t *testing.T, returns time.Duration) {
	life, end := context.WithCancel(context.Background())
	b := newBench(t, newCard(0, map[int]int{2: 5}))
	asked, calls := make(chan struct{}), 0
	b.Life, b.Call = life, func(ctx context.Context, op Op, _ int) (State, error) {
		if calls++; op != Checkpoint {
			return Running, nil
		}
		close(asked)
		select {
		case <-time.After(returns):
			return Running, nil
		case <-ctx.Done():
			return Unknown, refuse(NoAnswer, "given up")
		}
	}
	p := processes(2)
	p[0].Memory = map[string]uint64{"GPU-0": 80 << 30}
	fixture.Must(t, b.Suspend(b.now, job, p, ""))
	<-asked
	began := time.Now()
	end()
	b.Close()
	took := time.Since(began)
	fixture.If(t, took != min(returns, lastCall) || calls != 3, "Close took %v, after %d calls", took, calls)
	r, _ := b.Record(job)
	fixture.If(t, r.Phase != Suspending || b.file[0].Phase != Suspending, "%+v", r)
}

// TestTextsHaveNumbers tells how much is needed, and how much there is.
func TestTextsHaveNumbers(t *testing.T) {
	s := Mover{Free: func(string) (uint64, bool) { return 300 << 20, true }}
	err := s.fits([]Process{{Memory: map[string]uint64{"GPU-0": 45 << 20}}}, nil)
	want := "GPU-0 has no room for 45 MiB: 300 MiB are free, and 256 MiB are kept for others"
	fixture.If(t, err == nil || err.Error() != want, "%v, want %s", err, want)
	fixture.Must(t, s.fits([]Process{{Memory: map[string]uint64{"GPU-0": 44 << 20}}}, nil))
	h := machine(t, map[string]string{"a/b/memory.max": mib(30), "a/b/memory.current": mib(11)})
	for bytes, want := range map[uint64]string{
		41 << 20: "41 MiB of GPU memory need as much host memory: 50 MiB are available, of which 10 % of the total are " +
			"reserved",
		20 << 20: "20 MiB of GPU memory need as much host memory, and the limit of cgroup /a/b leaves 19 MiB",
	} {
		err := h.Room(map[int]uint64{2: bytes}, nil)
		fixture.If(t, err == nil || err.Error() != want, "%v, want %s", err, want)
	}
}

// TestTotalsAreACopy returns counters that later refusals do not change.
func TestTotalsAreACopy(t *testing.T) {
	var s Suspender
	_ = s.Refuse(MPS, "")
	was := s.Totals()
	_ = s.Refuse(MPS, "")
	if was.Refused[MPS] != 1 || s.Totals().Refused[MPS] != 2 {
		t.Errorf("%v, then %v", was.Refused, s.Totals().Refused)
	}
}

// TestOrderBeginsAtOnce does not wait for the next look.
func TestOrderBeginsAtOnce(t *testing.T) {
	b := newBench(t, newCard(0, map[int]int{2: 5}))
	b.away(2)
	_ = b.Resume(b.now, job, "wanted")
	fixture.Eventually(t, "it runs without a look", func() bool { return b.card.all(Running, 2) })
}

// TestInitIsNeverSuspended forgets a record of processes that cannot have been suspended.
func TestInitIsNeverSuspended(t *testing.T) {
	b := newBench(t, newCard(0, map[int]int{1: 5, 2: 5}))
	b.Restore(b.now, []Record{{Tenant: "a", Workload: "slurm:1", Phase: Suspended, Processes: processes(0, 1, 2)}})
	r, _ := b.Record(job)
	fixture.If(t, len(r.Processes) != 1 || r.Processes[0].PID != 2, "%+v", r)
}

// TestOldestSuspensionComesFirst looks at workloads in the order in which they were suspended, and lists them by name.
func TestOldestSuspensionComesFirst(t *testing.T) {
	b := newBench(t, newCard(0, map[int]int{2: 5, 3: 5}))
	var all []Record
	for i, name := range []string{"b", "a"} {
		all = append(all, Record{Tenant: "t", Workload: name, Phase: Suspended, Since: b.now.Add(time.Duration(i)),
			Processes: processes(2 + i)})
	}
	b.Restore(b.now, all)
	r := b.Records()
	fixture.If(t, r[0].Workload != "a" || r[1].Workload != "b", "%+v", r)
	if w := b.work.order(); w[0].Workload != "b" || w[1].Workload != "a" {
		t.Errorf("first %s, then %s", w[0].Workload, w[1].Workload)
	}
}

// TestTwoResumeAtOnce resumes two workloads at once where one has room. The driver is
// not asked to restore the other one.
func TestTwoResumeAtOnce(t *testing.T) {
	b := newBench(t, newCard(0, map[int]int{2: 5, 3: 7}))
	other := audit.Subject{Tenant: "b", Workload: "x"}
	for pid, of := range map[int]audit.Subject{2: job, 3: other} {
		p := processes(pid)
		p[0].Memory = map[string]uint64{"GPU-0": 100 << 20}
		fixture.Must(t, b.Suspend(b.now, of, p, "ordered"))
		b.end()
	}
	free := uint64(400 << 20)
	b.card.set(func() { b.card.said = &free })
	_ = b.Resume(b.now, job, "wanted")
	_ = b.Resume(b.now, other, "wanted")
	ends := map[string]error{}
	fixture.Eventually(t, "both end", func() bool {
		for _, end := range b.Look(b.now) {
			ends[end.Workload] = end.Err
		}
		return len(ends) == 2
	})
	fixture.If(t, ends[job.Workload] != nil || ReasonOf(ends["x"]) != GPUMemory || !b.card.all(Checkpointed, 3),
		"%v, %v", ends, b.card.calls)
}

// TestBrokenProcessIsReported loses the process that the driver broke, and no other.
func TestBrokenProcessIsReported(t *testing.T) {
	b := newBench(t, newCard(0, map[int]int{2: 5, 3: 7}))
	b.away(2, 3)
	b.card.set(func() { b.card.state[2] = Broken })
	_ = b.Resume(b.now, job, "wanted")
	if end := b.end(); end.Err != nil || !slices.Equal(end.Lost, []int{2}) || !b.card.all(Running, 3) {
		t.Errorf("%+v, %v", end, b.card.state)
	}
	fixture.Equal(t, b.Totals().Broken, 1, "broken processes")
	b.away(3)
	b.card.wrong["restore 3"], b.card.breaks = refuse(Other, "broken"), true
	_ = b.Resume(b.now, job, "wanted")
	if end := b.end(); end.Err != nil || !slices.Equal(end.Lost, []int{3}) {
		t.Errorf("%+v", end)
	}
	b = newBench(t, newCard(0, map[int]int{2: 5}))
	b.card.wrong["checkpoint 2"] = refuse(Other, "broken")
	b.card.breaks = true
	b.order(2)
	if end := b.end(); end.Done != Suspended || end.Err == nil || !slices.Equal(end.Lost, []int{2}) ||
		b.Totals().Broken != 1 {
		t.Errorf("%+v", end)
	}
}

// TestAProcessThatEndsIsForgotten forgets a workload with its last process.
func TestAProcessThatEndsIsForgotten(t *testing.T) {
	b := newBench(t, newCard(0, map[int]int{2: 5, 3: 7}))
	b.away(2, 3)
	b.card.set(func() { b.card.gone[2] = true })
	b.Look(b.now)
	r, _ := b.Record(job)
	fixture.If(t, len(r.Processes) != 1 || len(b.file[0].Processes) != 1, "%+v", r)
	b.card.set(func() { b.card.gone[3] = true })
	b.Look(b.now)
	if len(b.Records()) > 0 || len(b.file) > 0 {
		t.Errorf("%+v, %+v", b.Records(), b.file)
	}
}

// TestKilledEnforcerLosesNoProcess kills the enforcer before each call of a cycle, once or twice. The next one leaves
// no process locked, nor suspended unless all of it was.
func TestKilledEnforcerLosesNoProcess(t *testing.T) {
	suspended, ran := 0, 0
	for kill := range 24 {
		for again := range 12 {
			b := newBench(t, newCard(0, map[int]int{2: 5, 3: 7}))
			b.card.left = kill
			b.order(2, 3)
			if b.lives() && again%2 == 0 {
				_ = b.Resume(b.now, job, "wanted")
				b.lives()
			}
			b.card.set(func() { b.card.left = again })
			b.begin()
			b.lives()
			b.card.set(func() { b.card.left = -1 })
			b.begin()
			if r, is := b.Record(job); is && r.Phase == Suspended {
				suspended++
				fixture.Stop(t, !b.card.all(Checkpointed, 2, 3),
					"killed at call %d and %d: suspended are %v", kill, again, b.card.state)
				_ = b.Resume(b.now, job, "wanted")
			}
			fixture.Eventually(t, fmt.Sprintf("killed at call %d and %d, it is resumed", kill, again), func() bool {
				b.now = b.now.Add(time.Minute)
				b.Look(b.now)
				return len(b.Records()) == 0
			})
			fixture.Stop(t, !b.card.all(Running, 2, 3), "killed at call %d and %d: %v", kill, again, b.card.state)
			ran++
		}
	}
	fixture.AtLeast(t, suspended, 1, "suspended workloads found in %d cycles", ran)
}

// TestRoomCountsWhatIsOnTheWay asks for room beside workloads that are being suspended.
func TestRoomCountsWhatIsOnTheWay(t *testing.T) {
	b := newBench(t, newCard(0, map[int]int{2: 5, 3: 7, 4: 9}))
	b.away(2)
	var others map[int]uint64
	b.Room = func(_, beside map[int]uint64) error { others = beside; return nil }
	_ = b.Join(b.now, job, processes(3))
	fixture.Equal(t, len(others), 0, "%v", others)
	err := b.Suspend(b.now, another, processes(4), "")
	fixture.If(t, err != nil || !maps.Equal(others, map[int]uint64{3: 100}), "%v, %v", err, others)
}

// TestForeignLockStays leaves a workload alone of which a process is locked or suspended already, or broken.
func TestForeignLockStays(t *testing.T) {
	for _, state := range []State{Locked, Checkpointed, Broken} {
		b := newBench(t, newCard(0, map[int]int{2: 5, 3: 7}))
		b.card.set(func() { b.card.state[3] = state })
		b.order(2, 3)
		if end := b.end(); end.Done != Suspended || ReasonOf(end.Err) != WrongState || len(end.Lost) > 0 ||
			!strings.Contains(end.Err.Error(), "the driver says that 3 is "+state.String()) {
			t.Errorf("%v: %+v", state, end)
		}
		fixture.If(t, len(b.Records()) > 0 || len(b.file) > 0 || len(b.card.calls) > 0,
			"%v: %+v, %v", state, b.file, b.card.calls)
	}
}

// TestAnotherProcessWithThePIDIsLeftAlone makes no call on the process that has the PID of one that was suspended.
func TestAnotherProcessWithThePIDIsLeftAlone(t *testing.T) {
	for _, phase := range []Phase{Suspending, Suspended, Resuming} {
		b := newBench(t, newCard(0, map[int]int{2: 5}))
		b.Call = func(_ context.Context, op Op, pid int) (State, error) {
			t.Errorf("%s: %s of %d", phase, op, pid)
			return Unknown, refuse(Other, "x")
		}
		b.card.gone[2] = true
		b.Restore(b.now, []Record{{Tenant: "a", Workload: "slurm:1", Phase: phase, Processes: processes(2)}})
		b.Look(b.now)
		fixture.If(t, len(b.Records()) > 0 || len(b.file) > 0, "%s: %+v", phase, b.file)
		b.order(2)
		fixture.Need(t, ReasonOf(b.end().Err), NotCUDA, "the end")
	}
}
