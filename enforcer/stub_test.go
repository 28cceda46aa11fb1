package enforcer_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// made builds the hook, the stub and the load generator, unless ready ones are
// named by GS_HOOK, GS_STUB and GS_LOAD.
var made = sync.OnceValue(func() error {
	if os.Getenv("GS_HOOK") != "" {
		return nil
	}
	for _, dir := range []string{"hook", "hook/stub"} {
		if out, err := exec.Command("make", "-s", "-C", dir).CombinedOutput(); err != nil {
			return fmt.Errorf("make -C %s: %w\n%s", dir, err, out)
		}
	}
	return nil
})

// stub returns a simulated GPU that nobody else uses, watched by a monitor.
func stub(t *testing.T) *host {
	t.Helper()
	if err := made(); err != nil {
		t.Fatal(err)
	}
	dir := path(t, "GS_STUB", "hook/build/stub")
	h := &host{driver: []string{"LD_LIBRARY_PATH=" + dir, "GS_STUB_FILE=" + filepath.Join(t.TempDir(), "gpu")}}
	h.truth = watch(t, filepath.Join(dir, "stat"), h.driver)
	return h
}

// load starts the load generator as a tenant, or plain as "". It says that it
// is ready, and waits to be told to begin.
func (h *host) load(t *testing.T, tenant string, options ...string) *worker {
	t.Helper()
	return h.start(t, tenant, append([]string{path(t, "GS_LOAD", "hook/build/stub/load"), "--wait-start",
		"--report-ms=5"}, options...)...)
}

// ready waits until all are set up, which they do side by side.
func ready(t *testing.T, all ...*worker) {
	t.Helper()
	for _, w := range all {
		w.hear(t, time.Minute, "ready")
	}
}

// A monitor reads, every few milliseconds, what the simulated GPU really did
// for each process: nothing under test can bend that.
type monitor struct {
	mu   sync.Mutex
	at   int64           // when it looked last
	busy map[int]*series // GPU time by process
	held map[int]uint64  // bytes by process, as it looked last
	used uint64          // bytes in use, all processes
	peak uint64          // the most of it that there ever was

	// bytes by process that is there: when it looked before, and as far as it has looked since
	listed, next map[int]uint64
	asked, began int64 // when that was
}

// holds is what a driver says that needs half a GiB itself for each process: see
// broker.Options.
func (m *monitor) holds(_ string, pid int) (bytes uint64, at time.Time, listed bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.asked == 0 {
		return 0, at, false
	}
	if bytes, listed = m.listed[pid]; listed {
		bytes += 512 * mib
	}
	return bytes, time.Now().Add(time.Duration(m.asked - monotonic())), listed
}

func watch(t *testing.T, stat string, env []string) *monitor {
	t.Helper()
	cmd := exec.Command(stat, "2")
	cmd.Env, cmd.Stderr = append(os.Environ(), env...), os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
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
			m.busy[pid].add(at, float64(busy))
			m.held[pid] = used
		}
		m.mu.Unlock()
	}
}

// of returns the GPU time of a process so far. The caller only reads.
func (m *monitor) of(pid int) *series {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.busy[pid] == nil {
		return &series{}
	}
	s := *m.busy[pid]
	return &s
}

// memory returns the bytes in use now, and the most that ever were.
func (m *monitor) memory(t *testing.T) (used, peak uint64) {
	t.Helper()
	now := monotonic()
	poll(t, 10*time.Second, "the monitor has not looked", func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		used, peak = m.used, m.peak
		return m.at > now
	})
	return used, peak
}
