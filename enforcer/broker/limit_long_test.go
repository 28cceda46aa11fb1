//go:build long

package broker

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gpusteward/internal/fixture"
	"gpusteward/internal/wire"
)

// TestReserveAllocatesNothing holds that a flood makes no work for the garbage
// collector. It counts the allocations of the process, so it runs alone.
func TestReserveAllocatesNothing(t *testing.T) {
	b := start(t, Options{}, func(b *Broker) {
		b.timing.perSession, b.timing.perOwner, b.timing.heartbeat = 1e9, 1e9, time.Hour
	})
	c := dial(t, b, "a", 1)
	file, err := c.conn.File()
	fixture.Must(t, err)
	defer file.Close()
	fd := int(file.Fd())
	m := &wire.Memory{Bytes: 1}
	if n := testing.AllocsPerRun(1000, func() {
		_, _ = unix.Write(fd, m.Append(wire.Header{Type: wire.TypeReserve, Session: c.session}.Append(c.out[:0])))
		n, _ := unix.Read(fd, c.in[:])
		_, payload, _ := wire.Decode(c.in[:n])
		m.Decode(payload)
		_, _ = unix.Write(fd, m.Append(wire.Header{Type: wire.TypeCommit, Session: c.session}.Append(c.out[:0])))
		m.Reservation = 0
	}); n > 0.1 {
		t.Errorf("%v allocations for a RESERVE and a COMMIT", n)
	}
}
