//go:build gpu

package collectors_test

import (
	"flag"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

var firstStarts = flag.Int("first.starts", 200, "`number` of processes whose first calls of GPM are made at once")

// TestGPUFirstMetrics has the first calls of nvmlGpmMetricsGet of a process made by
// several threads at the same moment, for all GPUs and two threads each, in many
// processes. An agent once crashed in that call, a second after its start.
func TestGPUFirstMetrics(t *testing.T) {
	if os.Getenv("GS_FIRST") != "" {
		firstMetrics(t)
		return
	}
	slots := make(chan struct{}, 4)
	var group sync.WaitGroup
	var failed atomic.Int32
	for range *firstStarts {
		group.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			cmd := exec.Command(os.Args[0], "-test.run=^TestGPUFirstMetrics$")
			cmd.Env = append(os.Environ(), "GS_FIRST=1")
			if out, err := cmd.CombinedOutput(); err != nil && failed.Add(1) == 1 {
				t.Logf("%v: %s", err, out[:min(len(out), 6000)])
			}
		})
	}
	group.Wait()
	if n := failed.Load(); n > 0 {
		t.Errorf("%d of %d processes fail", n, *firstStarts)
	}
}

func firstMetrics(t *testing.T) {
	if ret := nvml.Init(); ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	n, _ := nvml.DeviceGetCount()
	begin := make(chan struct{})
	var ready, group sync.WaitGroup
	for i := range 2 * n {
		d, ret := nvml.DeviceGetHandleByIndex(i / 2)
		if ret != nvml.SUCCESS {
			t.Fatal(ret)
		}
		ready.Add(1)
		group.Go(func() {
			get := nvml.GpmMetricsGetType{NumMetrics: 1}
			get.Metrics[0].MetricId = 2
			get.Sample1, _ = nvml.GpmSampleAlloc()
			get.Sample2, _ = nvml.GpmSampleAlloc()
			first := d.GpmSampleGet(get.Sample1)
			time.Sleep(100 * time.Millisecond) // GPM's window
			second := d.GpmSampleGet(get.Sample2)
			ready.Done()
			<-begin
			if ret := nvml.GpmMetricsGet(&get); first != nvml.SUCCESS || second != nvml.SUCCESS || ret != nvml.SUCCESS {
				t.Error(first, second, ret)
			}
		})
	}
	ready.Wait()
	close(begin)
	group.Wait()
}
