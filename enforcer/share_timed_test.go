//go:build timed

package enforcer_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"gpusteward/internal/fixture"
)

func TestShares(t *testing.T) {
	for _, c := range []struct {
		name    string
		demands []demand
	}{
		{"50-50 unlike kernels", []demand{kernels(50, 100), kernels(50, 1000)}},
		{"20-30-50", []demand{kernels(20, 200), kernels(30, 200), kernels(50, 200)}},
		{"30-70 graphs of 10 ms", []demand{graphs(30, 10000), graphs(70, 10000)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := errors.New("no try")
			for tries := 0; tries < 3 && err != nil; tries++ { // a busy machine wakes one program later than another
				err = saturate(t, c.name, true, 3, c.demands...).fair()
			}
			fixture.Must(t, err)
		})
	}
}

// TestWorkConservation holds that a sleeping tenant leaves its GPU to the other one: together they use it all.
func TestWorkConservation(t *testing.T) {
	bursty := demand{50, 200 * time.Microsecond, []string{"--kernel-us=200", "--burst-ms=5", "--sleep-ms=20"}}
	busy := 0.
	for tries := 0; tries < 3 && busy < 0.97; tries++ { // a busy processor launches late
		f := saturate(t, "bursty", true, 3, kernels(50, 200), bursty)
		busy = f.typical[0] + f.typical[1]
	}
	fixture.AtLeast(t, busy, 0.97,
		"the GPU is busy %.1f %% of a typical second beside a bursty tenant, goal 97 %%", 100*busy)
}

// TestHostFunctions holds that a tenant with a limit of half the GPU, which queues a host function before each launch,
// gets no more than that: neither beside another tenant nor alone. The functions last so long that launches pass while
// one holds the stream.
func TestHostFunctions(t *testing.T) {
	const seconds, last = 3, 2
	const goal = 0.5 + 0.02 + 0.05/last // a limit of a half saves up to 50 ms
	half := tenant("a", 50)
	half.Limit = 0.5
	for us, beside := range map[string]bool{"50": false, "3000": true} {
		h := stub(t)
		h.govern(t, half, tenant("b", 50))
		all := []*worker{h.load(t, "a", "--kernel-us=2000", "--host-us="+us, fmt.Sprint("--seconds=", seconds))}
		if beside {
			all = append(all, h.load(t, "b", "--kernel-us=200", fmt.Sprint("--seconds=", seconds)))
		}
		ready(t, all...)
		for _, w := range all {
			w.begin(1)
			w.Tell("go")
		}
		for _, w := range all {
			w.hear(t, time.Minute, "total")
		}
		busy := h.truth.of(all[0].Cmd.Process.Pid)
		end := busy.At[len(busy.At)-1]
		part := busy.work(end-last*1e9, end) / last
		fmt.Printf("host functions of %s us, beside another %t: %.3f of the GPU with a limit of 0.5\n", us, beside, part)
		fixture.AtMost(t, part, goal, "host functions of %s us, beside another %t … of the GPU", us, beside)
	}
}

// TestLongWorkIsHeld holds that a tenant with a limit of a quarter gets no more than
// that beside another one by work that goes on after its turn: long kernels and
// graphs, queued ahead without a bound, and kernels that wait for one another.
func TestLongWorkIsHeld(t *testing.T) {
	const limit, seconds = 0.25, 20
	goals := map[string]float64{"peers of 100 ms": limit + 0.06} // a drain takes two of its kernels; 0.24 in most runs
	quarter := tenant("a", 25)
	quarter.Limit = limit
	got := map[string]func(from, to int64) float64{}
	for what, options := range map[string][]string{"kernels of 50 ms": {"--kernel-us=50000"}, "kernels of 100 ms": {"--kernel-us=100000"},
		"graphs of 100 ms": {"--launch=graph", "--graph-us=100000"}, "peers of 100 ms": nil} {
		h := stub(t, "GS_TEST_SLICES=auto")
		h.govern(t, quarter, tenant("b", 70))
		h.hook[0] += ":" + filepath.Join(fixture.Given(t, "GS_STUB", "hook/build/stub"), "libcuda.so.1") // it has time slices then
		other := h.load(t, "b", "--kernel-us=200", "--seconds=600")
		goes(t, other)
		var w *worker
		if options == nil {
			w = h.start(t, "a", fixture.Given(t, "GS_RECIPES", "hook/build/stub/recipes"), "peer", "100000", "--kernel-us=100000",
				"--kernels=1", "--deadline=60")
		} else {
			w = h.load(t, "a", append(options, "--seconds=600")...)
		}
		goes(t, w)
		got[what] = func(from, to int64) float64 { return h.truth.of(w.Cmd.Process.Pid).work(from, to) / seconds }
	}
	from := fixture.Monotonic() + 3e9
	poll(t, time.Minute, "the time does not pass", func() bool { return fixture.Monotonic() > from+seconds*1e9 })
	for what, part := range got {
		had := part(from, from+seconds*1e9)
		fmt.Printf("%s: %.3f of the GPU with a limit of %g\n", what, had, limit)
		fixture.AtMost(t, had, max(limit+0.02, goals[what]), "%s have … of the GPU", what)
	}
}

// TestRefusedEvents holds that a tenant gets its share, and no more, while the
// driver refuses events to its hook. It queues more than a turn's work.
func TestRefusedEvents(t *testing.T) {
	const seconds, goal = 3, 0.2 + 0.03
	h := stub(t)
	h.govern(t, tenant("a", 20), tenant("b", 80))
	full, refused := filepath.Join(t.TempDir(), "full"), *h
	refused.driver = append(slices.Clone(h.driver), "GS_STUB_FULL="+full)
	options := []string{"--kernel-us=200", "--ahead=64", fmt.Sprint("--seconds=", seconds)}
	a, b := refused.load(t, "a", options...), h.load(t, "b", options...)
	ready(t, a, b)
	fixture.Must(t, os.WriteFile(full, nil, 0o600)) // the programs have made their own events
	f := h.measure(t, "events are refused", seconds, part{a, "go", 0.2, 200e-6}, part{b, "go", 0.8, 200e-6})
	f.show()
	fixture.AtLeast(t, books(stats(t, h.broker), "a").GateErrors, 1, "events that were refused")
	fixture.AtMost(t, f.share[0], goal+f.excused(), "a tenant without events has … of the GPU, and a weight of 0.2")
}

// TestCancelledThreads holds that cancelled threads inside launches give a tenant no more than its share: a thread that
// replaces a cancelled one is governed too.
func TestCancelledThreads(t *testing.T) {
	cancelled := kernels(20, 200)
	cancelled.options = append(cancelled.options, "--threads=2", "--cancel-ms=20")
	fixture.Must(t, saturate(t, "threads are cancelled", true, 6, kernels(80, 200), cancelled).fair())
}

// TestSmallKernels holds that tenants that are bound by their own processor run together: turns would halve their pace.
// A busy machine may halve it as well, so the best of five pairs of runs counts.
func TestSmallKernels(t *testing.T) {
	small := demand{50, 5 * time.Microsecond, []string{"--kernel-us=5", "--cpu-us=20"}}
	var parts []float64
	for tries := 0; tries < 5 && (tries == 0 || slices.Max(parts) < 0.75); tries++ {
		plain := saturate(t, "small kernels, plain", false, 0.7, small, small).steps
		parts = append(parts, saturate(t, "small kernels", true, 0.7, small, small).steps/plain)
	}
	fixture.AtLeast(t, slices.Max(parts), 0.75, "small kernels reach %.2f of what they do ungoverned, goal 0.75", parts)
}

// TestMIG runs the agent as a host does on a GPU in MIG mode. Its table has quotas for one of the two MIG devices.
// Tenants there have their memory to the byte and their parts of the time, and no other tenant is touched.
func TestMIG(t *testing.T) { onMIG(t, "0:1", "all") }

// TestGangs has two tenants, each with a rank on each of two GPUs. The ranks wait for one another. A gang must not wait
// for itself: this costs three in four steps if each GPU is shared separately.
func TestGangs(t *testing.T) {
	h := stub(t, "GS_STUB_GPUS=2")
	h.govern(t, tenant("a", 50), tenant("b", 50))
	part, gangs := 0., uint64(0)
	for range 6 { // a gang that waits for itself has a quarter in each, on a quiet machine, too
		plain := h.together(t, "", "", 2)
		part = max(part, h.together(t, "a", "b", 2)/plain)
		for _, g := range stats(t, h.broker).GPUs {
			gangs = max(gangs, g.Gangs)
		}
		if gangs > 0 && part >= 0.75 {
			break
		}
	}
	fmt.Printf("two gangs on two GPUs: %.3f of their pace ungoverned; %d gangs found\n", part, gangs)
	fixture.If(t, gangs == 0 || part < 0.75,
		"two gangs reach %.0f %% of what they do ungoverned, goal 75 %%; %d gangs found", 100*part, gangs)
}

// TestAllocationsAreNotThrottled has a program allocate and free as fast as it
// can: far from its cap, and with room for one allocation only.
func TestAllocationsAreNotThrottled(t *testing.T) {
	for name, limit := range map[string]uint64{"far from the cap": 1024 * mib, "at the cap": mib} {
		h := stub(t)
		h.govern(t, capped("tenant", limit))
		w := h.load(t, "tenant", pairs(1, 1)...)
		goes(t, w)
		rate := completed(t, w)
		fmt.Printf("allocations %s: %.0f pairs of alloc and free a second\n", name, rate)
		fixture.AtLeast(t, rate, 50_000, "%s: pairs of alloc and free a second", name)
	}
}
