package collectors

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"gpusteward/collectors/gpu"
)

// steady samples every 50 ms for d, like a scraper with unlucky timing.
func steady(h *Host, d time.Duration, each func(s map[string]float64)) {
	for end := time.Now().Add(d); time.Now().Before(end); {
		Advance(50 * time.Millisecond)
		each(Series(h.Samples()))
	}
}

// TestAnAddedOrRemovedGPUIsNoticedWithoutAGap checks that the driver is
// reopened, that no GPU counts as down meanwhile, and that none of the agent's
// own counters restarts.
func TestAnAddedOrRemovedGPUIsNoticedWithoutAGap(t *testing.T) {
	for kind, counts := range map[string][2]float64{"hot_add": {2, 3}, "hot_remove": {3, 2}} {
		t.Run(kind, func(t *testing.T) {
			source := "gpus: [{model: h100, load: full, count: 3}]\nfaults: [{at: 30s, gpu: 2, kind: " + kind + "}]\n"
			In(t, source, DefaultConfig(), func(t *testing.T, h *Host) {
				Advance(25 * time.Second)
				Want(t, h, counts[0], Devices, "")
				busy, _ := Get(t, h, BusySeconds, "0", "gpu")
				if busy == 0 {
					t.Fatal("a GPU under load was never busy")
				}
				steady(h, 15*time.Second, func(s map[string]float64) {
					for k, v := range s {
						if v == 0 && (strings.HasPrefix(k, Up.Name) && !strings.Contains(k, `gpu="2"`) ||
							strings.HasPrefix(k, DriverUp.Name)) {
							t.Fatalf("%s = 0 while the driver was reopened", k)
						}
						if strings.HasPrefix(k, BusySeconds.Name+`{engine="gpu",gpu="0"`) {
							if v < busy {
								t.Fatalf("%s fell from %v to %v", k, busy, v)
							}
							busy = v
						}
					}
				})
				Want(t, h, counts[1], Devices, "")
				Want(t, h, 3, DevicesExpected, "")
				Want(t, h, 2, NVMLGeneration, "")
				Want(t, h, counts[1]-2, Up, "2")
				if kind == "hot_remove" {
					Want(t, h, 1, WorkerStuck, "2", "not_listed")
				}
			})
		})
	}
}

func TestADriverLostDuringAHangIsReopenedAfterwards(t *testing.T) {
	source := "gpus: [{model: h100, count: 2}]\nfaults:\n- {at: 10s, for: 50s, gpu: 1, kind: wedge}\n" +
		"- {at: 20s, for: 20s, kind: driver_gone}\n"
	In(t, source, DefaultConfig(), func(t *testing.T, h *Host) {
		Advance(30 * time.Second)
		Want(t, h, 0, DriverUp, "")
		Want(t, h, 0, Up, "0")
		Want(t, h, 0, Up, "1")
		if err := h.Ready(); err == nil || !strings.Contains(err.Error(), "gpu 1 hangs in nvml") {
			t.Errorf("Ready() = %v, want the GPU that keeps NVML open", err)
		}
		Advance(40 * time.Second) // the call returned at 60 s
		Want(t, h, 1, Up, "0")
		Want(t, h, 1, Up, "1")
		Want(t, h, 2, NVMLGeneration, "")
	})
}

// TestAHangDelaysReopening checks that nothing is closed during a call that
// hangs, and that the driver is reopened when the call returns.
func TestAHangDelaysReopening(t *testing.T) {
	source := "gpus: [{model: h100, count: 3}]\nfaults:\n- {at: 10s, for: 40s, gpu: 1, kind: wedge}\n" +
		"- {at: 20s, gpu: 2, kind: hot_remove}\n"
	In(t, source, DefaultConfig(), func(t *testing.T, h *Host) {
		Advance(40 * time.Second)
		Want(t, h, 1, Up, "0")
		Want(t, h, 0, Up, "1")
		Want(t, h, 1, NVMLGeneration, "")
		Advance(20 * time.Second)
		Want(t, h, 1, Up, "0")
		Want(t, h, 1, Up, "1")
		Want(t, h, 0, Up, "2")
		Want(t, h, 2, NVMLGeneration, "")
	})
}

func TestLossOfEveryGPUReopensTheDriver(t *testing.T) {
	In(t, "gpus: [{model: h100, count: 2}]\nfaults:\n- {at: 10s, for: 60s, gpu: 0, kind: lost}\n"+
		"- {at: 20s, for: 50s, gpu: 1, kind: lost}\n", DefaultConfig(), func(t *testing.T, h *Host) {
		Advance(19 * time.Second)
		Want(t, h, 1, NVMLGeneration, "")
		Advance(41 * time.Second)
		if n, _ := Get(t, h, NVMLGeneration, ""); n < 4 || n > 20 {
			t.Errorf("the driver was opened %v times in 40 s without a GPU", n)
		}
		Want(t, h, 0, Up, "0")
		Want(t, h, 0, Up, "1")
		Advance(20 * time.Second)
		Want(t, h, 1, Up, "0")
		Want(t, h, 1, Up, "1")
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

func TestDrainReleasesAndResumeReopens(t *testing.T) {
	In(t, "gpus: [{model: h100, load: full, count: 2}]\n", DefaultConfig(), func(t *testing.T, h *Host) {
		for round := range 2 {
			Advance(12 * time.Second)
			Want(t, h, 1, Up, "0")
			Want(t, h, 0, Drained, "")
			ended := call(t, h.Drain)
			Advance(2 * time.Second)
			if err, done := ended(); err != nil || !done {
				t.Fatalf("after 2 s Drain has ended: %v, with %v", done, err)
			}
			if h.NVML.Shutdown() == 0 { // SUCCESS means that NVML was open
				t.Error("NVML is still open")
			}
			Want(t, h, 1, Drained, "")
			Want(t, h, 2, DevicesExpected, "")
			WantNone(t, h, Up, "0")
			WantNone(t, h, Devices, "")
			WantNone(t, h, Temperature, "0", "gpu")
			if err := h.Ready(); !errors.Is(err, ErrDrained) {
				t.Errorf("Ready() = %v while drained", err)
			}
			Advance(time.Minute)
			if idle := time.Since(h.Progress()); idle > 2*time.Second {
				t.Errorf("no progress for %v: systemd's watchdog would end a drained agent", idle)
			}
			Want(t, h, 1, Drained, "")
			if again := call(t, h.Drain); again != nil {
				synctest.Wait()
				if err, done := again(); err != nil || !done {
					t.Errorf("a second drain: %v, %v", err, done)
				}
			}
			ended = call(t, h.Resume)
			Advance(2 * time.Second)
			if err, done := ended(); err != nil || !done {
				t.Fatalf("after 2 s Resume has ended: %v, with %v", done, err)
			}
			Want(t, h, float64(round+2), NVMLGeneration, "")
		}
		Advance(2 * time.Second)
		Want(t, h, 1, Up, "0")
	})
}

func TestDrainNamesTheCallThatBlocksIt(t *testing.T) {
	In(t, "gpus: [{model: h100, count: 2}]\n"+
		"faults: [{at: 10s, for: 50s, gpu: 1, kind: wedge}]\n", DefaultConfig(), func(t *testing.T, h *Host) {
		Advance(20 * time.Second)
		ended := call(t, h.Drain)
		Advance(4 * time.Second)
		if err, done := ended(); !done || err == nil || !strings.Contains(err.Error(), "gpu 1 hangs in nvml") {
			t.Fatalf("Drain has ended: %v, with %v", done, err)
		}
		Want(t, h, 0, Drained, "")
		Advance(40 * time.Second) // the call returned at 60 s
		Want(t, h, 1, Drained, "")
		if h.NVML.Shutdown() == 0 {
			t.Error("NVML is still open")
		}
		ended = call(t, h.Resume)
		Advance(4 * time.Second)
		if err, done := ended(); err != nil || !done {
			t.Fatalf("Resume has ended: %v, with %v", done, err)
		}
		Want(t, h, 1, Up, "1")
	})
}

func TestResumeSaysThatThereIsNoDriver(t *testing.T) {
	In(t, "gpus: [{model: h100}]\n"+
		"faults: [{at: 10s, for: 60s, kind: driver_gone}]\n", DefaultConfig(), func(t *testing.T, h *Host) {
		Advance(5 * time.Second)
		drained := call(t, h.Drain)
		Advance(10 * time.Second)
		if err, done := drained(); err != nil || !done {
			t.Fatalf("Drain has ended: %v, with %v", done, err)
		}
		resumed := call(t, h.Resume)
		Advance(10 * time.Second)
		if err, done := resumed(); !done || err == nil || !strings.Contains(err.Error(), "driver_not_loaded") {
			t.Fatalf("Resume has ended: %v, with %v", done, err)
		}
		Advance(60 * time.Second)
		Want(t, h, 1, Up, "0")
	})
}

// TestProgressStopsForAReaderThatIsNotInTheDriver: in this case the agent
// itself hangs, and a restart is right.
func TestProgressStopsForAReaderThatIsNotInTheDriver(t *testing.T) {
	var release chan struct{} // made in the bubble
	deadlock := Register(Collector{
		Name: "deadlock", OptIn: true, Tier: Medium,
		Read: func(g *gpu.Device, out *Readings) {
			if g.Index == 1 && release == nil {
				release = make(chan struct{})
				<-release
			}
		},
	})
	defer Unregister(deadlock)
	c := DefaultConfig()
	c.Enable = []string{"deadlock"}
	source := "gpus: [{model: h100, count: 2}]\nfaults: [{at: 0s, gpu: 0, kind: wedge}]\n"
	In(t, source, c, func(t *testing.T, h *Host) {
		Advance(time.Minute)
		if idle := time.Since(h.Progress()); idle < 30*time.Second {
			t.Errorf("progress %v ago, with a reader that hangs in the agent itself", idle)
		}
		close(release)
		Advance(10 * time.Second)
		if idle := time.Since(h.Progress()); idle > 2*time.Second {
			t.Errorf("no progress for %v, with a reader that hangs in the driver and one that moves", idle)
		}
	})
}
