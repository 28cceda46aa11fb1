package enforcer_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	kernel "gpusteward/collectors/host"
	"gpusteward/enforcer/crash"
	"gpusteward/enforcer/policy"
	"gpusteward/internal/fixture"
)

// TestAFaultIsExplained has programs fault in four ways, and the driver log it. One never waits
// for its GPU: only the log tells of it.
func TestAFaultIsExplained(t *testing.T) {
	t.Parallel()
	lines := make(chan kernel.Record)
	g := prepared(t)
	g.log = func(ctx context.Context, each func(kernel.Record)) error {
		for {
			select {
			case <-ctx.Done():
				return nil
			case r := <-lines:
				each(r)
			}
		}
	}
	g.run(judging(byPath("doomed", none, quick(policy.Warn))))
	for i, c := range []struct {
		how, says string
		held      bool
	}{
		{"beyond", "is 512 bytes beyond the end of an allocation of 4 MiB, made ", false},
		{"before", "is 512 bytes before the beginning of an allocation of 4 MiB, made ", false},
		{"freed", "lies in memory that was freed ", false},
		{"wild", "is in no allocation of this program", false},
		{"beyond", "is 512 bytes beyond the end of an allocation of 4 MiB, made ", true},
	} {
		poll(t, time.Minute, "the last one's session does not end", func() bool { return g.it.Stats().Sessions["active"] == 0 })
		w := g.job("doomed", true, "--seconds=600", "--kernel-us=100", "--sync-every=1", "--fault="+c.how,
			"--fault-hold="+map[bool]string{true: "1", false: "0"}[c.held])
		poll(t, time.Minute, "it has no session", func() bool { return g.it.Stats().Sessions["active"] == 1 })
		since := fixture.Monotonic()
		poll(t, time.Minute, "it does not have the GPU for 300 steps", func() bool {
			return g.truth.of(w.Cmd.Process.Pid).work(since, fixture.Monotonic()) > 0.03
		})
		fixture.Must(t, w.Cmd.Process.Signal(syscall.SIGTERM)) // it faults in the end
		var at, address uint64
		fixture.Value(fmt.Sscanf(w.hear(t, time.Minute, "fault "), "fault %d %d", &at, &address))(t)
		pid := w.Cmd.Process.Pid
		if c.held {
			w.hear(t, time.Minute, "launched ")
		} else {
			w.hear(t, time.Minute, "failed ")
		}
		lines <- kernel.Record{Sequence: uint64(i), Time: time.Now(), Text: fmt.Sprintf("NVRM: Xid (PCI:0000:00:06): 31, pid=%d, name=doomed, channel "+
			"0x0000000a, intr 00000000. MMU Fault: ENGINE GRAPHICS faulted @ %#x_%08x. Fault is of type FAULT_PDE", pid,
			address>>32, address&(1<<32-1))}
		var r crash.Record
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("%s, pid %d: %+v\n%+v", c.how, pid, g.it.Crashes(0), r)
			}
		})
		poll(t, time.Minute, c.how+": it is not explained", func() bool {
			all := g.it.Crashes(0)
			i := slices.IndexFunc(all, func(h crash.Head) bool { return h.PID == pid && strings.Contains(h.Says, "XID") })
			if i < 0 {
				return false
			}
			text, found, err := g.it.Crash(0, all[i].ID)
			return found && err == nil && json.Unmarshal(text, &r) == nil && len(r.Launches) > 0 // once the trace has a clock
		})
		fixture.Contains(t, r.Says, fmt.Sprintf("XID 31: %#x %s", address, c.says), "%s: it", c.how)
		fixture.Contains(t, r.Says, "in flight: fault", "%s: it", c.how)
		fixture.Need(t, len(r.Launches), 200, "%s: launches", c.how)
		fixture.Equal(t, r.Launches[0].Kernel+" "+r.Launches[199].Kernel, "spin fault", "%s: the launches", c.how)
		if c.held {
			fixture.Equal(t, r.Workload, "unit:doomed.service", "the workload")
			continue // the helper may or may not find the fault before
		}
		fixture.Equal(t, r.Error, 700, "%s: the driver's error", c.how)
	}
}

// TestTheCommandShowsCrashes has the whole agent tell of a program that failed.
func TestTheCommandShowsCrashes(t *testing.T) {
	t.Parallel()
	a := startAgent(t, 1, 0, "open", "    - {name: a, select: [{executables: [\"*/a\"]}]}\n", "all")
	ask := func(args ...string) string {
		out, _ := exec.Command(a.path, append([]string{"crash", "--runtime.dir=" + filepath.Join(a.dir, "run")},
			args...)...).CombinedOutput()
		return string(out)
	}
	poll(t, time.Minute, "there is no empty list", func() bool { return strings.HasPrefix(ask(), "ID  TIME") })
	w := a.run("a", "load", "--steps=3", "--fault=wild")
	w.hear(t, time.Minute, "failed ")
	poll(t, time.Minute, "the crash is not in the list", func() bool {
		return strings.Contains(ask(), "CUDA error 700 (illegal address); in flight: fault")
	})
	fixture.Contains(t, ask("1"), "* fault", "the crash")
	fixture.Contains(t, a.ask("/api/v1/events?kind=crash"), "see gpusteward crash 1", "the journal")
	fixture.Contains(t, ask("--json"), fmt.Sprintf(`"pid":%d`, w.Cmd.Process.Pid), "the list")
	fixture.Contains(t, ask("2"), "no crash 2 of your programs is kept", "an answer")
}
