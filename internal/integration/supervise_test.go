package integration

import (
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"gpusteward/internal/fixture"
)

// A manager is systemd's end of the notification socket.
type manager struct {
	path string
	mu   sync.Mutex
	got  []string
	last time.Time // of the last WATCHDOG=1
}

func newManager(t *testing.T) *manager {
	t.Helper()
	dir := fixture.ShortDir(t)
	m := &manager{path: filepath.Join(dir, "s")}
	socket := fixture.Value(net.ListenUnixgram("unixgram", &net.UnixAddr{Name: m.path, Net: "unixgram"}))(t)
	var running sync.WaitGroup
	t.Cleanup(func() { socket.Close(); running.Wait() })
	running.Go(func() {
		for b := make([]byte, 4096); ; {
			n, err := socket.Read(b)
			if err != nil {
				return
			}
			m.mu.Lock()
			m.got = append(m.got, string(b[:n]))
			if string(b[:n]) == "WATCHDOG=1" {
				m.last = time.Now()
			}
			m.mu.Unlock()
		}
	})
	return m
}

// count returns how many messages contain text.
func (m *manager) count(text string) (n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.got {
		if strings.Contains(s, text) {
			n++
		}
	}
	return n
}

// all returns the messages so far.
func (m *manager) all() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.got)
}

// quiet returns the time since the last WATCHDOG=1.
func (m *manager) quiet() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return time.Since(m.last)
}

// environment is the environment of a service of systemd; a watchdog of 0 is none.
func (m *manager) environment(watchdog time.Duration) []string {
	env := []string{"NOTIFY_SOCKET=" + m.path}
	if watchdog > 0 {
		env = append(env, fmt.Sprintf("WATCHDOG_USEC=%d", watchdog.Microseconds()))
	}
	return env
}

func TestReadyIsSentOnceEveryGPUWasRead(t *testing.T) {
	t.Parallel()
	m := newManager(t)
	a := spawn(t, m.environment(0), "--demo=testdata/scenario/late.yml").listening()
	waited := 0
	eventually(t, "READY=1", func() bool {
		told := m.count("READY=1") > 0 // read before the request: READY must not precede the answer
		if status, why := a.get("/-/ready"); status != http.StatusOK {
			waited++
			fixture.Equal(t, told, false, "READY=1 while /-/ready says %q", why)
		}
		return told
	})
	if status, why := a.get("/-/ready"); status != http.StatusOK || waited == 0 {
		t.Errorf("after READY=1 /-/ready is %d %q, and was not ready %d times before", status, why, waited)
	}
	fixture.Equal(t, m.count("STATUS=reading GPUs"), 1, "… times STATUS=reading GPUs, want it once: %q", m.all())
	fixture.If(t, m.count("STOPPING=1") != 0 || m.count("WATCHDOG=1") != 0,
		"told to stop or to feed a watchdog that nobody asked for: %q", m.all())
	a.endsWell()
	eventually(t, "STOPPING=1", func() bool { return m.count("STOPPING=1") == 1 })
	fixture.Equal(t, m.count("READY=1"), 1, "READY=1 came … times")
}

func TestWatchdogIsFedWhileAReaderProgresses(t *testing.T) {
	t.Parallel()
	tests := map[string]func(t *testing.T){}
	for _, c := range []struct {
		scenario, fast string
		stuck          int // GPUs that do not answer
		watchdog       time.Duration
		feeds          int
	}{
		{"two", "100ms", 0, 2 * time.Second, 3},
		{"two", "8s", 0, 2 * time.Second, 3},
		{"wedged_one", "100ms", 1, 2 * time.Second, 4},
		{"lost_all", "100ms", 1, 7 * time.Second, 8}, // the agent looks for it every 5 s
		{"empty", "100ms", 0, 2 * time.Second, 3},
		// A restart would not bring the GPU back, and a process with a thread in the driver cannot even end.
		{"wedged_all", "100ms", 1, 2 * time.Second, 5},
	} {
		tests[c.scenario+" "+c.fast] = func(t *testing.T) {
			m := newManager(t)
			a := spawn(t, m.environment(c.watchdog), "--demo=testdata/scenario/"+c.scenario+".yml",
				"--config.file="+fixture.Config(t, "collectors: {fast: "+c.fast+"}"))
			a.listening()
			eventually(t, "GPUs are stuck",
				func() bool { return len(a.scrape().family("gpusteward_worker_stuck")) == c.stuck })
			eventually(t, "WATCHDOG=1", func() bool { return m.count("WATCHDOG=1") > 0 })
			before := m.count("WATCHDOG=1")
			eventually(t, "more WATCHDOG=1", func() bool {
				if quiet := m.quiet(); quiet > c.watchdog {
					t.Fatalf("no WATCHDOG=1 for %v: systemd would have killed the agent", quiet)
				}
				return m.count("WATCHDOG=1") >= before+c.feeds
			})
			status, _ := a.get("/-/healthy")
			fixture.If(t, status != http.StatusOK, "/-/healthy is %d; HTTP has nothing to do with GPUs", status)
			a.endsWell()
			eventually(t, "STOPPING=1", func() bool { return m.count("STOPPING=1") == 1 })
		}
	}
	together(t, tests)
}
