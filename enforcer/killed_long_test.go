//go:build long

package enforcer_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"gpusteward/internal/fixture"
)

// TestKilledAgentLosesNoProcess kills the agent at moments of cycles on a simulated
// GPU. Unlike an enforcer that ends, it cannot wait for its calls of the driver.
func TestKilledAgentLosesNoProcess(t *testing.T) {
	t.Parallel()
	h := stub(t, fmt.Sprint("GS_STUB_CHECKPOINT_RATE=", 1<<30), fmt.Sprint("GS_STUB_RESTORE_RATE=", 1<<30))
	a := startAgentOn(t, h, "  tenants:\n    - {name: a, select: [{executables: [\"*/a\"]}]}\n", "all")
	w := a.job("a", 0, "--kernel-us=2000", "--alloc-mib=1024", "--seconds=600")
	goes(t, w)
	a.killedInCycles(w, func(i int) {
		at := fixture.Monotonic()
		if !w.until(2*time.Minute, func(s *series) bool { return s.By(fixture.Monotonic()) > s.By(at) }) {
			t.Fatalf("cycle %d: the program does not work\n%s", i, a.log("all"))
		}
	})
	if strings.Contains(a.log("all"), "the escalation changed a level") {
		t.Errorf("the program is accused\n%s", a.log("all"))
	}
}

// TestSuspendedProcessOutlivesTheAgent kills the agent while a process is suspended whose
// work is done. Until the next agent resumes it, nothing asks the driver about its work:
// that would end it. So it is with a process that asks all the time.
func TestSuspendedProcessOutlivesTheAgent(t *testing.T) {
	t.Parallel()
	for name, options := range map[string][]string{
		"at rest": {"--burst-ms=2", "--sleep-ms=1000"}, "asking": {"--kernel-us=2000", "--report-ms=10"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := startAgent(t, 1, 0, "open", "    - {name: a, select: [{executables: [\"*/a\"]}]}\n", "all")
			w := a.job("a", 0, append(options, "--alloc-mib=64", "--seconds=600")...)
			goes(t, w)
			works := func() bool {
				at := fixture.Monotonic()
				return w.until(2*time.Minute, func(s *series) bool { return s.By(fixture.Monotonic()) > s.By(at) })
			}
			fixture.Stop(t, !works(), "it never works")
			fixture.Must(t, a.order("suspend", w.Cmd.Process.Pid))
			a.again()
			a.metric(`nvgpu_broker_sessions{state="active"}`, 1)
			fixture.Must(t, a.order("resume-process", w.Cmd.Process.Pid))
			fixture.If(t, !works(), "it does not work any more: %v", w.Cmd.ProcessState)
		})
	}
}
