//go:build tools

package integration

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"gpusteward/internal/fixture"
)

// TestFilesOfTargets has Prometheus's own tool check the shipped list of hosts.
func TestFilesOfTargets(t *testing.T) {
	t.Parallel()
	text := content(t, "deploy/prometheus/file_sd.yml")
	here := fixture.Value(filepath.Abs("deploy/prometheus/targets.yml"))(t)
	config := fixture.Config(t, strings.ReplaceAll(text, "/etc/prometheus/gpusteward/*.yml", here))
	out, err := exec.Command("promtool", "check", "service-discovery", "--timeout=2s", config, "gpusteward").Output()
	var found []struct{ Labels map[string]string }
	if err != nil || json.Unmarshal(out, &found) != nil || len(found) != 4 {
		t.Fatalf("promtool (make tools installs it): %v\n%s", err, out)
	}
	for _, f := range found {
		if l := f.Labels; l["instance"]+":9836" != l["__address__"] || l["job"] != "gpusteward" || l["cluster"] == "" ||
			l["rack"] == "" {
			t.Errorf("a host has the labels %v", l)
		}
	}
}
