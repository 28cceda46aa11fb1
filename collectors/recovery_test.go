package collectors_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors"
	"gpusteward/collectors/activity"
	"gpusteward/collectors/device"
	"gpusteward/collectors/gpu"
	"gpusteward/collectors/hosttest"
	"gpusteward/internal/fixture"
)

// steady samples every 50 ms for d, like a scraper with unlucky timing.
func steady(h *collectors.Host, d time.Duration, each func(s collectors.Sample)) {
	for end := time.Now().Add(d); time.Now().Before(end); {
		hosttest.Advance(50 * time.Millisecond)
		for _, s := range h.Samples() {
			each(s)
		}
	}
}

// slowHandles is a driver that takes half a second of the simulated clock to find a GPU.
type slowHandles struct{ nvml.Interface }

func (d slowHandles) DeviceGetHandleByIndex(index int) (nvml.Device, nvml.Return) {
	time.Sleep(500 * time.Millisecond)
	return d.Interface.DeviceGetHandleByIndex(index)
}

// TestAddedOrRemovedGPUCausesNoGap checks that the driver is reopened, that no GPU counts as down meanwhile, even
// though finding one takes long, and that none of the agent's own counters restarts.
func TestAddedOrRemovedGPUCausesNoGap(t *testing.T) {
	t.Parallel()
	for kind, counts := range map[string][2]float64{"hot_add": {2, 3}, "hot_remove": {3, 2}} {
		t.Run(kind, func(t *testing.T) {
			source := "gpus: [{model: h100, load: full, count: 3}]\nfaults: [{at: 30s, gpu: 2, kind: " + kind + "}]\n"
			hosttest.With(t, source, func(o *collectors.Options) {
				o.NVML = slowHandles{o.NVML}
			}, func(t *testing.T, h *collectors.Host) {
				hosttest.Advance(25 * time.Second)
				hosttest.Want(t, h, counts[0], collectors.Devices, "")
				busy, _ := hosttest.Get(t, h, activity.BusySeconds, "0", "gpu")
				fixture.Need(t, busy == 0, false, "a GPU under load was never busy")
				steady(h, 15*time.Second, func(s collectors.Sample) {
					switch {
					case s.Metric == collectors.Up && s.Labels[0] != "2" || s.Metric == collectors.DriverUp:
						fixture.Stop(t, s.Value == 0, "%v%v = 0 while the driver was reopened", s.Metric, s.Labels)
					case s.Metric == activity.BusySeconds && s.Labels[0] == "0" && s.Labels[2] == "gpu":
						fixture.Stop(t, s.Value < busy, "%v%v fell from %v to %v", s.Metric, s.Labels, busy, s.Value)
						busy = s.Value
					}
				})
				hosttest.Want(t, h, counts[1], collectors.Devices, "")
				hosttest.Want(t, h, 3, collectors.DevicesExpected, "")
				hosttest.Want(t, h, 2, collectors.NVMLGeneration, "")
				hosttest.Want(t, h, counts[1]-2, collectors.Up, "2")
				if kind == "hot_remove" {
					hosttest.Want(t, h, 1, collectors.WorkerStuck, "2", "not_listed")
				}
			})
		})
	}
}

// TestListsThatDiffer has the kernel drive more or fewer GPUs than the driver lists, because one came or went while the
// driver was opened. The driver is opened once more, and not again and again if the difference stays.
func TestListsThatDiffer(t *testing.T) {
	for _, driven := range []int{1, 2, 3} {
		t.Run(fmt.Sprint(driven), func(t *testing.T) {
			bound := fstest.MapFS{}
			for i := range driven {
				bound[fmt.Sprintf("driver/nvidia/gpus/0000:0%d:00.0", i)] = &fstest.MapFile{Mode: fs.ModeDir, Sys: &syscall.Stat_t{}}
			}
			hosttest.With(t, "gpus: [{model: h100, count: 2}]\n", func(o *collectors.Options) {
				o.Kernel.Proc = bound
			}, func(t *testing.T, h *collectors.Host) {
				hosttest.Advance(time.Minute)
				hosttest.Want(t, h, map[bool]float64{true: 1, false: 2}[driven == 2], collectors.NVMLGeneration, "")
				hosttest.Want(t, h, 1, collectors.Up, "1")
			})
		})
	}
}

func TestDriverLostDuringAHangIsReopened(t *testing.T) {
	source := "gpus: [{model: h100, count: 2}]\nfaults:\n- {at: 10s, for: 50s, gpu: 1, kind: wedge}\n" +
		"- {at: 20s, for: 20s, kind: driver_gone}\n"
	hosttest.In(t, source, collectors.DefaultConfig(), func(t *testing.T, h *collectors.Host) {
		hosttest.Advance(30 * time.Second)
		hosttest.Want(t, h, 0, collectors.DriverUp, "")
		hosttest.Ups(t, h, 0, 0)
		fixture.Fails(t, h.Ready(), "gpu 1 hangs in nvml", "Ready() =")
		hosttest.Advance(40 * time.Second) // the call returned at 60 s
		hosttest.Ups(t, h, 1, 1)
		hosttest.Want(t, h, 2, collectors.NVMLGeneration, "")
	})
}

// TestHangDelaysReopening checks that nothing is closed during a call that
// hangs, and that the driver is reopened when the call returns.
func TestHangDelaysReopening(t *testing.T) {
	source := "gpus: [{model: h100, count: 3}]\nfaults:\n- {at: 10s, for: 40s, gpu: 1, kind: wedge}\n" +
		"- {at: 20s, gpu: 2, kind: hot_remove}\n"
	hosttest.In(t, source, collectors.DefaultConfig(), func(t *testing.T, h *collectors.Host) {
		hosttest.Advance(40 * time.Second)
		hosttest.Ups(t, h, 1, 0)
		hosttest.Want(t, h, 1, collectors.NVMLGeneration, "")
		hosttest.Advance(20 * time.Second)
		hosttest.Ups(t, h, 1, 1, 0)
		hosttest.Want(t, h, 2, collectors.NVMLGeneration, "")
	})
}

func TestLossOfEveryGPUReopensTheDriver(t *testing.T) {
	hosttest.In(t, "gpus: [{model: h100, count: 2}]\nfaults:\n- {at: 10s, for: 60s, gpu: 0, kind: lost}\n"+
		"- {at: 20s, for: 50s, gpu: 1, kind: lost}\n", collectors.DefaultConfig(), func(t *testing.T, h *collectors.Host) {
		hosttest.Advance(19 * time.Second)
		hosttest.Want(t, h, 1, collectors.NVMLGeneration, "")
		hosttest.Advance(41 * time.Second)
		n, _ := hosttest.Get(t, h, collectors.NVMLGeneration, "")
		fixture.If(t, n < 4 || n > 20, "the driver was opened %v times in 40 s without a GPU", n)
		hosttest.Ups(t, h, 0, 0)
		hosttest.Advance(20 * time.Second)
		hosttest.Ups(t, h, 1, 1)
	})
}

// call runs f, which may wait for the host, outside the bubble's clock.
func call(t *testing.T, f func(context.Context) error) (ended func() (error, bool)) {
	var err error
	done := make(chan struct{})
	go func() { defer close(done); err = f(t.Context()) }()
	return func() (error, bool) {
		select {
		case <-done:
			return err, true
		default:
			return nil, false
		}
	}
}

// ends runs f, which must have ended well after so long.
func ends(t *testing.T, f func(context.Context) error, after time.Duration) {
	t.Helper()
	ended := call(t, f)
	hosttest.Advance(after)
	err, done := ended()
	fixture.Stop(t, err != nil || !done, "after %v it has ended: %v, with %v", after, done, err)
}

func TestDrainReleasesAndResumeReopens(t *testing.T) {
	hosttest.In(t, "gpus: [{model: h100, load: full, count: 2}]\n", collectors.DefaultConfig(), func(t *testing.T, h *collectors.Host) {
		for round := range 2 {
			hosttest.Advance(12 * time.Second)
			hosttest.Want(t, h, 1, collectors.Up, "0")
			hosttest.Want(t, h, 0, collectors.Drained, "")
			ends(t, h.Drain, 2*time.Second)
			if h.NVML.Shutdown() == 0 { // SUCCESS means that NVML was open
				t.Error("NVML is still open")
			}
			hosttest.Want(t, h, 1, collectors.Drained, "")
			hosttest.Want(t, h, 2, collectors.DevicesExpected, "")
			hosttest.WantNone(t, h, collectors.Up, "0")
			hosttest.WantNone(t, h, collectors.Devices, "")
			hosttest.WantNone(t, h, device.Temperature, "0", "gpu")
			if err := h.Ready(); !errors.Is(err, collectors.ErrDrained) {
				t.Errorf("Ready() = %v while drained", err)
			}
			hosttest.Advance(time.Minute)
			fixture.AtMost(t, time.Since(h.Progress()), 2*time.Second,
				"no progress for …: systemd's watchdog would end a drained agent")
			hosttest.Want(t, h, 1, collectors.Drained, "")
			if again := call(t, h.Drain); again != nil {
				synctest.Wait()
				err, done := again()
				fixture.If(t, err != nil || !done, "a second drain: %v, %v", err, done)
			}
			ends(t, h.Resume, 2*time.Second)
			hosttest.Want(t, h, float64(round+2), collectors.NVMLGeneration, "")
		}
		hosttest.Advance(2 * time.Second)
		hosttest.Want(t, h, 1, collectors.Up, "0")
	})
}

func TestDrainReportsTheBlockingCall(t *testing.T) {
	hosttest.In(t, "gpus: [{model: h100, count: 2}]\n"+
		"faults: [{at: 10s, for: 50s, gpu: 1, kind: wedge}]\n", collectors.DefaultConfig(), func(t *testing.T, h *collectors.Host) {
		hosttest.Advance(20 * time.Second)
		ended := call(t, h.Drain)
		hosttest.Advance(4 * time.Second)
		if err, done := ended(); !done || err == nil || !strings.Contains(err.Error(), "gpu 1 hangs in nvml") {
			t.Fatalf("Drain has ended: %v, with %v", done, err)
		}
		hosttest.Want(t, h, 0, collectors.Drained, "")
		hosttest.Advance(40 * time.Second) // the call returned at 60 s
		hosttest.Want(t, h, 1, collectors.Drained, "")
		fixture.Equal(t, h.NVML.Shutdown() == 0, false, "NVML is still open")
		ends(t, h.Resume, 4*time.Second)
		hosttest.Want(t, h, 1, collectors.Up, "1")
	})
}

func TestResumeWithoutADriver(t *testing.T) {
	hosttest.In(t, "gpus: [{model: h100}]\n"+
		"faults: [{at: 10s, for: 60s, kind: driver_gone}]\n", collectors.DefaultConfig(), func(t *testing.T, h *collectors.Host) {
		hosttest.Advance(5 * time.Second)
		ends(t, h.Drain, 10*time.Second)
		resumed := call(t, h.Resume)
		hosttest.Advance(10 * time.Second)
		if err, done := resumed(); !done || err == nil || !strings.Contains(err.Error(), "driver_not_loaded") {
			t.Fatalf("Resume has ended: %v, with %v", done, err)
		}
		hosttest.Advance(60 * time.Second)
		hosttest.Want(t, h, 1, collectors.Up, "0")
	})
}

// TestAMismatchThatEndsNeedsNoNewProcess has the driver work again once another process is found to open it.
func TestAMismatchThatEndsNeedsNoNewProcess(t *testing.T) {
	t.Parallel()
	for length, want := range map[string]int{"60s": 1, "30s": 0} {
		started := 0
		source := "gpus: [{model: h100}]\nfaults: [{at: 10s, for: " + length + ", gpu: 0, kind: library_mismatch}]\n"
		hosttest.With(t, source, func(o *collectors.Options) {
			o.Renew = func(context.Context) (func() error, error) {
				time.Sleep(40 * time.Second) // of the simulated clock
				return func() error { started++; return nil }, nil
			}
		}, func(t *testing.T, h *collectors.Host) {
			hosttest.Advance(2 * time.Minute)
			hosttest.Want(t, h, 1, collectors.DriverUp, "")
		})
		fixture.Equal(t, started, want, "processes that a mismatch of %s starts: …", length)
	}
}

// TestProgressStopsWhenAReaderHangsOutsideTheDriver: in this case the agent itself hangs, and a restart is right.
func TestProgressStopsWhenAReaderHangsOutsideTheDriver(t *testing.T) {
	var release chan struct{} // made in the bubble
	deadlock := collectors.Register(collectors.Collector{
		Name: "deadlock", OptIn: true, Tier: collectors.Medium,
		Read: func(g *gpu.Device, out *collectors.Readings) {
			if g.Index == 1 && release == nil {
				release = make(chan struct{})
				<-release
			}
		},
	})
	defer collectors.Unregister(deadlock)
	c := collectors.DefaultConfig()
	c.Enable = []string{"deadlock"}
	source := "gpus: [{model: h100, count: 2}]\nfaults: [{at: 0s, gpu: 0, kind: wedge}]\n"
	hosttest.In(t, source, c, func(t *testing.T, h *collectors.Host) {
		hosttest.Advance(time.Minute)
		fixture.AtLeast(t, time.Since(h.Progress()), 30*time.Second,
			"progress … ago, with a reader that hangs in the agent itself")
		close(release)
		hosttest.Advance(10 * time.Second)
		fixture.AtMost(t, time.Since(h.Progress()), 2*time.Second,
			"no progress for … with a reader that hangs in the driver and one that moves")
	})
}
