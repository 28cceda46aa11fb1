//go:build long

package broker

import (
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gpusteward/internal/fixture"
)

// TestTenThousand holds idle sessions and logs the memory of each.
func TestTenThousand(t *testing.T) {
	const want = 10_000
	sessions, need := want, uint64(2*want+500)
	var limit unix.Rlimit
	fixture.Must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	// Root may raise the hard limit. Other users open as many as fit.
	if unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: need, Max: max(need, limit.Max)}) != nil {
		_ = unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: limit.Max, Max: limit.Max})
		sessions = min(want, int(limit.Max-500)/2)
	}
	if sessions < want {
		t.Logf("the limit of %d descriptors allows only %d sessions", limit.Max, sessions)
	}
	var owners atomic.Int64 // each session has another owner
	b := start(t, Options{Owner: func(Facts) string { return strconv.FormatInt(owners.Add(1), 10) }},
		func(b *Broker) { b.timing.stale, b.timing.perOwner = time.Hour, 1e9 })
	before := resident(t)
	for range 10 {
		run(t, b, "a", sessions/10, 0)
	}
	eventually(t, "all have taken their seat", func() bool { return b.tenant("a").Sessions == sessions/10*10 })
	// These run each second over all sessions.
	for what, do := range map[string]func(){"Refresh": b.Refresh, "Sessions": func() {
		if n := len(b.Sessions()); n != sessions/10*10 {
			t.Errorf("%d sessions are listed", n)
		}
	}} {
		began := time.Now()
		do()
		took := time.Since(began)
		t.Logf("%s: %v", what, took)
		if took > 500*time.Millisecond {
			t.Errorf("%s takes %v", what, took)
		}
	}
	each := (resident(t) - before) / uint64(sessions)
	t.Logf("%d sessions of %d bytes each", sessions, each)
	if each > 16<<10 {
		t.Errorf("a session costs %d bytes", each)
	}
}

// resident returns the process's RSS in bytes.
func resident(t *testing.T) uint64 {
	t.Helper()
	runtime.GC()
	debug.FreeOSMemory()
	raw, err := os.ReadFile("/proc/self/statm")
	fixture.Must(t, err)
	pages, err := strconv.ParseUint(strings.Fields(string(raw))[1], 10, 64)
	fixture.Must(t, err)
	return pages * uint64(os.Getpagesize())
}
