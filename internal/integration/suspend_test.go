package integration

import (
	"strings"
	"testing"

	"gpusteward/internal/fixture"
)

// TestSuspendCommands have orders of the command line reach the enforcer.
func TestSuspendCommands(t *testing.T) {
	t.Parallel()
	dir := "--runtime.dir=" + shortDirectory(t)
	a := start(t, "--demo", "--config.file="+fixture.Config(t, "enforcer: {enabled: true}\n"), dir).ready()
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{dir, "suspend", "unit:x.service"}, "the GPUs are simulated"},
		{[]string{dir, "resume-process", "unit:x.service"}, `no workload "unit:x.service" is suspended`},
		{[]string{"--runtime.dir=" + t.TempDir(), "suspend", "7"}, "and enforcer.enabled?"},
		{[]string{dir, "suspend"}, "required argument 'WORKLOAD'"},
	} {
		if status, out, said := gpusteward(t, c.args...); status == 0 || !strings.Contains(said, c.want) || out != "" {
			t.Errorf("%q: exit status %d, %q, %q; want %q", c.args, status, out, said, c.want)
		}
	}
	eventually(t, "the orders are in the log", func() bool { return a.log.find("control")["workload"] == "unit:x.service" })
}
