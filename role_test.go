package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Two processes, one that only enforces and one that only observes, are what
// one process is that does both.
func TestRoles(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "roles") // t.TempDir's names are too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	config := write(t, fmt.Sprintf("enforcer:\n  enabled: true\n  tenants:\n    - {name: tests, select: [{users: [%d]}], guarantee: 40 %%}\n", os.Getuid()))
	flags := []string{"--demo=testdata/scenario/two.yml", "--config.file=" + config, "--runtime.dir=" + dir}
	enforcer := spawn(t, nil, append(flags, "--role=enforce")...)
	eventually(t, "it enforces", func() bool { return enforcer.log.find("gpusteward enforces") != nil || enforcer.hasEnded() })
	observer := spawn(t, nil, append(flags, "--role=observe")...).ready()
	observer.sees("the broker", func(s series) bool { return s["gpusteward_broker_up"] == 1 })
	_, page := observer.get("/metrics")
	_, rest, _ := strings.Cut(page, `nvgpu_up{gpu="1",uuid="`)
	uuid, _, _ := strings.Cut(rest, `"`)
	if _, tenant := hello(t, filepath.Join(dir, "broker.sock"), uuid, ""); tenant != "tests" {
		t.Errorf("this process is of %q, want tests", tenant)
	}
	observer.sees("what the enforcer says", func(s series) bool {
		return s[fmt.Sprintf(`nvgpu_quota_compute_guarantee_ratio{gpu="1",tenant="tests",uuid="%s"}`, uuid)] == .4
	})
	if os.Getuid() == 0 {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", enforcer.pid))
		if err != nil || !strings.Contains(string(status), "CapPrm:\t0000000000080020\n") {
			t.Errorf("the enforcer has more than CAP_KILL and CAP_SYS_PTRACE: %v\n%s", err, status)
		}
	}
	if status := enforcer.stop(); status != 0 {
		t.Errorf("exit status %d of the enforcer, want 0", status)
	}
	observer.sees("no broker", func(s series) bool { return s["gpusteward_broker_up"] == 0 })
}

func TestEnforceWithNothingToEnforce(t *testing.T) {
	t.Parallel()
	a := spawn(t, nil, "--role=enforce", "--demo=h100", "--config.file="+write(t, ""))
	eventually(t, "it ends", a.hasEnded)
	if a.status != 1 || !strings.Contains(a.log.String(), "--role=enforce: enforcer.enabled is false in ") {
		t.Errorf("exit status %d, %s", a.status, a.log)
	}
}
