//go:build gpu

package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gpusteward/internal/fixture"
)

// names returns the families of a scrape about GPUs, each with its labels but without their numbers.
func (s series) names() map[string]bool {
	names := map[string]bool{}
	for key := range s {
		if strings.HasPrefix(key, "nvgpu_") {
			names[key] = true
		}
	}
	return names
}

// TestGPUUnprivileged reads the same GPUs, with a tenant of root on them, by an agent of root and by one that
// runs as in gpusteward.service: an unprivileged user with CAP_SYSLOG alone. The second reads as much.
func TestGPUUnprivileged(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to be somebody else")
	}
	text := content(t, binary(t))
	dir := fixture.ShortDir(t)
	program := filepath.Join(dir, "gpusteward")
	fixture.Program(t, program, text)
	own := []string{filepath.Join(dir, "state"), filepath.Join(dir, "run")}
	for _, d := range own {
		fixture.Must(t, os.Mkdir(d, 0o755))
		fixture.Must(t, os.Chown(d, 65534, 65534))
	}
	fixture.Must(t, os.Chmod(dir, 0o755))
	(&measured{agent: &agent{t: t}}).tenant("gpst-a.service", "0.5", "2")
	root := launch(t, exec.Command(program, loopback)).ready()
	other := launch(t, exec.Command("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs",
		"--inh-caps=-all,+syslog", "--ambient-caps=-all,+syslog", "--bounding-set=-all,+syslog",
		program, loopback, "--state.dir="+own[0], "--runtime.dir="+own[1])).ready()
	var missing []string
	for began := time.Now(); time.Since(began) < 30*time.Second; time.Sleep(time.Second) {
		have := other.scrape().names()
		missing = nil
		for name := range root.scrape().names() {
			if !have[name] {
				missing = append(missing, name)
			}
		}
		if len(missing) == 0 && time.Since(began) > 15*time.Second {
			break
		}
	}
	slices.Sort(missing)
	t.Logf("root has %d series of GPUs, the other %d", len(root.scrape().names()), len(other.scrape().names()))
	for _, name := range missing {
		t.Errorf("only root has %s", name)
	}
	for key, v := range other.scrape() {
		if strings.HasPrefix(key, "gpusteward_collect_errors_total") ||
			strings.HasPrefix(key, "gpusteward_attribution_errors_total") {
			t.Logf("%s %v", key, v)
		}
	}
	if len(other.scrape().family("nvgpu_workload_memory_used_bytes", `workload="unit:gpst-a.service"`)) == 0 {
		t.Error("it does not see the other user's workload")
	}
}
