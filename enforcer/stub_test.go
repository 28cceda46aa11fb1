package enforcer_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gpusteward/internal/fixture"
	"gpusteward/internal/procs"
)

// made builds the hook, the stub and the load generator, unless GS_HOOK, GS_STUB and GS_LOAD name ready ones.
var made = sync.OnceValue(func() error {
	if os.Getenv("GS_HOOK") != "" {
		return nil
	}
	return fixture.MakeHook("hook", "all", "stub")
})

// stub returns a simulated GPU of its own, watched by a monitor. Variables of the environment change it.
func stub(t *testing.T, change ...string) *host {
	t.Helper()
	fixture.Must(t, made())
	dir := fixture.Given(t, "GS_STUB", "hook/build/stub")
	h := &host{driver: append([]string{"LD_LIBRARY_PATH=" + dir, "GS_STUB_FILE=" + filepath.Join(t.TempDir(), "gpu")},
		change...)}
	h.truth = watch(t, filepath.Join(dir, "stat"), h.driver)
	return h
}

// load starts the load generator as a tenant, or without the hook if tenant is
// "". It reports that it is ready, and waits for the word to begin.
func (h *host) load(t *testing.T, tenant string, options ...string) *worker {
	t.Helper()
	return h.start(t, tenant, append([]string{fixture.Given(t, "GS_LOAD", "hook/build/stub/load"), "--wait-start",
		"--report-ms=5"}, options...)...)
}

// ready waits until all are set up, which they do side by side.
func ready(t *testing.T, all ...*worker) {
	t.Helper()
	for _, w := range all {
		w.hear(t, time.Minute, "ready")
	}
}

// goes has these begin, once all are set up.
func goes(t *testing.T, all ...*worker) {
	t.Helper()
	ready(t, all...)
	for _, w := range all {
		w.Tell("go")
	}
}

// A monitor reads, every few milliseconds, the simulated GPU's true work for
// each process, which the tested code cannot change.
type monitor struct {
	mu   sync.Mutex
	at   int64           // time of the last reading
	busy map[int]*series // GPU time by process
	held map[int]uint64  // bytes by process at the last reading
	used uint64          // bytes in use, all processes
	peak uint64          // highest value of used

	// bytes by process that is present: at the last complete reading, and in the current one so far
	listed, next map[int]uint64
	asked, began int64 // begin of the two readings
}

// holds simulates a driver that needs half a GiB for each process: see broker.Options.
func (m *monitor) holds(_ string, pid int) (bytes uint64, at time.Time, listed bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.asked == 0 {
		return 0, at, false
	}
	if bytes, listed = m.listed[pid]; listed {
		bytes += 512 * mib
	}
	return bytes, time.Now().Add(time.Duration(m.asked - fixture.Monotonic())), listed
}

func watch(t *testing.T, stat string, env []string) *monitor {
	t.Helper()
	cmd := exec.Command(stat, "2")
	cmd.Env, cmd.Stderr = append(os.Environ(), env...), os.Stderr
	out := fixture.Value(cmd.StdoutPipe())(t)
	fixture.Must(t, cmd.Start())
	m := &monitor{busy: map[int]*series{}, held: map[int]uint64{}}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		m.read(out)
	}()
	t.Cleanup(func() {
		cmd.Process.Kill()
		<-ended
		cmd.Wait()
	})
	return m
}

func (m *monitor) read(out io.Reader) {
	for lines := bufio.NewScanner(out); lines.Scan(); {
		var at, busy int64
		var gpu, pid int
		var used, peak uint64
		if _, err := fmt.Sscan(lines.Text(), &at, &gpu, &pid, &busy, &used, &peak); err != nil {
			continue
		}
		m.mu.Lock()
		if pid == 0 {
			m.at, m.used, m.peak = at, used, max(m.peak, peak)
			m.listed, m.asked = m.next, m.began
			m.next, m.began = map[int]uint64{}, at
		} else {
			m.next[pid] = used
			if m.busy[pid] == nil {
				m.busy[pid] = &series{cost: 1e-9}
			}
			m.busy[pid].Add(at, float64(busy))
			m.held[pid] = used
		}
		m.mu.Unlock()
	}
}

// of returns the GPU time of a process so far. The caller only reads it.
func (m *monitor) of(pid int) *series {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.busy[pid] == nil {
		return &series{}
	}
	s := *m.busy[pid]
	return &s
}

// memory returns the bytes in use now, and their highest value.
func (m *monitor) memory(t *testing.T) (used, peak uint64) {
	t.Helper()
	now := fixture.Monotonic()
	poll(t, 10*time.Second, "the monitor has not looked", func() bool { return m.since(now) })
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.used, m.peak
}

// since reports whether the monitor has looked since a moment.
func (m *monitor) since(moment int64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.at > moment
}

// freeze stops a process by SIGSTOP, but not while it has the lock of the simulated GPU: then nobody could use that.
func (h *host) freeze(t *testing.T, w *worker) {
	t.Helper()
	stopped := int64(0)
	poll(t, time.Minute, "it always has the GPU's lock", func() bool {
		switch now := fixture.Monotonic(); {
		case stopped == 0:
			fixture.Must(t, w.Cmd.Process.Signal(unix.SIGSTOP))
			poll(t, time.Minute, "it does not stop", func() bool { return stands(w.Cmd.Process.Pid) })
			stopped = fixture.Monotonic()
		case h.truth.since(stopped):
			return true
		case now > stopped+int64(time.Second):
			fixture.Must(t, w.Cmd.Process.Signal(unix.SIGCONT))
			stopped = 0
		}
		return false
	})
}

// states returns the states of the threads of a process.
func states(pid int) (all []byte) {
	dir := fmt.Sprintf("/proc/%d/task", pid)
	threads, _ := os.ReadDir(dir)
	for _, thread := range threads {
		tid, _ := strconv.Atoi(thread.Name())
		if state := procs.State(dir, tid); state != 0 { // it has not ended meanwhile
			all = append(all, state)
		}
	}
	return all
}

// stands reports whether all threads of a process were stopped by a signal.
func stands(pid int) bool {
	return !slices.ContainsFunc(states(pid), func(state byte) bool { return state != 'T' })
}

// traced reports whether a thread of a process is held by the one that traces it.
func traced(pid int) bool { return slices.Contains(states(pid), 't') }
