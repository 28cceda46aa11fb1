//go:build long

package enforcer_test

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"gpusteward/internal/fixture"
)

// TestMIGOfTwoProcesses names the device by its UUID.
func TestMIGOfTwoProcesses(t *testing.T) {
	t.Parallel()
	onMIG(t, slice(0), "enforce", "observe")
}

// TestUnknownMIG has a program on a MIG device that NVML does not report, as
// with a driver newer than the agent. Its quota cannot hold there. All
// interfaces report that, and a broker that fails closed lets nothing pass.
func TestUnknownMIG(t *testing.T) {
	t.Parallel()
	for fail, c := range map[string]struct {
		told, logged string
		bytes        uint64
		runs         bool
	}{
		"open":   {"no quota holds there", "no quota applies on GPUs", 128 * mib, true},
		"closed": {"launches wait there, and no memory is given", "are closed", 0, false},
	} {
		t.Run(fail, func(t *testing.T) {
			t.Parallel()
			a := startAgent(t, 3, 2, fail, `
    - {name: a, select: [{executables: ["*/a"]}], memory: 64 MiB}
    - {name: c, select: [{executables: ["*/c"]}]}
`, "all")
			anchor := a.anchor("c", 1)
			w := a.job("a", 2, "--alloc-mib=128", "--alloc-step-mib=1", "--kernel-us=200", "--seconds=600")
			if told := w.hear(t, time.Minute, "gpusteward: "); !strings.Contains(told,
				"does not know 1 of 3 GPUs: "+c.told) {
				t.Errorf("the program is told %q", told)
			}
			ready(t, w)
			w.Tell("go")
			fixture.Equal(t, taken(t, w), c.bytes, "it takes … bytes")
			from := fixture.Monotonic()
			poll(t, 20*time.Second, "nobody has the GPU for a second",
				func() bool { return a.truth.of(anchor.Cmd.Process.Pid).work(from, fixture.Monotonic()) > 1 })
			fixture.Equal(t, a.truth.of(w.Cmd.Process.Pid).work(from, fixture.Monotonic()) > 0, c.runs, "it works")
			m := regexp.MustCompile(`nvgpu_broker_faults_total{kind="ungoverned"} [1-9]`)
			if !m.MatchString(a.ask("/metrics")) {
				t.Error("no metric counts it")
			}
			if log := a.log("all"); !strings.Contains(log, c.logged) ||
				!strings.Contains(log, strings.TrimPrefix(slice(2), "MIG")) {
				t.Errorf("the log does not name it:\n%s", log)
			}
		})
	}
}
