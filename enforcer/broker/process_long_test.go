//go:build long

package broker

import (
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gpusteward/internal/fixture"
	"gpusteward/internal/wire"
)

// TestTenThousand holds idle sessions and logs the memory of each.
func TestTenThousand(t *testing.T) {
	const want = 10_000
	sessions, need := want, uint64(sessionDescriptors*want+500)
	var limit unix.Rlimit
	fixture.Must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	// Root may raise the hard limit. Other users open as many as fit.
	if unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: need, Max: max(need, limit.Max)}) != nil {
		_ = unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: limit.Max, Max: limit.Max})
		sessions = min(want, int(limit.Max-500)/sessionDescriptors)
	}
	if sessions < want {
		t.Logf("the limit of %d descriptors allows only %d sessions", limit.Max, sessions)
	}
	b := start(t, Options{}, func(b *Broker) { b.timing.stale, b.timing.perUser, b.roll.whose = time.Hour, 1e9, newJob }) // and users
	before := resident(t)
	for range 10 {
		run(t, b, "a", sessions/10, 0)
	}
	eventually(t, "all have taken their seat", func() bool { return b.tenant("a").Sessions == sessions/10*10 })
	// These run each second over all sessions.
	for what, do := range map[string]func(){"Refresh": b.Refresh, "Sessions": func() {
		fixture.Equal(t, len(b.Sessions()), sessions/10*10, "… sessions are listed")
	}} {
		began := time.Now()
		do()
		took := time.Since(began)
		t.Logf("%s: %v", what, took)
		fixture.AtMost(t, took, 500*time.Millisecond, "%s takes", what)
	}
	each := (resident(t) - before) / uint64(sessions)
	t.Logf("%d sessions of %d bytes each", sessions, each)
	fixture.AtMost(t, each, 16<<10, "a session costs … bytes")
}

// resident returns the process's RSS in bytes.
func resident(t *testing.T) uint64 {
	t.Helper()
	runtime.GC()
	debug.FreeOSMemory()
	raw := fixture.Value(os.ReadFile("/proc/self/statm"))(t)
	pages := fixture.Value(strconv.ParseUint(strings.Fields(string(raw))[1], 10, 64))(t)
	return pages * uint64(os.Getpagesize())
}

// TestReserveAllocatesNothing holds that a flood makes no work for the garbage
// collector. It counts the allocations of the process, so it runs alone.
func TestReserveAllocatesNothing(t *testing.T) {
	b := start(t, Options{}, func(b *Broker) {
		b.timing.perSession, b.timing.perUser, b.timing.heartbeat = 1e9, 1e9, time.Hour
	})
	c := dial(t, b, "a", 1)
	file, err := c.conn.File()
	fixture.Must(t, err)
	defer file.Close()
	fd := int(file.Fd())
	m := &wire.Memory{Bytes: 1}
	n := testing.AllocsPerRun(1000, func() {
		_, _ = unix.Write(fd, m.Append(wire.Header{Type: wire.TypeReserve, Session: c.session}.Append(c.out[:0])))
		n, _ := unix.Read(fd, c.in[:])
		_, payload, _ := wire.Decode(c.in[:n])
		m.Decode(payload)
		_, _ = unix.Write(fd, m.Append(wire.Header{Type: wire.TypeCommit, Session: c.session}.Append(c.out[:0])))
		m.Reservation = 0
	})
	fixture.If(t, n > 0.1, "%v allocations for a RESERVE and a COMMIT", n)
}
