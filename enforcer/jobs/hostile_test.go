package jobs

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"gpusteward/enforcer/broker"
	"gpusteward/internal/fixture"
	"gpusteward/internal/wire"
)

// lies changes a trace as a hostile process may.
var lies = map[string]func(r *rand.Rand, t wire.Trace){
	"random bytes": func(r *rand.Rand, t wire.Trace) { scribble(r, t) },
	"random bytes behind a good clock": func(r *rand.Rand, t wire.Trace) {
		scribble(r, t[128:])
		binary.NativeEndian.PutUint64(t, r.Uint64N(1<<20))
	},
	"a head that jumps": func(r *rand.Rand, t wire.Trace) { binary.NativeEndian.PutUint64(t, r.Uint64()) },
	"a head that creeps back": func(r *rand.Rand, t wire.Trace) {
		binary.NativeEndian.PutUint64(t, binary.NativeEndian.Uint64(t)-r.Uint64N(1000))
	},
	"a clock that lies": func(r *rand.Rand, t wire.Trace) { scribble(r, t[72:104]) },
	"absurd communicators": func(r *rand.Rand, t wire.Trace) {
		scribble(r, t[128:128+wire.Communicators*128])
		for i := range wire.Communicators { // some with a rank that makes sense
			binary.NativeEndian.PutUint64(t[128+128*i+8:], 1<<62|uint64(r.Uint32N(4)))
		}
	},
}

func scribble(r *rand.Rand, b []byte) {
	for i := 0; i+8 <= len(b); i += 8 {
		binary.NativeEndian.PutUint64(b[i:], r.Uint64())
	}
}

// TestLies lets one process lie beside honest ones that train, and then hang.
func TestLies(t *testing.T) {
	t.Parallel()
	honest := func(lie func(*rand.Rand, wire.Trace)) (all []wire.JobStats, hangs []wire.HangStats) {
		h, r := newHost(t, 4), rand.New(rand.NewPCG(1, 2))
		liar := make(wire.Trace, wire.TraceSize)
		copy(liar, h.ranks[0].trace)
		look := func() {
			if lie != nil {
				lie(r, liar)
				h.Observer.Observe(broker.Traced{Session: 99, PID: 99, Tenant: "liar", Trace: liar})
			}
			all, hangs = h.look()
		}
		for range 60 {
			h.step(nil)
			look()
		}
		waits := (*rank).hangs
		h.step(map[int]func(*rank, int64){0: waits, 1: waits, 2: func(*rank, int64) {}, 3: waits})
		for range 15 {
			h.at += 1e9
			look()
		}
		if lie != nil {
			all = all[1:]
		}
		return all, hangs
	}
	wantJobs, wantHangs := honest(nil)
	fixture.Stop(t, len(wantJobs) != 4 || len(wantHangs) != 1,
		"%d jobs, %d hangs; want 4 and 1", len(wantJobs), len(wantHangs))
	for name, lie := range lies {
		began := time.Now()
		all, hangs := honest(lie)
		fixture.If(t, fmt.Sprint(all) != fmt.Sprint(wantJobs) || fmt.Sprint(hangs) != fmt.Sprint(wantHangs),
			"%s: the others are judged otherwise: %+v", name, hangs)
		fixture.AtMost(t, time.Since(began), 30*time.Second, "%s: took", name)
	}
}

// TestSecondRankOfOne lets a process claim a rank that another one has.
func TestSecondRankOfOne(t *testing.T) {
	h := newHost(t, 4)
	h.trains(60)
	for i := range 4 { // a process claims that it is in all communicators of the others
		h.ranks[3].put64(128+128*i, 77)
	}
	h.step(nil)
	fixture.AtMost(t, len(h.wait(20)), 1, "… hangs of one job")
}

// FuzzObserve gives any bytes as the head, the clock, the communicators and the
// first events of a trace.
func FuzzObserve(f *testing.F) {
	f.Add([]byte("a"), uint64(5))
	h := make([]byte, 4096)
	r := rand.New(rand.NewPCG(3, 4))
	scribble(r, h[200:])
	binary.NativeEndian.PutUint32(h[64:], 1)
	f.Add(h, uint64(300))
	f.Fuzz(func(_ *testing.T, bytes []byte, head uint64) {
		at := int64(1e12)
		o := Observer{Now: func() int64 { return at }, Procfs: os.DevNull}
		t := make(wire.Trace, wire.TraceSize)
		for range 3 {
			copy(t, bytes)
			binary.NativeEndian.PutUint64(t, head)
			o.Observe(broker.Traced{Session: 1, PID: 1, Trace: t})
			o.Look(func(int) string { return "" })
			at += 1e10
			head *= 3
		}
	})
}
