//go:build gpu

package integration

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gpusteward/internal/fixture"
)

// matmul loads the GPU as fully as one process can.
const matmul = `
import torch
a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
while True:
    for _ in range(50): a @ a
    torch.cuda.synchronize()
`

// binary returns the agent to measure: AGENT, or one built here as make build does.
func binary(t *testing.T) string {
	if path := os.Getenv("AGENT"); path != "" {
		return path
	}
	path := filepath.Join(t.TempDir(), "gpusteward")
	out, err := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", path, ".").CombinedOutput()
	fixture.Stop(t, err != nil, "build: %v\n%s", err, out)
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

// peer copies 64 GiB from the first GPU to the second and says so.
const peer = `
import torch
a = torch.empty(1 << 30, dtype=torch.uint8, device="cuda:0")
b = torch.empty(1 << 30, dtype=torch.uint8, device="cuda:1")
torch.cuda.can_device_access_peer(0, 1)
for _ in range(64): b.copy_(a)
torch.cuda.synchronize(0); torch.cuda.synchronize(1)
print(64 << 30)
`

// TestGPUNVLink copies a known amount between two GPUs and looks for it in the
// counters of both. It passes if there is one GPU or no link.
func TestGPUNVLink(t *testing.T) {
	m := startMeasured(t, binary(t))
	sent := func(gpu, direction string) float64 {
		v, _ := m.value("nvgpu_nvlink_bytes_total", `direction="`+direction+`",gpu="`+gpu+`",kind="data"`)
		return v
	}
	if !strings.Contains(m.scrape(), `nvgpu_nvlink_up{gpu="1"`) {
		fmt.Println("fewer than two linked GPUs here: nothing measured")
		return
	}
	tx, rx := sent("0", "tx"), sent("1", "rx")
	out, err := exec.Command("python3", "-c", peer).Output()
	fixture.Stop(t, err != nil, "copy between the GPUs (it needs PyTorch): %v", err)
	var copied float64
	fmt.Sscan(string(out), &copied)
	for began := time.Now(); time.Since(began) < 15*time.Second && sent("1", "rx") < rx+copied; {
		time.Sleep(200 * time.Millisecond)
	}
	tx, rx = sent("0", "tx")-tx, sent("1", "rx")-rx
	fmt.Printf("copied %.0f bytes: GPU 0 counted %.0f out (%+.2f %%), GPU 1 %.0f in (%+.2f %%)\n", copied, tx,
		(tx/copied-1)*100, rx, (rx/copied-1)*100)
	for end, v := range map[string]float64{"GPU 0 tx": tx, "GPU 1 rx": rx} {
		fixture.If(t, v < copied || v > copied*1.1, "%s counted %.0f bytes of %.0f", end, v, copied)
	}
}

var starts = flag.Int("starts", 48, "`number` of agents that TestGPUStarts starts, as many at once as -test.parallel says")

// TestGPUStarts starts the agent again and again. It must live at least until all GPUs' performance metrics
// have been read a few times. It crashed in the driver's library at that moment, on hosts with two GPUs.
func TestGPUStarts(t *testing.T) {
	agent := binary(t)
	for i := range *starts {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			m := startMeasured(t, agent)
			eventually(t, "readings of performance metrics", func() bool {
				n, _ := m.value("gpusteward_nvml_calls_total", `call="nvmlGpmMetricsGet"`, `return="success"`)
				return n >= 20
			})
		})
	}
}
