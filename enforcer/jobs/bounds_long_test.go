//go:build long

package jobs

import (
	"encoding/binary"
	"math/rand/v2"
	"os"
	"runtime"
	"testing"

	"gpusteward/enforcer/broker"
	"gpusteward/internal/fixture"
	"gpusteward/internal/wire"
)

// TestMemoryIsBounded lets as many processes as are observed of an owner write random events, and be ranks of other
// communicators at each look. After the first looks the memory in use does not grow. The rings of all processes are
// one: each reads it for itself.
func TestMemoryIsBounded(t *testing.T) {
	const most = maxProcesses / 2
	at, r := int64(1e12), rand.New(rand.NewPCG(5, 6))
	o := Observer{Now: func() int64 { return at }, Procfs: os.DevNull}
	trace, head, launches := make([]byte, wire.TraceSize), uint64(0), uint64(0)
	look := func() {
		events := trace[128+wire.Communicators*128:]
		const new = 300
		for i := range uint64(new) { // some with the right lap, and of all kinds
			n := head + i
			e := events[n%wire.EventsKept*16:]
			scribble(r, e[:16])
			binary.NativeEndian.PutUint64(e, uint64(at)-r.Uint64N(1e9))
			binary.NativeEndian.PutUint16(e[12:], uint16(n/wire.EventsKept&0xff)<<8|uint16(1+r.Uint32N(14)))
		}
		head += new
		binary.NativeEndian.PutUint64(trace, head)
		for session := range uint64(maxProcesses + 8) {
			lies["absurd communicators"](r, trace)
			binary.NativeEndian.PutUint64(trace[128:], 77) // one of all
			o.Observe(broker.Traced{Session: session, PID: 1 << 30, Tenant: "liar", Trace: wire.TraceIn(trace)})
		}
		all, _ := o.Look(func(int) string { return "job" })
		launches = all[0].Launches
		at += 1e9
		binary.NativeEndian.PutUint64(trace[88:], uint64(at))
		binary.NativeEndian.PutUint64(trace[96:], uint64(at))
	}
	binary.NativeEndian.PutUint32(trace[64:], 1)
	for i, v := range []int64{at - 1e9, at - 1e9, at, at} {
		binary.NativeEndian.PutUint64(trace[72+8*i:], uint64(v))
	}
	inUse := func(looks int) uint64 {
		for range looks {
			look()
		}
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	first := inUse(6)
	last := inUse(10)
	t.Logf("%d processes: %d KiB each, and %d KiB each 10 looks later", len(o.processes), first/most>>10, last/most>>10)
	if len(o.processes) != most || launches < 50 {
		t.Errorf("%d processes are observed, want %d; the first one has %d launches", len(o.processes), most, launches)
	}
	fixture.AtMost(t, last, first+first/10, "%d bytes after 6 looks, and after 16", first)
	fixture.AtMost(t, last/most, 128<<10, "… bytes for each process")
}
