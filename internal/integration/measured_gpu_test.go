//go:build gpu

package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// matmul loads the GPU as fully as one process can.
const matmul = `
import torch
a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
while True:
    for _ in range(50): a @ a
    torch.cuda.synchronize()
`

// binary returns the agent to measure: AGENT, or one built here as make build
// does.
func binary(t *testing.T) string {
	if path := os.Getenv("AGENT"); path != "" {
		return path
	}
	path := filepath.Join(t.TempDir(), "gpusteward")
	if out, err := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", path,
		".").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return path
}

// A measured agent runs as a child process.
type measured struct {
	*agent
	path    string // of its program
	runtime string // directory of its control socket
}

func startMeasured(t *testing.T, path string, args ...string) *measured {
	t.Helper()
	m := &measured{path: path}
	for _, a := range args {
		if dir, given := strings.CutPrefix(a, "--runtime.dir="); given {
			m.runtime = dir
		}
	}
	if m.runtime == "" {
		m.runtime = t.TempDir()
		args = append(args, "--runtime.dir="+m.runtime)
	}
	cmd := exec.Command(path, append(args, loopback)...)
	cmd.Env = os.Environ()
	m.agent = launch(t, cmd).ready()
	t.Cleanup(m.endsWell)
	return m
}

// scrape returns the text of /metrics.
func (m *measured) scrape() string {
	m.t.Helper()
	_, text := m.get("/metrics")
	return text
}
