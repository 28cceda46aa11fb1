package suspend

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"gpusteward/internal/fixture"
)

// pids returns the processes of the job's record.
func (b *bench) pids() (all []int) {
	r, _ := b.Record(job)
	for _, p := range r.Processes {
		all = append(all, p.PID)
	}
	return all
}

// away suspends processes of the job.
func (b *bench) away(pids ...int) {
	b.t.Helper()
	b.order(pids...)
	end := b.end()
	fixture.Stop(b.t, end.Done != Suspended || end.Err != nil, "%+v", end)
}

// back resumes the job, and expects that these processes run.
func (b *bench) back(pids ...int) {
	b.t.Helper()
	_ = b.Resume(b.now, job, "wanted")
	fixture.Eventually(b.t, "it is resumed", func() bool {
		b.now = b.now.Add(time.Second)
		b.Look(b.now)
		return len(b.Records()) == 0
	})
	fixture.If(b.t, !b.card.all(Running, pids...), "%v", b.card.state)
}

func TestAProcessJoins(t *testing.T) {
	b := newBench(t, newCard(0, map[int]int{2: 5, 3: 7}))
	b.away(2)
	for _, way := range []func() error{
		func() error { return b.Join(b.now, job, processes(2, 3)) },
		func() error { return b.Suspend(b.now, job, processes(2, 3), "again") },
	} {
		if err := way(); err != nil || !b.file[0].Processes[1].New || b.file[0].Phase != Suspending {
			t.Fatalf("%v, in the file %+v", err, b.file)
		}
		if end := b.end(); end.Done != Suspended || end.Err != nil || !end.Joined || end.Bytes()["GPU-0"] != 100 {
			t.Fatalf("%+v", end)
		}
		if n := b.Totals(); b.file[0].Phase != Suspended || b.file[0].Processes[1].New || n.Suspended != 1 {
			t.Errorf("in the file %+v, %+v", b.file, n)
		}
		b.back(2, 3)
		b.away(2)
		b.totals.Suspended = 1
	}
	want := "lock 2, checkpoint 2, lock 3, checkpoint 3, restore 2, restore 3, unlock 2, unlock 3, lock 2, "
	got := strings.Join(b.card.calls, ", ")
	fixture.If(t, !strings.HasPrefix(got, want), "the calls are %s", got)
	fixture.Fails(t, b.Join(b.now, job, processes(2)), "", "joining by nobody")
	r, _ := b.Record(job)
	fixture.Equal(t, r.Phase, Suspended, "the phase")
}

// TestProcessThatCannotJoinRuns leaves the others suspended, and lets go on what was done of the
// new ones. The lock of somebody else stays.
func TestProcessThatCannotJoinRuns(t *testing.T) {
	for call, left := range map[string]State{"lock 4": Running, "checkpoint 3": Running, "checkpoint 4": Running,
		"state 4": Running, "": Locked} {
		b := newBench(t, newCard(0, map[int]int{2: 5, 3: 7, 4: 9}))
		b.away(2)
		b.card.set(func() {
			b.card.wrong[call] = refuse(Busy, "%s", call)
			b.card.state[4] = left
		})
		fixture.Must(t, b.Join(b.now, job, processes(3, 4)))
		end := b.end()
		fixture.If(t, end.Done != Suspended || end.Err == nil || !end.Joined, "%q: %+v", call, end)
		b.card.set(func() { clear(b.card.wrong) })
		fixture.Eventually(t, "the new ones are forgotten", func() bool {
			b.now = b.now.Add(time.Second)
			fixture.AtMost(t, len(b.Look(b.now)), 0, "%q", call)
			return slices.Equal(b.pids(), []int{2})
		})
		r := b.file[0]
		fixture.If(t, r.Phase != Suspended || !b.card.all(Checkpointed, 2) || !b.card.all(Running, 3) ||
			!b.card.all(left, 4), "%q: %+v, %v", call, r, b.card.state)
		b.back(2, 3)
	}
}

// TestWhatCannotBeRecordedDoesNotJoin leaves a record as it was.
func TestWhatCannotBeRecordedDoesNotJoin(t *testing.T) {
	b := newBench(t, newCard(0, map[int]int{2: 5, 3: 7}))
	b.away(2)
	keep := b.Keep
	b.Keep = func([]Record) error { return errors.New("disk full") }
	fixture.Fails(t, b.Join(b.now, job, processes(3)), "disk full", "the join")
	b.Keep, b.Room = keep, func(bytes, _ map[int]uint64) error {
		fixture.If(t, !maps.Equal(bytes, map[int]uint64{3: 100}), "room is asked for %v", bytes)
		return refuse(HostMemory, "full")
	}
	fixture.Equal(t, ReasonOf(b.Join(b.now, job, processes(3))), HostMemory, "the order")
	fixture.Equal(t, ReasonOf(b.Suspend(b.now, job, processes(2, 3), "x")), HostMemory, "the order")
	r, _ := b.Record(job)
	fixture.If(t, r.Phase != Suspended || r.Why != "ordered" || len(r.Processes) != 1 || !b.card.all(Running, 3),
		"%+v, %v", r, b.card.state)
	n := b.Totals().Refused
	fixture.If(t, n[Other] != 1 || n[HostMemory] != 2, "%v", n)
}

// TestAResumptionWhileOthersJoin resumes all as soon as the new ones are suspended, or cannot be.
func TestAResumptionWhileOthersJoin(t *testing.T) {
	for _, wrong := range []string{"", "checkpoint 3"} {
		b := newBench(t, newCard(0, map[int]int{2: 5, 3: 7}))
		b.away(2)
		b.card.set(func() { b.card.wrong[wrong] = refuse(Unsupported, "x") })
		fixture.Must(t, b.Join(b.now, job, processes(3)))
		b.back(2, 3)
	}
}

// TestKilledEnforcerKeepsTheOrder kills the enforcer before each call of a join. The next
// one leaves the old processes suspended, and the new ones run.
func TestKilledEnforcerKeepsTheOrder(t *testing.T) {
	for kill := range 10 {
		for again := range 8 {
			b := newBench(t, newCard(0, map[int]int{2: 5, 3: 7, 4: 9}))
			b.away(2)
			b.card.set(func() { b.card.left = kill })
			fixture.Must(t, b.Join(b.now, job, processes(3, 4)))
			joined := b.lives()
			b.card.set(func() { b.card.left = again })
			b.begin()
			b.lives()
			b.card.set(func() { b.card.left = -1 })
			b.begin()
			fixture.Eventually(t, "it is suspended", func() bool {
				b.now = b.now.Add(time.Minute)
				b.Look(b.now)
				r, _ := b.Record(job)
				return r.Phase == Suspended
			})
			fixture.Stop(t, !b.card.all(Checkpointed, 2) ||
				!b.card.all(map[bool]State{true: Checkpointed, false: Running}[joined], 3, 4),
				"killed at call %d and %d, joined %v: %v", kill, again, joined, b.card.state)
			b.back(2, 3, 4)
		}
	}
}

// TestOrderCancelsAResumption keeps away a workload that waits for room.
func TestOrderCancelsAResumption(t *testing.T) {
	b := newBench(t, newCard(0, map[int]int{2: 5, 3: 7}))
	fixture.Must(t, b.GiveWay(b.now, job, processes(2, 3), "idle"))
	b.end()
	b.card.set(func() { b.card.free = 11 })
	_ = b.Resume(b.now, job, "wanted")
	fixture.Need(t, ReasonOf(b.end().Err), GPUMemory, "the end")
	fixture.Equal(t, ReasonOf(b.GiveWay(b.now, job, processes(2, 3), "idle")), WrongState, "the order")
	b.order()
	if end := b.end(); end.Done != Suspended || end.Err != nil || len(end.Processes) != 0 || end.Why != "ordered" {
		t.Errorf("%+v", end)
	}
	b.card.set(func() { b.card.free = 12 })
	for range 100 {
		b.now = b.now.Add(time.Minute)
		ends := b.Look(b.now)
		fixture.Stop(t, len(ends) > 0, "%+v", ends)
	}
	if r := b.file[0]; r.Phase != Suspended || r.Yields || !b.card.all(Checkpointed, 2, 3) || b.Totals().Suspended != 1 {
		t.Errorf("%+v, %v, %+v", r, b.card.state, b.Totals())
	}
	b.back(2, 3)
}

// TestLastOrderHolds has orders follow one another before what the last one began has ended. The last order holds.
func TestLastOrderHolds(t *testing.T) {
	b := newBench(t, newCard(0, map[int]int{2: 5, 3: 7}))
	settles := func(want Phase) {
		t.Helper()
		fixture.Eventually(t, "nothing is under way", func() bool {
			b.now = b.now.Add(time.Minute)
			b.Look(b.now)
			r, _ := b.Record(job)
			return r.Phase == want && (want == "" || b.work[job].ends == nil)
		})
		fixture.Stop(t, !b.card.all(map[Phase]State{"": Running, Suspended: Checkpointed}[want], 2, 3),
			"%v", b.card.state)
	}
	resume := func() { _ = b.Resume(b.now, job, "wanted") }
	b.order(2, 3)
	resume()
	b.order(2, 3)
	settles(Suspended)
	resume()
	b.order(2, 3)
	settles(Suspended)
	resume()
	b.order(2, 3)
	resume()
	settles("")
	b.away(2, 3)
	b.card.set(func() { b.card.wrong["restore 3"] = refuse(GPUMemory, "full") })
	resume()
	b.order(2, 3)
	settles(Suspended)
	b.card.set(func() { b.card.wrong["checkpoint 2"] = refuse(NoAnswer, "silent") })
	resume()
	if end := b.end(); end.Err == nil || !b.card.all(Locked, 2) {
		t.Fatalf("%+v, %v", end, b.card.state)
	}
	b.card.set(func() { clear(b.card.wrong) })
	b.order()
	settles(Suspended)
	resume()
	b.Room = func(_, _ map[int]uint64) error { return refuse(HostMemory, "full") }
	b.order(2, 3)
	settles("")
}

// TestEndedWorkloadIsNotResumed tells nobody that a workload runs again whose processes ended meanwhile.
func TestEndedWorkloadIsNotResumed(t *testing.T) {
	b := newBench(t, newCard(0, map[int]int{2: 5}))
	b.away(2)
	calls := b.Call
	b.Call = func(ctx context.Context, op Op, pid int) (State, error) {
		b.card.set(func() { b.card.gone[2] = true })
		return calls(ctx, op, pid)
	}
	_ = b.Resume(b.now, job, "wanted")
	fixture.Eventually(t, "it is forgotten", func() bool {
		ends := b.Look(b.now)
		fixture.Stop(t, len(ends) > 0, "%+v", ends)
		return len(b.Records()) == 0
	})
	fixture.Equal(t, b.Totals().Resumed, 0, "resumptions")
}

// TestWorkloadTooLargeToReturnStays suspends nothing that would never find room again.
func TestWorkloadTooLargeToReturnStays(t *testing.T) {
	b := newBench(t, newCard(0, map[int]int{2: 5, 3: 7}))
	size, known := uint64(200+spare), true
	b.Size = func(string) (uint64, bool) { return size - 1, known }
	err := b.Suspend(b.now, job, processes(2, 3), "")
	fixture.If(t, ReasonOf(err) != GPUMemory || len(b.Records()) > 0, "%v", err)
	b.away(2)
	fixture.Equal(t, ReasonOf(b.Join(b.now, job, processes(3))), GPUMemory, "the order")
	size++
	fixture.Must(t, b.Join(b.now, job, processes(3)))
	b.end()
	b.back(2, 3)
	known, size = false, 1
	b.away(2, 3)
}

// TestRandomOrders has a workload grow and shrink while orders follow one another and calls fail now and then. Beside
// it, the GPU has too little room for another one, which is suspended at first. In the end all processes run.
func TestRandomOrders(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	c := newCard(0, map[int]int{2: 5, 3: 5, 4: 5, 5: 5})
	c.set(func() { c.state[5] = Checkpointed })
	b := newBench(t, c)
	b.Restore(b.now, []Record{{Tenant: another.Tenant, Workload: another.Workload, Phase: Suspended,
		Processes: processes(5)}})
	all := []int{2, 3, 4}
	for range 3000 {
		c.set(func() {
			clear(c.wrong)
			if random.IntN(4) == 0 {
				op := []Op{Ask, Lock, Checkpoint, Restore, Unlock}[random.IntN(5)]
				c.wrong[fmt.Sprintf("%s %d", op, 2+random.IntN(4))] = refuse(NoAnswer, "trouble")
			}
		})
		some := all[:1+random.IntN(3)]
		switch random.IntN(8) {
		case 0:
			_ = b.Suspend(b.now, job, processes(some...), "ordered")
		case 1:
			_ = b.Join(b.now, job, processes(some...))
		case 2:
			_ = b.Resume(b.now, job, "wanted")
		case 3:
			_ = b.GiveWay(b.now, job, processes(some...), "idle")
		case 4:
			_ = b.Suspend(b.now, another, processes(5), "ordered")
		case 5:
			_ = b.Resume(b.now, another, "wanted")
		}
		b.now = b.now.Add(time.Minute)
		for _, end := range b.Look(b.now) {
			if end.Done != Suspended || end.Err != nil {
				continue
			}
			if r, _ := b.Record(job); r.Phase == Suspended && !c.all(Checkpointed, b.pids()...) {
				t.Fatalf("suspended are %v of %v", c.state, b.pids())
			}
		}
		c.set(func() {
			fixture.Stop(t, c.free < 0 || c.free > 20, "%d of 20 free", c.free)
		})
	}
	c.set(func() { clear(c.wrong); c.free += 5 })
	_ = b.Resume(b.now, another, "wanted")
	b.back(2, 3, 4, 5)
}

// TestRetry tries again at once what found no room, but not what failed in the driver.
func TestRetry(t *testing.T) {
	b := newBench(t, newCard(0, map[int]int{2: 5}))
	b.away(2)
	b.card.set(func() { b.card.wrong["restore 2"] = refuse(GPUMemory, "full") })
	_ = b.Resume(b.now, job, "wanted")
	b.end()
	b.Retry(b.now, job)
	b.Look(b.now)
	fixture.If(t, b.work[job].ends != nil, "it is tried again at once")
	none := uint64(1)
	b.card.set(func() { clear(b.card.wrong); b.card.said = &none })
	b.end()
	b.card.set(func() { b.card.said = nil })
	b.Retry(b.now, job)
	b.Look(b.now)
	fixture.If(t, b.work[job].ends == nil, "it is not tried again")
	b.Retry(b.now, another)
}
