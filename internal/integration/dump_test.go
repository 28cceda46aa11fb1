package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gpusteward/exporter"
)

// TestDump writes the metrics for node_exporter's textfile collector, whole, and
// leaves no old ones.
func TestDump(t *testing.T) {
	t.Parallel()
	root := shortDirectory(t)
	dir, file := "--runtime.dir="+root, filepath.Join(root, "textfile", "gpusteward.prom")
	dump := func(args ...string) (int, string, string) {
		return gpusteward(t, append([]string{dir, "dump"}, args...)...)
	}
	a := start(t, "--demo=h100", dir).ready()
	_, whole := a.get("/metrics")
	if !strings.Contains(whole, "\ngo_goroutines ") {
		t.Fatal("the agent does not tell its goroutines: nothing would be left out")
	}
	if _, err := os.Stat(filepath.Join(root, "broker")); err == nil || strings.Contains(whole, "_broker_") {
		t.Error("something is said of a broker, without the enforcer")
	}
	eventually(t, "orders are taken", func() bool {
		_, err := os.Stat(filepath.Join(root, exporter.ControlSocket))
		return err == nil
	})
	status, text, said := dump()
	if status != 0 || said != "" || !strings.Contains(text, `nvgpu_up{gpu="0",`) {
		t.Fatalf("exit status %d, %s, %.300s", status, said, text)
	}
	for _, line := range strings.Split(text, "\n") {
		if line != "" && !strings.HasPrefix(strings.TrimPrefix(strings.TrimPrefix(line, "# HELP "), "# TYPE "), "nvgpu_") &&
			!strings.Contains(line, "gpusteward_") {
			t.Errorf("it has %s", line)
		}
	}
	if status, text, said := dump("--format=dcgm"); status != 0 || !strings.Contains(text, "DCGM_FI_DEV_GPU_TEMP{") {
		t.Errorf("exit status %d, %s, %.300s", status, said, text)
	}
	status, text, said = dump("--output=" + file)
	content, err := os.ReadFile(file)
	if status != 0 || text != "" || err != nil || !strings.Contains(string(content), `nvgpu_up{gpu="0",`) {
		t.Errorf("exit status %d, %s, %v, %.300s", status, said, err, content)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	a.stop()
	if status, text, said := dump("--output=" + file); status != 1 || text != "" || !strings.Contains(said, "is gpusteward running") {
		t.Errorf("without an agent: exit status %d, %q, %s", status, text, said)
	}
	if _, err := os.Stat(file); !os.IsNotExist(err) {
		t.Errorf("old values stay: %v", err)
	}
	if status, _, _ := dump("--output=" + filepath.Dir(file)); status != 1 {
		t.Errorf("exit status %d", status)
	}
	if _, err := os.Stat(filepath.Dir(file)); err != nil {
		t.Errorf("a directory was removed: %v", err)
	}
}
