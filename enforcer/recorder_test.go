package enforcer_test

import (
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"gpusteward/enforcer/broker"
	"gpusteward/internal/fixture"
	"gpusteward/internal/quota"
	"gpusteward/internal/wire"
)

// A recorder is a broker, and the events of all its sessions.
type recorder struct {
	socket, hook string

	mu     sync.Mutex
	events map[int]*recording // by PID
}

type recording struct {
	session       uint64
	reader        wire.TraceReader
	events        []wire.Event
	lost          uint64
	ended         bool
	head          uint64
	communicators [wire.Communicators]wire.Communicator
}

func record(t *testing.T) *recorder {
	t.Helper()
	r := &recorder{hook: fixture.Given(t, "GS_HOOK", "hook/build/libgpusteward.so"), events: map[int]*recording{}}
	r.socket = observeWith(t, r.look)
	return r
}

// env is that of a program whose launches wait for the broker, so that all of them are recorded.
func (r *recorder) env() []string {
	return []string{"LD_PRELOAD=" + r.hook, "GPUSTEWARD_SOCKET=" + r.socket, "GPUSTEWARD_FAIL=closed"}
}

// observeWith runs a broker of two tenants without limits, "" and "observed",
// whose traces look gets, and returns its socket.
func observeWith(t *testing.T, look func(broker.Traced)) (socket string) {
	t.Helper()
	var b *broker.Broker
	return observedBy(t, &b, look)
}

// observedBy is observeWith, and tells the broker.
func observedBy(t *testing.T, b **broker.Broker, look func(broker.Traced)) (socket string) {
	t.Helper()
	free := broker.Quota{Quota: quota.Quota{Limit: 1}, Weight: 1}
	socket = filepath.Join(fixture.ShortDir(t), "s")
	*b = fixture.Value(broker.New(broker.Options{Socket: socket, Policy: book{{"", free}, {"observed", free}}, Observe: look}))(t)
	fixture.Running(t, (*b).Run)
	return socket
}

func (r *recorder) look(one broker.Traced) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c, ok := one.Trace.Clock()
	if !ok {
		return
	}
	to := r.events[one.PID]
	if to == nil {
		to = &recording{session: one.Session}
		r.events[one.PID] = to
	}
	var lost uint64
	to.events, lost = to.reader.Read(one.Trace, c, fixture.Monotonic(), to.events)
	to.lost += lost
	to.ended = one.Ends
	to.head = one.Trace.Head()
	for i := range to.communicators {
		if g, ok := one.Trace.Communicator(c, i); ok {
			to.communicators[i] = g
		}
	}
}

// TestTrace runs a program on the simulated GPU. Its trace has each launch and
// each wait, once and in order, and outlives the process.
func TestTrace(t *testing.T) {
	for _, threads := range []int{1, 4} {
		t.Run(fmt.Sprint(threads, " threads"), func(t *testing.T) { t.Parallel(); traceOf(t, threads) })
	}
}

func traceOf(t *testing.T, threads int) {
	h := stub(t)
	r := record(t)
	h.hook = r.env()
	w := h.load(t, "observed", "--kernel-us=100", fmt.Sprint("--steps=", 10000/threads), "--sync-every=10",
		"--seconds=60", fmt.Sprint("--threads=", threads))
	before := time.Now()
	goes(t, w)
	w.hear(t, time.Minute, "total")
	events := r.of(t, w.Cmd.Process.Pid)
	counts := map[wire.EventKind]int{}
	launched := map[uint32]int{}
	var last int64
	for _, e := range events {
		counts[e.Kind]++
		if e.Kind == wire.EventLaunch {
			launched[e.ID]++
		}
		if e.At < last-int64(time.Millisecond) {
			t.Fatalf("an event %v before its predecessor", time.Duration(last-e.At))
		}
		last = max(last, e.At)
	}
	if counts[wire.EventLaunch] < 10_000 || counts[wire.EventLaunch] > 10_100 || len(launched) != 1 {
		t.Errorf("%d launches of %d functions, want 10000 and its warm-up of one", counts[wire.EventLaunch], len(launched))
	}
	if counts[wire.EventWait] < 1000 || counts[wire.EventWait] != counts[wire.EventWaited] {
		t.Errorf("%d waits begun and %d ended, want 1000 or more", counts[wire.EventWait], counts[wire.EventWaited])
	}
	fixture.AtLeast(t, counts[wire.EventBusy], 1, "times that the GPU was busy")
	took := time.Since(before)
	fixture.AtMost(t, time.Duration(last-events[0].At), took+10*time.Second, "the events span … of %v", took)
}

// of returns the events of a process once its session has ended.
func (r *recorder) of(t *testing.T, pid int) (events []wire.Event) {
	t.Helper()
	fixture.Eventually(t, "its session has ended", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		one := r.events[pid]
		if one == nil || !one.ended {
			return false
		}
		events = one.events
		return true
	})
	return events
}
