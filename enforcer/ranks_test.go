package enforcer_test

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"gpusteward/internal/fixture"
	"gpusteward/internal/wire"
)

// A jam is a job of two ranks that hangs in its fifth step. Each step has two
// collectives, so eight were called before it.
type jam struct {
	name    string
	options [2][]string
	entered [2]uint64 // collectives that each rank has called in the end
	ended   [2]uint64 // of them on the GPU; 0: its process can no longer tell
}

// The rank that skips a collective goes on to the next step, where it calls two more.
var jams = []jam{
	{"skip", faulty("--skip"), [2]uint64{10, 11}, [2]uint64{9, 9}},
	{"mismatch", faulty("--mismatch"), [2]uint64{10, 10}, [2]uint64{9, 9}},
	{"endless", faulty("--endless"), [2]uint64{10, 10}, [2]uint64{8, 8}},
	{"loader", faulty("--loader"), [2]uint64{10, 8}, [2]uint64{8, 8}},
	{"stop", faulty("--stop"), [2]uint64{10, 8}, [2]uint64{8, 0}},
	{"die", faulty("--die"), [2]uint64{10, 8}, [2]uint64{8, 0}},
	{"both", [2][]string{{"--loader"}, {"--loader", "--host=130"}}, [2]uint64{8, 8}, [2]uint64{8, 8}},
}

// faulty is a job whose second rank has the fault.
func faulty(option string) [2][]string { return [2][]string{nil, {option}} }

// TestRanks runs jobs that hang, side by side. The traces of each one's ranks have the same communicator, and how far
// each rank has come. Ranks poll: these tests run before the parallel ones.
func TestRanks(t *testing.T) {
	h := stub(t, fmt.Sprint("GS_STUB_GPUS=", 2*len(jams)))
	r := record(t)
	h.hook = r.env()
	var ranks [][2]*worker
	for gang, j := range jams {
		var pair [2]*worker
		for i := range pair {
			pair[i] = h.start(t, "observed", append([]string{fixture.Given(t, "GS_RANKS", "hook/build/stub/ranks"),
				"--gang=" + strconv.Itoa(gang+1), "--ranks=2", "--rank=" + strconv.Itoa(i),
				"--gpu=" + strconv.Itoa(2*gang+i), "--buckets=2", "--at=5"}, j.options[i]...)...)
		}
		ranks = append(ranks, pair)
	}
	for i, j := range jams {
		var why error
		t.Cleanup(func() {
			if why != nil {
				t.Log(j.name, why)
			}
		})
		poll(t, time.Minute, j.name+": its ranks have not come to where they hang, or do not tell", func() bool {
			of := [2]recording{}
			for rank, w := range ranks[i] {
				of[rank] = r.now(w.Cmd.Process.Pid)
				c := of[rank].communicators[0]
				if c.Entered != j.entered[rank] || (j.ended[rank] > 0 && c.Ended != j.ended[rank]) {
					return false
				}
			}
			why = agree(of, j)
			return why == nil
		})
	}
}

// TestEndlessAmongMany runs jobs of 3,200 collectives a second, of which few are
// measured. The one before which a GPU stands is seen: it is measured if it is the
// first one after the program waited for its GPU, and a mark follows the others.
func TestEndlessAmongMany(t *testing.T) {
	const buckets, step = 64, 75
	const first, last = (step-1)*buckets + 1, step * buckets
	for name, c := range map[string]struct {
		option string
		seen   func(well, endless wire.Communicator) bool
	}{
		"before the first one": {"--endless", func(a, b wire.Communicator) bool {
			return a.Begun == first && b.Unbegun == first
		}},
		"before another one": {"--endless=41", func(a, b wire.Communicator) bool {
			return a.Reached == last && b.Unreached == last && b.Reached == last-buckets
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, b := endlessAmong(t, buckets, step, c.option, c.seen)
			fixture.If(t, a.Measured > first/2 || b.Measured > first/2,
				"%d and %d of %d collectives were measured: all are seen anyway", a.Measured, b.Measured, first)
		})
	}
}

// endlessAmong runs a job of two ranks, the second with the option, until the hang is seen.
func endlessAmong(t *testing.T, buckets, step int, option string, seen func(a, b wire.Communicator) bool,
) (a, b wire.Communicator) {
	h, r := stub(t, "GS_STUB_GPUS=2"), record(t)
	h.hook = r.env()
	var pair [2]*worker
	for i := range pair {
		pair[i] = h.start(t, "observed", append([]string{fixture.Given(t, "GS_RANKS", "hook/build/stub/ranks"), "--gang=1",
			"--ranks=2", "--rank=" + strconv.Itoa(i), "--gpu=" + strconv.Itoa(i), "--step-ms=20", "--mib=0.01",
			"--buckets=" + strconv.Itoa(buckets), "--kernels=1", "--at=" + strconv.Itoa(step)},
			faulty(option)[i]...)...)
	}
	poll(t, time.Minute, "the GPU that does not come to a collective is not seen", func() bool {
		a, b = r.now(pair[0].Cmd.Process.Pid).communicators[0], r.now(pair[1].Cmd.Process.Pid).communicators[0]
		return seen(a, b)
	})
	return a, b
}

// now returns what is recorded of a process so far.
func (r *recorder) now(pid int) recording {
	r.mu.Lock()
	defer r.mu.Unlock()
	if one := r.events[pid]; one != nil {
		return *one
	}
	return recording{}
}

func agree(of [2]recording, j jam) error {
	a, b := of[0].communicators[0], of[1].communicators[0]
	switch {
	case a.ID != b.ID || a.ID == 0:
		return fmt.Errorf("the ranks' communicators are %x and %x", a.ID, b.ID)
	case a.Rank != 0 || b.Rank != 1 || a.Ranks != 2 || b.Ranks != 2:
		return fmt.Errorf("ranks %d of %d and %d of %d", a.Rank, a.Ranks, b.Rank, b.Ranks)
	case a.Op != wire.AllReduce || b.Op != wire.AllReduce:
		return fmt.Errorf("the last operations were %v and %v", a.Op, b.Op)
	// In each step the second rank comes 50 ms later to the first collective.
	case j.name == "both" && (a.MeasuredNS < b.MeasuredNS+100e6 || a.Measured != 8):
		return fmt.Errorf("the GPUs took %v and %v for %d collectives; the first rank waits for the other",
			time.Duration(a.MeasuredNS), time.Duration(b.MeasuredNS), a.Measured)
	}
	for rank, one := range of {
		calls := uint64(0)
		for _, e := range one.events {
			if e.Kind == wire.EventCollective {
				calls++
			}
		}
		if calls != j.entered[rank] {
			return fmt.Errorf("rank %d has %d events of %d collectives", rank, calls, j.entered[rank])
		}
	}
	return nil
}
