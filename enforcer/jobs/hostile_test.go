package jobs

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"gpusteward/enforcer/broker"
	"gpusteward/internal/fixture"
	"gpusteward/internal/wire"
)

// lies changes a trace as a hostile process may.
var lies = map[string]func(r *rand.Rand, t []byte){
	"random bytes": func(r *rand.Rand, t []byte) { scribble(r, t) },
	"random bytes behind a good clock": func(r *rand.Rand, t []byte) {
		scribble(r, t[128:])
		binary.NativeEndian.PutUint64(t, r.Uint64N(1<<20))
	},
	"a head that jumps": func(r *rand.Rand, t []byte) { binary.NativeEndian.PutUint64(t, r.Uint64()) },
	"a head that creeps back": func(r *rand.Rand, t []byte) {
		binary.NativeEndian.PutUint64(t, binary.NativeEndian.Uint64(t)-r.Uint64N(1000))
	},
	"a clock that lies": func(r *rand.Rand, t []byte) { scribble(r, t[72:104]) },
	"absurd communicators": func(r *rand.Rand, t []byte) {
		scribble(r, t[128:128+wire.Communicators*128])
		for i := range wire.Communicators { // some with a rank that makes sense
			binary.NativeEndian.PutUint64(t[128+128*i+8:], 1<<62|uint64(r.Uint32N(4)))
		}
	},
	"their communicator, and it is far ahead":    forge(2, 4, 1<<40),
	"their communicator, and it has called less": forge(2, 4, 1),
	"their communicator, with more ranks":        forge(7, 8, 60),
	"their communicator, and it has called none": forge(3, 4, 0),
	"their communicator, and it exchanges data":  exchanging(forge(1, 4, 60)),
	"their communicator, and its GPU stands in it": func(r *rand.Rand, t []byte) {
		forge(0, 2, 61)(r, t)
		binary.NativeEndian.PutUint64(t[128+72:], 61)
	},
}

// forge makes a process a rank of the honest ones' communicator.
func forge(rank, ranks uint32, entered uint64) func(*rand.Rand, []byte) {
	return func(_ *rand.Rand, t []byte) {
		for i, v := range []uint64{77, uint64(ranks)<<32 | uint64(rank), entered, 1e12, 0} {
			binary.NativeEndian.PutUint64(t[128+8*i:], v)
		}
	}
}

// exchanging adds calls for each of the others.
func exchanging(lie func(*rand.Rand, []byte)) func(*rand.Rand, []byte) {
	return func(r *rand.Rand, t []byte) {
		lie(r, t)
		for i := range wire.Peers {
			binary.NativeEndian.PutUint64(t[128+88+8*i:], 9<<32|uint64(i+1))
		}
	}
}

func scribble(r *rand.Rand, b []byte) {
	for i := 0; i+8 <= len(b); i += 8 {
		binary.NativeEndian.PutUint64(b[i:], r.Uint64())
	}
}

// TestLies lets one process of the same tenant and another owner lie beside honest ones that train, and then
// hang. It was there first.
func TestLies(t *testing.T) {
	t.Parallel()
	fixture.OneGoroutine(t)
	honest := func(lie func(*rand.Rand, []byte)) (all []wire.JobStats, hangs []wire.HangStats) {
		h, r := newHost(t, 4), rand.New(rand.NewPCG(1, 2))
		liar := make([]byte, wire.TraceSize)
		copy(liar, h.ranks[0].trace)
		look := func() {
			if lie != nil {
				lie(r, liar)
				h.Observer.Observe(broker.Traced{Session: 99, PID: 99, Tenant: "default", Owner: "liar",
					Trace: wire.TraceIn(liar)})
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

// TestNobodyFillsTheObserver lets a user have more sessions than are observed, in many jobs, which end or stay. Others' are
// observed.
func TestNobodyFillsTheObserver(t *testing.T) {
	t.Parallel()
	for _, ends := range []bool{true, false} {
		h := newHost(t, 1)
		for session := range uint64(3 * maxProcesses) {
			h.Observer.Observe(broker.Traced{Session: 100 + session, PID: 99, Tenant: "default", Owner: fmt.Sprint("job", session/192), Party: "liar",
				Trace: wire.TraceIn(h.ranks[0].trace), Ends: ends})
		}
		h.look()
		if last := uint64(99 + 3*maxProcesses); h.Observer.processes[1] == nil || ends && h.Observer.processes[last] == nil {
			t.Errorf("%d are observed, and not those that came last; theirs have ended: %v", len(h.Observer.processes), ends)
		}
	}
}

// TestStacksAreReadNowAndThen lets ten processes of a user, each a job, tell at each look of a wait that began at another time: each
// would have its stack read again.
func TestStacksAreReadNowAndThen(t *testing.T) {
	t.Parallel()
	fixture.OneGoroutine(t)
	h, read := newHost(t, 11), [2]atomic.Int32{}
	h.Observer.read = func(pid int, _ string) string {
		read[min(pid-h.ranks[0].pid, 1)].Add(1)
		return "here"
	}
	for look := range int64(130) {
		for i, r := range h.ranks {
			liar := min(i, 1)
			switch r.owner, r.party = fmt.Sprint("job", i), []string{"honest", "liar"}[liar]; {
			case look < 40:
				r.by(1, h.at, wire.EventWait, 0)
				r.by(1, h.at+1e6, wire.EventWaited, 0)
			case look == 40 || liar == 1:
				r.by(1, h.at-look-30e9*int64(liar), wire.EventWait, 0)
			}
		}
		h.wait(1)
	}
	honest := h.placed()[0]
	fixture.If(t, honest.PID != h.ranks[0].pid || honest.Where != "here" || read[0].Load() != 1, "the honest hang is told as %+v", honest)
	fixture.AtMost(t, read[1].Load(), 2*mostStacks, "readings of the liars in 90 s")
	fixture.AtLeast(t, read[1].Load(), mostStacks, "readings of the liars in 90 s")
}

// TestManyCommunicators lets a user have many sessions, each a job and a rank of as many communicators as there may be: some are
// judged at each look, in turn, and an honest job that hangs is found meanwhile.
func TestManyCommunicators(t *testing.T) {
	t.Parallel()
	const sessions = 3 * maxProcesses / 8
	h, liar := stepping(t, 4), make([]byte, wire.TraceSize)
	copy(liar, h.ranks[0].trace)
	for i := range wire.Communicators {
		forge(0, 2, 61)(nil, liar[128*i:])
		binary.NativeEndian.PutUint64(liar[128+128*i:], uint64(1000+i))
	}
	waits := (*rank).hangs
	h.step(map[int]func(*rank, int64){0: waits, 1: waits, 2: func(*rank, int64) {}, 3: waits})
	for range 12 {
		for i := range sessions {
			h.Observer.Observe(broker.Traced{Session: uint64(100 + i), PID: 5000 + i, Owner: fmt.Sprint(i), Party: "liar", Trace: wire.TraceIn(liar)})
		}
		h.wait(1)
		fixture.AtMost(t, (wire.Communicators-len(h.Observer.left))*sessions, mostRanks, "ranks that are judged")
		fixture.AtMost(t, slices.Max(slices.Collect(maps.Values(h.Observer.left))), 8, "looks that left out the same one")
	}
	hangs := h.wait(1)
	fixture.If(t, !slices.ContainsFunc(hangs, func(s wire.HangStats) bool { return s.PID == h.ranks[2].pid && s.Reason == "absent" }), "hangs: %+v", hangs)
}

// TestNobodyReadsACommunicatorsID in what is shown of it: a process that is shown another's cannot be its rank.
func TestNobodyReadsACommunicatorsID(t *testing.T) {
	t.Parallel()
	h := stepping(t, 2)
	all, _ := h.look()
	for _, s := range all {
		fixture.Equal(t, s.Communicators[0].ID, "0d1b500797e88c0f", "the name of 77")
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

// FuzzObserve gives any bytes as the head, the clock, the communicators and the first events of a trace.
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
		t := make([]byte, wire.TraceSize)
		for range 3 {
			copy(t, bytes)
			binary.NativeEndian.PutUint64(t, head)
			o.Observe(broker.Traced{Session: 1, PID: 1, Trace: wire.TraceIn(t)})
			o.Look(func(int) string { return "" })
			at += 1e10
			head *= 3
		}
	})
}
