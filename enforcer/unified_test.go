package enforcer_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"gpusteward/internal/fixture"
)

// TestUnifiedMemory has a GPU whose memory NVML does not tell: a cap in percent is in
// force, and a suspended workload comes back.
func TestUnifiedMemory(t *testing.T) {
	t.Parallel()
	a := startAgentOn(t, stub(t, "GS_STUB_UNIFIED=1", fmt.Sprint("GS_STUB_MEMORY=", 1<<30)),
		"  tenants:\n    - {name: a, select: [{executables: [\"*/a\"]}], memory: 25 %}\n", "all")
	poll(t, time.Minute, "CUDA is not asked", func() bool { return strings.Contains(a.log("all"), "and CUDA does") })
	w, most := a.hold("a", 0, "--alloc-mib=1000", "--alloc-step-mib=1")
	fixture.Equal(t, most, 256*mib, "it takes … bytes of 1 GiB")
	poll(t, time.Minute, "nobody holds the cap", func() bool {
		return strings.Contains(a.ask("/metrics"), `nvgpu_quota_backend_info{backend="hook",gpu="0",resource="memory"`)
	})
	fixture.Must(t, a.order("suspend", w.Cmd.Process.Pid))
	poll(t, time.Minute, "it is not suspended", func() bool { return a.recorded() == "suspended" })
	fixture.Must(t, a.order("resume-process", w.Cmd.Process.Pid))
	poll(t, time.Minute, "it does not come back", func() bool { return a.recorded() == "" })
}
