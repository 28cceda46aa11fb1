package enforcer_test

import (
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"gpusteward/enforcer/jobs"
	"gpusteward/internal/fixture"
	"gpusteward/internal/wire"
)

// TestHangsAreFound runs programs on simulated GPUs that come to hang, and then lets the observer's clock go on. It
// tells nothing before, and then for which process they wait. Each hangs once a process has waited, and called
// collectives, so often.
func TestHangsAreFound(t *testing.T) {
	fixture.Must(t, made())
	load := []string{fixture.Given(t, "GS_LOAD", "hook/build/stub/load"), "--kernel-us=500", "--sync-every=1", "--endless-at=100"}
	rank := func(n int) []string {
		return []string{fixture.Given(t, "GS_RANKS", "hook/build/stub/ranks"), "--gang=1", "--ranks=2", "--rank=" + strconv.Itoa(n),
			"--gpu=" + strconv.Itoa(n), "--step-ms=20", "--at=100", "--cross=2"}
	}
	for name, c := range map[string]struct {
		programs           [][]string
		waits, collectives uint64
		reason, where      string
	}{
		"a kernel":                   {[][]string{load}, 100, 0, "kernel", "a wait for the stream at ..."},
		"a graph":                    {[][]string{append(load[:4:4], "--launch=graph")}, 100, 0, "kernel", "a wait for the stream at ..."},
		"a second stream":            {[][]string{append(load[:4:4], "--streams=2")}, 200, 0, "kernel", "a wait for the stream at ..."},
		"ranks in two communicators": {[][]string{rank(0), rank(1)}, 100, 400, "deadlock", "rank 1: "},
	} {
		t.Run(name, func(t *testing.T) {
			var later atomic.Int64 // ns
			o := jobs.Observer{Now: func() int64 { return fixture.Monotonic() + later.Load() }}
			h := stub(t, "GS_STUB_GPUS=2")
			h.hook = []string{"LD_PRELOAD=" + fixture.Given(t, "GS_HOOK", "hook/build/libgpusteward.so"),
				"GPUSTEWARD_SOCKET=" + observeWith(t, o.Observe), "GPUSTEWARD_FAIL=closed"}
			for _, program := range c.programs {
				h.start(t, "observed", program...)
			}
			var all []wire.JobStats
			var hangs []wire.HangStats
			look := func() { all, hangs = o.Look(func(int) string { return "job" }) }
			poll(t, time.Minute, "they do not come to where they hang", func() bool {
				look()
				n := 0
				for _, j := range all {
					if j.Waits == c.waits && j.Collectives >= c.collectives {
						n++
					}
				}
				return n == len(c.programs)
			})
			fixture.Equal(t, len(hangs), 0, "hangs at first")
			later.Store(int64(15 * time.Second))
			poll(t, time.Minute, "no hang is told with its place", func() bool {
				look()
				return len(hangs) > 0 && strings.Contains(hangs[0].Where, c.where)
			})
			if h := hangs[0]; len(hangs) > 1 || h.Reason != c.reason || h.Waiting != len(c.programs) || h.Seconds < 10 {
				t.Errorf("%+v, want one of reason %s", hangs, c.reason)
			}
			for _, j := range all {
				fixture.Equal(t, j.Stepping, false, "PID %d steps", j.PID)
			}
		})
	}
}
