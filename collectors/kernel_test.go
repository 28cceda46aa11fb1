package collectors_test

import (
	"context"
	"io/fs"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors"
	"gpusteward/collectors/device"
	"gpusteward/collectors/faults"
	"gpusteward/collectors/gpu/sim"
	"gpusteward/collectors/host"
	"gpusteward/collectors/hosttest"
	"gpusteward/collectors/links"
	"gpusteward/internal/fixture"
)

// TestKernelIsReadWithoutADriver tests a driver that is gone, one that hangs
// while it is opened, and one that is drained.
func TestKernelIsReadWithoutADriver(t *testing.T) {
	for name, fault := range map[string]string{
		"gone":    "{at: 20s, kind: driver_gone}",
		"hanging": "{at: 20s, for: 100s, kind: wedge, call: nvmlInit}, {at: 20s, for: 1s, kind: driver_gone}",
		"drained": "{at: 1h, kind: driver_gone}",
	} {
		t.Run(name, func(t *testing.T) {
			source := "gpus: [{model: h100, count: 2}]\ninfiniband: 1\nfaults: [" + fault +
				", {at: 30s, kind: pcie_aer, gpu: 1, severity: fatal}]\n"
			hosttest.In(t, source, collectors.DefaultConfig(), func(t *testing.T, h *collectors.Host) {
				hosttest.Advance(15 * time.Second)
				hosttest.Want(t, h, 0, links.PCIeAERErrors, "1", hosttest.PCIDevice("1", "fatal")...)
				if name == "drained" {
					call(t, h.Drain)
				}
				hosttest.Advance(65 * time.Second)
				fixture.Need(t, h.Driver() == nil, false, "the driver is open")
				hosttest.Want(t, h, 1, links.PCIeAERErrors, "1", hosttest.PCIDevice("1", "fatal")...)
				hosttest.Want(t, h, 1, links.PCIDevicePresent, "1", hosttest.PCIDevice("1")...)
				hosttest.Want(t, h, 2, links.PCIDevices, "", "gpu")
				hosttest.Want(t, h, 1, links.IBPortUp, "", "mlx5_0/1")
				hosttest.Want(t, h, collectors.Bool(name == "hanging"), faults.DriverBlockedTasks, "")
				hosttest.Want(t, h, 1, collectors.CollectSuccess, "", "boot")
				at, ok := hosttest.Get(t, h, device.NodeBoot, "")
				fixture.If(t, !ok || float64(time.Now().Unix())-at < 24*3600, "booted at %v", at)
			})
		})
	}
}

// A hangingFS is a file system in which the files below dir hang from a given moment.
type hangingFS struct {
	fs.FS
	dir     string
	from    time.Time
	release chan struct{}
}

func (f hangingFS) Open(name string) (fs.File, error) {
	if strings.HasPrefix(name, f.dir) && !time.Now().Before(f.from) {
		<-f.release
	}
	return f.FS.Open(name)
}

// TestHungKernelFile checks that such a file stops neither the other collectors, nor the watchdog, nor the end.
func TestHungKernelFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nv := fixture.Value(sim.New(hosttest.Scenario(t, "gpus: [{model: h100}]\ninfiniband: 2\n"), sim.Options{}))(t)
		kernel := nv.Kernel()
		release := make(chan struct{})
		kernel.Sys = hangingFS{kernel.Sys, "class/infiniband/mlx5_1", time.Now().Add(15 * time.Second), release}
		log := slog.New(slog.DiscardHandler)
		h := collectors.NewHost(collectors.Options{NVML: nv, Kernel: kernel, Config: collectors.DefaultConfig(), Processes: nv.Table(log), Log: log})
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() {
			fixture.Must(t, h.Run(ctx))
		})
		hosttest.Advance(12 * time.Second)
		hosttest.Want(t, h, 1, links.IBPortUp, "", "mlx5_0/1")
		for range 3 {
			hosttest.Advance(30 * time.Second)
			hosttest.Want(t, h, 0, collectors.CollectSuccess, "", "ib_ports")
			hosttest.Want(t, h, 1, collectors.CollectSuccess, "", "pci_devices")
			hosttest.Want(t, h, 1, collectors.Up, "0")
			hosttest.Want(t, h, 1, links.PCIDevicePresent, "0", hosttest.PCIDevice("0")...)
			hosttest.WantNone(t, h, links.IBPortUp, "", "mlx5_0/1")
			fixture.AtMost(t, time.Since(h.Progress()), 2*time.Second,
				"no progress for …: systemd's watchdog would end the agent")
		}
		close(release)
		hosttest.Advance(20 * time.Second)
		hosttest.Want(t, h, 1, links.IBPortUp, "", "mlx5_0/1")
		cancel()
		running.Wait()
	})
}

// TestHungKernelFileDoesNotBlockShutdown checks that such a file does not keep Run from ending.
func TestHungKernelFileDoesNotBlockShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nv := fixture.Value(sim.New(hosttest.Scenario(t, "gpus: [{model: h100}]\n"), sim.Options{}))(t)
		release := make(chan struct{})
		defer close(release)
		log := slog.New(slog.DiscardHandler)
		h := collectors.NewHost(collectors.Options{NVML: nv,
			Kernel: host.Kernel{Sys: hangingFS{fstest.MapFS{}, "bus/pci", time.Now(), release}}, Config: collectors.DefaultConfig(),
			Processes: nv.Table(log), Log: log})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); _ = h.Run(ctx) }()
		hosttest.Advance(10 * time.Second)
		cancel()
		synctest.Wait()
		select {
		case <-ended:
		default:
			t.Error("Run waits for a file that hangs")
		}
	})
}

// TestRefusalOfTheKernelIsAFailure checks that it is not taken for an answer.
func TestRefusalOfTheKernelIsAFailure(t *testing.T) {
	for _, c := range collectors.All() {
		if c.Kernel == nil || c.Name == "broker" { // it asks a socket instead
			continue
		}
		p := &hosttest.Reading{Read: c.Kernel(host.Kernel{Sys: refusing{}, Proc: refusing{}})}
		p.Pass()
		fixture.If(t, len(p.Now) != 0 || p.Out.Failure != nvml.ERROR_NO_PERMISSION,
			"%s puts %v, failure %v", c.Name, p.Now, p.Out.Failure)
	}
}

type refusing struct{}

func (refusing) Open(name string) (fs.File, error) {
	return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrPermission}
}
