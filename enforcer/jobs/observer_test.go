package jobs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"gpusteward/enforcer/broker"
	"gpusteward/internal/fixture"
	"gpusteward/internal/wire"
)

// A host is a simulated one: its clock, and its processes, which write their traces as the hook does.
type host struct {
	t        *testing.T
	Observer Observer
	at       int64 // CLOCK_MONOTONIC, ns; a tick of the traces is 1 ns
	ranks    []*rank
}

func newHost(t *testing.T, ranks int) *host {
	h := &host{t: t, at: 1e12}
	h.Observer.Procfs, h.Observer.Now = inMemory(t), func() int64 { return h.at }
	h.Observer.sockets = func(string, string, []int) (sockets, error) { return sockets{}, nil }
	for i := range ranks {
		r := &rank{h: h, pid: 1000 + i, tenant: "default", trace: make([]byte, wire.TraceSize)}
		r.clock(h.at - 1e9)
		h.ranks = append(h.ranks, r)
		r.proc('S', 0)
	}
	return h
}

// stepping returns a host whose processes are known to step.
func stepping(t *testing.T, ranks int) *host {
	h := newHost(t, ranks)
	h.trains(100)
	return h
}

// inMemory returns a directory for many small files that are written again and
// again: in memory if the machine has such a place.
func inMemory(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "procfs")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// A rank is one of the host's processes.
type rank struct {
	h       *host
	pid     int
	tenant  string
	owner   string
	party   string
	trace   []byte
	head    uint64
	entered uint64
	bytes   uint64
	ticks   int  // of processors
	silent  bool // its hook writes no clock
}

// proc writes what procfs shows of the process: its state, and how many ticks it has used.
func (r *rank) proc(state byte, ticks int) {
	r.ticks += ticks
	fixture.Rewrite(r.h.t, filepath.Join(r.h.Observer.Procfs, fmt.Sprint(r.pid), "stat"),
		fmt.Sprintf("%d (python) %c 1 1 1 0 -1 0 0 0 0 0 %d 0 0 0 20 0 1 0 100\n", r.pid, state, r.ticks))
}

func (r *rank) put64(at int, v uint64) { binary.NativeEndian.PutUint64(r.trace[at:], v) }
func (r *rank) put32(at int, v uint32) { binary.NativeEndian.PutUint32(r.trace[at:], v) }

// clock begins the trace.
func (r *rank) clock(began int64) {
	r.put32(64, 1)
	for i, v := range []int64{began, began, r.h.at, r.h.at} {
		r.put64(72+8*i, uint64(v))
	}
}

// note writes an event after a while.
func (r *rank) note(at int64, kind wire.EventKind, id uint32) {
	n := r.head
	place := 128 + wire.Communicators*128 + int(n%wire.EventsKept)*16
	r.put64(place, uint64(at))
	r.put32(place+8, id)
	r.put32(place+12, uint32(kind)|uint32(n/wire.EventsKept&0xff)<<8)
	r.head++
	r.put64(0, r.head)
}

// enter calls a collective of the one communicator.
func (r *rank) enter(at int64, bytes uint64) {
	r.entered++
	r.bytes += bytes
	r.note(at, wire.EventCollective, uint32(bytes))
	for i, v := range []uint64{77, 0, r.entered, uint64(at), r.entered - 1, r.bytes} {
		r.put64(128+8*i, v)
	}
	r.put32(136, uint32(slices.Index(r.h.ranks, r)))
	r.put32(140, uint32(len(r.h.ranks)))
	r.put32(192, uint32(wire.AllReduce))
	r.put64(200, r.entered-1)
}

// step runs one step of 100 ms on all ranks; each may do otherwise.
func (h *host) step(otherwise map[int]func(r *rank, at int64)) {
	for i, r := range h.ranks {
		if other := otherwise[i]; other != nil {
			other(r, h.at)
			continue
		}
		r.train(h.at)
	}
	h.at += 100e6
	h.look()
}

// trains runs so many steps on all ranks.
func (h *host) trains(steps int) {
	for range steps {
		h.step(nil)
	}
}

// launches is the begin of a step.
func (r *rank) launches(at int64) {
	for i := range 40 {
		r.note(at+int64(i)*200e3, wire.EventLaunch, uint32(100+i%10+i/20*50))
	}
}

// train is a step: launches, a collective, an update, and a wait.
func (r *rank) train(at int64) {
	r.launches(at)
	r.enter(at+20e6, 1<<20)
	for i := range 5 {
		r.note(at+21e6+int64(i)*200e3, wire.EventLaunch, uint32(300+i))
	}
	r.note(at+25e6, wire.EventWait, 0)
	r.note(at+95e6, wire.EventWaited, 0)
}

// TestAProcessThatStandsIsOutside of steps while it stands, and counted once.
func TestAProcessThatStandsIsOutside(t *testing.T) {
	t.Parallel()
	h, began := newHost(t, 1), int64(0)
	counted := func() (in, outside float64) {
		all, _ := h.look()
		return all[0].Seconds.Sum, all[0].Outside
	}
	h.trains(100)
	began = h.at
	in, outside := counted()
	for _, c := range []struct{ after, outside float64 }{{9, 0}, {11, 11}, {300, 300}} {
		h.wait(int(c.after) - int(h.at-began)/1e9)
		if now, more := counted(); now != in || math.Abs(more-outside-c.outside) > 0.2 {
			t.Errorf("after %g s: %g s in steps, %g outside", c.after, now-in, more-outside)
		}
	}
	h.trains(100)
	if now, more := counted(); math.Abs(now-in-310) > 0.2 || math.Abs(more-outside-300) > 0.2 {
		t.Errorf("%g s in steps and %g outside: want the long step, and outside as before", now-in, more-outside)
	}
	h.wait(400)
	if now, more := counted(); math.Abs(now-in-310) > 0.2 || math.Abs(more-outside-400) > 0.2 {
		t.Errorf("%g s in steps and %g outside of 710", now-in, more-outside)
	}
}

// TestAServerIsNotOutside of the tokens that were taken for steps at first.
func TestAServerIsNotOutside(t *testing.T) {
	t.Parallel()
	h := newHost(t, 1)
	answer := func(launches int) func(r *rank, at int64) {
		return func(r *rank, at int64) {
			for i := range launches {
				r.note(at+int64(i)*200e3, wire.EventLaunch, uint32(100+i))
			}
			r.note(at+25e6, wire.EventWait, 0)
			r.note(at+95e6, wire.EventWaited, 0)
		}
	}
	for _, tokens := range []int{70, 30, 55} {
		h.step(map[int]func(*rank, int64){0: answer(100)}) // the prompt
		for range tokens {
			h.step(map[int]func(*rank, int64){0: answer(20)})
		}
		h.wait(3)
	}
	before, _ := h.look()
	if s := before[0]; s.Steps == 0 || s.Stepping {
		t.Fatalf("%d tokens were taken for steps, stepping %v: want some, and that it does not step", s.Steps, s.Stepping)
	}
	h.wait(600)
	if after, _ := h.look(); after[0].Outside != before[0].Outside {
		t.Errorf("%g s were outside, and %g after ten minutes", before[0].Outside, after[0].Outside)
	}
}

// hangs is the step in which the rank waits in vain for the others.
func (r *rank) hangs(at int64) {
	r.train(at)
	r.head-- // it is not told to go on
	r.put64(0, r.head)
	r.put64(200, r.entered) // it has begun on the GPU
}

func (h *host) look() (all []wire.JobStats, hangs []wire.HangStats) {
	for i, r := range h.ranks {
		if !r.silent {
			r.put64(88, uint64(h.at))
			r.put64(96, uint64(h.at))
		}
		h.Observer.Observe(broker.Traced{Session: uint64(i + 1), PID: r.pid, Tenant: r.tenant, Owner: r.owner, Party: r.party,
			GPUs: []string{fmt.Sprint("GPU-", i)}, Trace: wire.TraceIn(r.trace)})
	}
	return h.Observer.Look(func(int) string { return "job" })
}

// wait lets nothing happen for so many seconds, and returns the hangs at its end.
func (h *host) wait(seconds int) (hangs []wire.HangStats) {
	for range seconds {
		h.at += 1e9
		_, hangs = h.look()
	}
	return hangs
}

// tells waits so many seconds, and wants one hang then, with its culprit; without a reason
// none. An unknown culprit has no rank.
func (h *host) tells(seconds int, reason string, rank int) {
	h.t.Helper()
	hangs := h.wait(seconds)
	if reason == "unknown" {
		rank = -1
	}
	if reason == "" && len(hangs) > 0 || reason != "" && (len(hangs) != 1 || hangs[0].Reason != reason ||
		hangs[0].Rank != rank || rank >= 0 && reason != "ended" && hangs[0].PID != 1000+rank) {
		h.t.Errorf("after %d s: %+v, want rank %d %q", seconds, hangs, rank, reason)
	}
}

func TestStepsAreSummed(t *testing.T) {
	t.Parallel()
	h := newHost(t, 2)
	h.trains(200)
	all, hangs := h.look()
	if len(all) != 2 || len(hangs) != 0 {
		t.Fatalf("%d jobs, %d hangs", len(all), len(hangs))
	}
	s := all[1]
	if s.Steps < 180 || s.Steps > 200 || !s.Stepping || math.Abs(s.Median-0.1) > 0.001 {
		t.Errorf("%d steps of %g s, stepping %v; want nearly 200 of 0.1", s.Steps, s.Median, s.Stepping)
	}
	if s.GPU != "GPU-1" || s.Workload != "job" || s.PID != 1001 {
		t.Errorf("of %s on %s, PID %d", s.Workload, s.GPU, s.PID)
	}
	if s.Launches != 200*45 || s.Waits != 200 || s.Collectives != 200 || s.CollectiveBytes != 200<<20 {
		t.Errorf("%d launches, %d waits, %d collectives of %d bytes", s.Launches, s.Waits, s.Collectives,
			s.CollectiveBytes)
	}
	sum := 0.0
	for _, part := range wire.StepParts {
		sum += s.Parts[part]
	}
	if math.Abs(sum-s.Seconds.Sum) > 1e-3*sum || math.Abs(s.Parts["waiting"]/sum-0.7) > 0.02 {
		t.Errorf("the parts %v add up to %g s of %g", s.Parts, sum, s.Seconds.Sum)
	}
	if len(s.Communicators) != 1 || s.Communicators[0].Rank != 1 || s.Communicators[0].Ranks != 2 {
		t.Errorf("communicators %+v", s.Communicators)
	}
}

// TestCulprits lets a job of four ranks hang for each reason.
func TestCulprits(t *testing.T) {
	t.Parallel()
	waits := (*rank).hangs
	all := func(last int, does func(r *rank, at int64)) map[int]func(*rank, int64) {
		m := map[int]func(*rank, int64){0: waits, 1: waits, 2: waits, 3: waits}
		m[last] = does
		return m
	}
	for _, c := range []struct {
		name string
		last func(r *rank, at int64)
		want string
	}{
		{"stuck in its loader", func(*rank, int64) {}, "absent"},
		{"a collective skipped", func(r *rank, at int64) {
			r.note(at, wire.EventLaunch, 100)
			r.note(at+25e6, wire.EventWait, 0)
		}, "absent"},
		{"stopped", func(r *rank, _ int64) { r.proc('T', 0) }, "stopped"},
		{"a debugger", func(r *rank, _ int64) { r.proc('t', 0) }, ""},
		{"another size", func(r *rank, at int64) {
			r.hangs(at)
			r.bytes += 4
			r.put64(128+40, r.bytes)
		}, "unlike"},
		{"one left out, and the next one called", func(r *rank, at int64) {
			r.hangs(at)
			r.entered++
			r.put64(128+16, r.entered)
		}, "unlike"},
		{"an endless kernel", func(r *rank, at int64) {
			r.hangs(at)
			r.put64(200, r.entered-1)
			r.put64(208, r.entered)
		}, "kernel"},
		{"the network", waits, "unknown"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := stepping(t, 4)
			h.step(all(2, c.last))
			h.Observer.Held = func(_, workload string) bool { return workload == "job" }
			h.tells(30, "", 0) // we have it stand still
			h.Observer.Held = nil
			h.tells(5, "", 0)
			h.tells(10, c.want, 2)
			h.ranks[2].proc('S', 0)
			h.trains(20) // it goes on
			_, after := h.look()
			fixture.Equal(t, len(after), 0, "hangs of one that goes on")
		})
	}
}

// TestAJobThatHangsDoesNotStep lets all ranks wait for one, and go on.
func TestAJobThatHangsDoesNotStep(t *testing.T) {
	t.Parallel()
	h := newHost(t, 3)
	stepping := func() (n int) {
		all, _ := h.look()
		for _, s := range all {
			n += truth(s.Stepping)
		}
		return n
	}
	h.trains(100)
	hangs := (*rank).hangs
	h.step(map[int]func(*rank, int64){0: hangs, 1: hangs, 2: func(*rank, int64) {}})
	fixture.Equal(t, stepping(), 3, "… of 3 ranks step at first")
	if told := h.wait(15); len(told) != 1 || stepping() != 0 {
		t.Errorf("%d ranks step while the job hangs: %+v", stepping(), told)
	}
	h.trains(20)
	fixture.Equal(t, stepping(), 3, "… of 3 ranks step after the hang")
}

// TestAJobThatStandsDoesNotStep although it does not hang: it waits for nothing.
func TestAJobThatStandsDoesNotStep(t *testing.T) {
	t.Parallel()
	h := stepping(t, 1)
	for _, c := range []struct{ wait, stepping int }{{5, 1}, {10, 0}} {
		h.wait(c.wait)
		all, _ := h.look()
		fixture.Equal(t, truth(all[0].Stepping), c.stepping, "%d s later it steps", c.wait)
	}
}

// TestARankThatReconnectsHasNotEnded lets a rank lose its broker and find it again, and another one be absent.
func TestARankThatReconnectsHasNotEnded(t *testing.T) {
	t.Parallel()
	h := stepping(t, 3)
	r := h.ranks[0]
	h.Observer.Observe(broker.Traced{Session: 99, PID: r.pid, Tenant: r.tenant, GPUs: []string{"GPU-0"},
		Trace: wire.TraceIn(slices.Clone(r.trace)), Ends: true})
	hangs := (*rank).hangs
	h.step(map[int]func(*rank, int64){0: hangs, 1: hangs, 2: func(*rank, int64) {}})
	h.tells(15, "absent", 2)
}

// TestSharedMemoryOutlivesTheSession knows of a process that has lost its broker which memory it has.
func TestSharedMemoryOutlivesTheSession(t *testing.T) {
	t.Parallel()
	h := newHost(t, 2)
	r := h.ranks[0]
	r.put32(64+48, uint32(wire.SharedManaged))
	for _, ends := range []bool{false, true} {
		h.Observer.Observe(broker.Traced{Session: 1, PID: r.pid, Trace: wire.TraceIn(r.trace), Ends: ends})
		fixture.Equal(t, h.Observer.Shared(r.pid), wire.SharedManaged, "its session has ended: %v, it shares", ends)
	}
	fixture.Equal(t, h.Observer.Shared(h.ranks[1].pid), 0, "another one shares")
}

// TestOthersBlameNobody lets a process of another tenant or owner name the
// communicator of a job, and be the last or the first in it.
func TestOthersBlameNobody(t *testing.T) {
	t.Parallel()
	nothing, hangs := func(*rank, int64) {}, (*rank).hangs
	for _, liar := range []rank{{tenant: "liar"}, {tenant: "default", owner: "liar"}} {
		for name, last := range map[string]map[int]func(*rank, int64){
			"last":  {0: hangs, 1: hangs, 2: hangs, 3: nothing},
			"first": {0: nothing, 1: nothing, 2: nothing, 3: hangs},
		} {
			h := newHost(t, 4)
			h.ranks[3].tenant, h.ranks[3].owner = liar.tenant, liar.owner
			h.trains(100)
			h.step(last)
			for _, found := range h.wait(30) {
				if name == "first" || found.PID == h.ranks[3].pid {
					t.Errorf("a liar of tenant %s, owner %q is %s: %+v", liar.tenant, liar.owner, name, found)
				}
			}
		}
	}
}

// TestWhoComputesHasTime lets the first rank compute for minutes while the others wait. Once it sleeps, it is absent.
func TestWhoComputesHasTime(t *testing.T) {
	t.Parallel()
	nothing, hangs, graph := func(*rank, int64) {}, (*rank).hangs, (*rank).graph
	for name, c := range map[string]struct {
		steps   int // before
		last    map[int]func(*rank, int64)
		culprit int
	}{
		"it saves": {100, map[int]func(*rank, int64){0: nothing, 1: hangs, 2: hangs, 3: hangs}, 0},
		"it has not called yet": {0, map[int]func(*rank, int64){0: func(r *rank, _ int64) {
			r.put64(128, 77)
			r.put32(136, 0)
			r.put32(140, 4)
		}, 1: graph, 2: graph, 3: graph}, 0},
		"it compiles, and another one sleeps until then": {100, map[int]func(*rank, int64){
			0: func(r *rank, at int64) { r.note(at, wire.EventLaunch, 100) }, 1: nothing, 2: hangs, 3: hangs}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, 4)
			h.trains(c.steps)
			h.step(c.last)
			for i := range 500 {
				h.ranks[0].proc('R', 50)
				if hangs := h.wait(1); len(hangs) != 0 {
					t.Fatalf("%d s after it began: %+v", i, hangs)
				}
			}
			h.tells(20, "absent", c.culprit)
		})
	}
}

// TestAHangIsToldWithItsPlace: a hang is kept back until it is known where its
// culprit stands, but not for long. The procfs of the culprit does not answer.
func TestAHangIsToldWithItsPlace(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		place string
		kept  int // looks
	}{"it is known": {"train.py:7 in load", 1}, "nobody answers": {"", placeLooks - 1}} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, 2)
			fifo := filepath.Join(h.Observer.Procfs, "1001/task/1001/stat")
			fixture.Must(t, errors.Join(os.MkdirAll(filepath.Dir(fifo), 0o755), syscall.Mkfifo(fifo, 0o600),
				os.Symlink(fmt.Sprint(os.Getpid()), filepath.Join(h.Observer.Procfs, "self"))))
			held := fixture.Value(os.OpenFile(fifo, os.O_RDWR, 0))(t)
			defer held.Close() // who reads it ends then
			h.trains(100)
			h.step(map[int]func(*rank, int64){0: func(r *rank, at int64) { r.hangs(at) }, 1: func(*rank, int64) {}})
			var told []wire.HangStats
			kept := 0
			for range 20 {
				if told = h.wait(1); len(told) > 0 {
					break
				}
				for _, found := range h.Observer.hangs {
					if kept++; c.place != "" {
						found.where <- c.place
					}
				}
			}
			if len(told) != 1 || told[0].Where != c.place || kept != c.kept {
				t.Errorf("after %d looks: %+v; want the place %q after %d", kept, told, c.place, c.kept)
			}
		})
	}
}
