//go:build gpu

package integration

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"
)

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
	if err != nil {
		t.Fatalf("copy between the GPUs (it needs PyTorch): %v", err)
	}
	var copied float64
	fmt.Sscan(string(out), &copied)
	for began := time.Now(); time.Since(began) < 15*time.Second && sent("1", "rx") < rx+copied; {
		time.Sleep(200 * time.Millisecond)
	}
	tx, rx = sent("0", "tx")-tx, sent("1", "rx")-rx
	fmt.Printf("copied %.0f bytes: GPU 0 counted %.0f out (%+.2f %%), GPU 1 %.0f in (%+.2f %%)\n", copied, tx,
		(tx/copied-1)*100, rx, (rx/copied-1)*100)
	for end, v := range map[string]float64{"GPU 0 tx": tx, "GPU 1 rx": rx} {
		if v < copied || v > copied*1.1 {
			t.Errorf("%s counted %.0f bytes of %.0f", end, v, copied)
		}
	}
}
