package enforcer

import (
	"os"
	"testing"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/host"
	"gpusteward/enforcer/policy"
)

// Whose a process is follows from this host's facts, or, where it is simulated,
// from the simulation's alone; nobody's is who has no workload yet, or has ended.
func TestWhoseAHoldingIs(t *testing.T) {
	t.Parallel()
	exe, err := os.Readlink("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	all := policy.Quota{Limit: 1, Bandwidth: 1}
	p := policy.New(policy.Table{Default: policy.Terms{Quota: all}, Rules: []policy.Rule{
		{Name: "program", Select: []policy.Selector{{Executables: []string{exe}}}, Terms: policy.Terms{Quota: all}},
		{Name: "unit", Select: []policy.Selector{{Units: []string{"a.service"}}}, Terms: policy.Terms{Quota: all}},
	}}, policy.HostView{}, nil)
	unit := &host.Workload{Key: "unit:a.service", Kind: host.KindUnit, Unit: "a.service"}
	user := &host.Workload{Key: "user:0", Kind: host.KindUser}
	for name, c := range map[string]struct {
		papers   papers
		pid      int
		workload *host.Workload
		want     string
	}{
		"a program":           {papers{procfs: "/proc"}, os.Getpid(), user, "program"},
		"a unit":              {papers{procfs: "/proc"}, os.Getpid(), unit, "unit"},
		"no name yet":         {papers{procfs: "/proc"}, os.Getpid(), nil, ""},
		"gone":                {papers{procfs: "/proc"}, 1 << 30, user, ""},
		"simulated":           {papers{procfs: "/proc", simulated: true}, 1 << 30, unit, "unit"},
		"simulated, not ours": {papers{procfs: "/proc", simulated: true}, os.Getpid(), user, policy.DefaultTenant},
		"simulated, no name":  {papers{procfs: "/proc", simulated: true}, 1 << 30, nil, ""},
	} {
		if got := c.papers.tenant(p, time.Now(), collectors.Holding{Process: host.Process{PID: c.pid, Workload: c.workload}}); got != c.want {
			t.Errorf("%s: of %q, want %q", name, got, c.want)
		}
	}
}
