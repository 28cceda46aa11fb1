package integration

import (
	"encoding/json"
	"strings"
	"testing"

	"gpusteward/health/diag"
	"gpusteward/health/incident"
)

// diags runs gpusteward diag as a process of its own, with this driver, which
// has no CUDA.
func (f fakeDriver) diags(env []string, args ...string) (status int, out string) {
	f.t.Helper()
	f.set("libcuda.so.1", "")
	return exited(f.t, process(append(f.environment(), env...), append([]string{"diag"}, args...)...))
}

func TestDiagWithADriver(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		driver    func(t *testing.T) fakeDriver
		env, args []string
		want      string
	}{
		"none": {noDriver, nil, nil, "library_not_found"},
		"no CUDA": {func(t *testing.T) fakeDriver { return newDriver(t) }, nil, nil,
			"GPU 0 was not tested: the CUDA driver is not there"},
		"another GPU": {func(t *testing.T) fakeDriver { return newDriver(t) }, nil, []string{"--gpus=0,17"},
			"GPU 17 is not there"},
		"a quota": {noDriver, []string{"LD_PRELOAD=/nonexistent/libgpusteward.so"}, nil, "would measure a quota"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			status, out := c.driver(t).diags(c.env, c.args...)
			if status != 3 || !strings.HasPrefix(out, "UNKNOWN - ") || !strings.Contains(out, c.want) {
				t.Errorf("exit status %d, want 3 and %q:\n%s", status, c.want, out)
			}
		})
	}
}

func TestDiagAsJSON(t *testing.T) {
	t.Parallel()
	f := newDriver(t)
	f.has(2)
	status, out := f.diags(nil, "--json", "--level=3")
	var r diag.Report
	if err := json.Unmarshal([]byte(out), &r); err != nil || status != 3 || r.Source != diag.Source ||
		r.Status != incident.Unknown || r.Level != 3 || len(r.GPUs) != 2 || len(r.Results) != 2 {
		t.Errorf("exit status %d, %v:\n%s", status, err, out)
	}
}
