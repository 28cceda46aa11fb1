package enforcer

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/host"
	"gpusteward/enforcer/policy"
	"gpusteward/internal/fixture"
	"gpusteward/internal/procs"
)

// The owner of a process follows from this host's facts. On a simulated host it follows from the simulation alone. A
// process without a workload, or an ended one, has no owner.
func TestOwnerOfADeviceProcess(t *testing.T) {
	t.Parallel()
	exe := fixture.Value(os.Readlink("/proc/self/exe"))(t)
	all := policy.Quota{Limit: 1, Bandwidth: 1}
	p := policy.New(policy.Table{Default: policy.Terms{Quota: all}, Rules: []policy.Rule{
		{Name: "program", Select: []policy.Selector{{Executables: []string{exe}}}, Terms: policy.Terms{Quota: all}},
		{Name: "unit", Select: []policy.Selector{{Units: []string{"a.service"}}}, Terms: policy.Terms{Quota: all}},
	}}, policy.HostView{}, nil)
	zombie := exec.Command("true")
	fixture.Must(t, zombie.Start())
	defer func() { _ = zombie.Wait() }()
	fixture.Eventually(t, "its first thread ends", func() bool { return procs.State("/proc", zombie.Process.Pid) == 'Z' })
	headless := startHeadless(t)
	unit := &host.Workload{Key: "unit:a.service", Kind: host.KindUnit, Unit: "a.service"}
	user := &host.Workload{Key: "user:0", Kind: host.KindUser}
	for name, c := range map[string]struct {
		identities identityCache
		pid        int
		workload   *host.Workload
		want       string
	}{
		"a program":   {identityCache{procfs: "/proc"}, os.Getpid(), user, "program"},
		"a unit":      {identityCache{procfs: "/proc"}, os.Getpid(), unit, "unit"},
		"no name yet": {identityCache{procfs: "/proc"}, os.Getpid(), nil, ""},
		"gone":        {identityCache{procfs: "/proc"}, 1 << 30, user, ""},
		"simulated":   {identityCache{procfs: "/proc", simulated: true}, 1 << 30, unit, "unit"},
		"simulated, not ours": {identityCache{procfs: "/proc", simulated: true}, os.Getpid(), user,
			policy.DefaultTenant},
		"simulated, no name": {identityCache{procfs: "/proc", simulated: true}, 1 << 30, nil, ""},
		"ended":              {identityCache{procfs: "/proc"}, zombie.Process.Pid, user, ""},
		"ended but a thread": {identityCache{procfs: "/proc"}, headless, unit, "unit"},
	} {
		got := c.identities.tenant(p, time.Now(),
			collectors.DeviceProcess{Process: host.Process{PID: c.pid, Workload: c.workload}})
		fixture.If(t, got != c.want, "%s: of %q, want %q", name, got, c.want)
	}
}

// startHeadless starts a program whose first thread ends while another continues. It lives until the test ends.
func startHeadless(t *testing.T) (pid int) {
	t.Helper()
	dir := t.TempDir()
	source := `#include <pthread.h>
#include <unistd.h>
static void *go_on(void *none) { for (;;) pause(); }
int main(void) { pthread_t other; pthread_create(&other, 0, go_on, 0); pthread_exit(0); }`
	fixture.Must(t, os.WriteFile(filepath.Join(dir, "headless.c"), []byte(source), 0o600))
	program := filepath.Join(dir, "headless")
	out, err := exec.Command("gcc", "-pthread", "-o", program, program+".c").CombinedOutput()
	fixture.Stop(t, err != nil, "build it: %v %s", err, out)
	cmd := exec.Command(program)
	fixture.Must(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	fixture.Eventually(t, "its first thread ends", func() bool { return procs.State("/proc", cmd.Process.Pid) == 'Z' })
	return cmd.Process.Pid
}
