package sim

import (
	"fmt"
	"testing"
	"testing/fstest"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors/gpu/sim/scenarios"
)

// onBus returns the kernel's view of the GPU with this index: its driver and
// whether it answers, or "none".
func onBus(t testing.TB, h *Host, index int) string {
	t.Helper()
	bus, slot := h.gpus[index].address()
	address := fmt.Sprintf("0000:%02x:%02x.0", bus, slot)
	devices, err := h.Kernel().PCIDevices()
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range devices {
		if d.Address == address {
			answers, err := h.Kernel().Answers(address)
			if err != nil || d.Kind != "gpu" {
				t.Error(d, err)
			}
			return fmt.Sprintf("%s %v", d.Driver, answers)
		}
	}
	return "none"
}

// TestFaultsOnTheBus tries each fault visible on the PCI bus, and one that is
// not.
func TestFaultsOnTheBus(t *testing.T) {
	for kind, c := range map[string]struct {
		seen string
		ret  nvml.Return // of the driver
	}{
		"lost":           {"nvidia false", nvml.ERROR_GPU_IS_LOST},
		"pci_gone":       {"nvidia false", nvml.SUCCESS},
		"hot_remove":     {"none", nvml.ERROR_GPU_IS_LOST},
		"driver_unbound": {" true", nvml.ERROR_GPU_IS_LOST},
		"node_gone":      {"nvidia true", nvml.ERROR_UNKNOWN},
	} {
		t.Run(kind, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := scenarios.Fault{Kind: kind, At: scenarios.Duration(10 * time.Second),
					For: scenarios.Duration(20 * time.Second)}
				h := begin(t, scenarios.Scenario{GPUs: []scenarios.GPU{{Count: 2}}, Faults: []scenarios.Fault{f}}, Options{})
				d := gpuOf(t, h, 0)
				is := func(seen string, wanted nvml.Return) {
					t.Helper()
					_, ret := d.GetPowerUsage()
					want(t, "power", ret, wanted)
					if got := onBus(t, h, 0); got != seen {
						t.Errorf("on the bus it is %q, want %q", got, seen)
					}
					if got := onBus(t, h, 1); got != "nvidia true" {
						t.Errorf("the other is %q", got)
					}
				}
				is("nvidia true", nvml.SUCCESS)
				time.Sleep(15 * time.Second)
				is(c.seen, c.ret)
				time.Sleep(20 * time.Second)
				is("nvidia true", nvml.SUCCESS)
			})
		})
	}
}

func TestDriverGoneUnbindsTheGPU(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := begin(t, scenarios.Scenario{GPUs: []scenarios.GPU{{}},
			Faults: []scenarios.Fault{{Kind: "driver_gone", At: scenarios.Duration(time.Second)}}}, Options{})
		time.Sleep(2 * time.Second)
		if got := onBus(t, h, 0); got != " true" {
			t.Errorf("on the bus it is %q", got)
		}
	})
}

// TestAERErrors repeats errors every 10 s.
func TestAERErrors(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := scenarios.Fault{Kind: "pcie_aer", GPU: 1, At: scenarios.Duration(5 * time.Second),
			Every:    scenarios.Duration(10 * time.Second),
			Severity: "nonfatal", Count: 3}
		h := begin(t, scenarios.Scenario{GPUs: []scenarios.GPU{{}, {}, {Model: "h100-vm"}},
			Faults: []scenarios.Fault{f}}, Options{})
		time.Sleep(27 * time.Second)
		devices, err := h.Kernel().PCIDevices()
		if err != nil || len(devices) != 3 {
			t.Fatal(devices, err)
		}
		for _, d := range devices {
			for severity, n := range map[string]uint64{"correctable": 0, "nonfatal": 9, "fatal": 0} {
				got, err := h.Kernel().AERErrors(d.Address, severity)
				switch d.Address {
				case "0000:00:08.0": // in a virtual machine
					if err == nil {
						t.Errorf("a virtual machine counts %d %s errors", got, severity)
					}
				case "0000:1b:00.0":
					n = 0
					fallthrough
				default:
					if err != nil || got != n {
						t.Errorf("%s: %d %s errors, %v, want %d", d.Address, got, severity, err, n)
					}
				}
			}
		}
	})
}

func TestInfiniBand(t *testing.T) {
	bubble(t, func(t *testing.T) {
		flaps := scenarios.Fault{Kind: "ib_down", Device: "mlx5_1/1", At: scenarios.Duration(10 * time.Second),
			For: scenarios.Duration(5 * time.Second), Every: scenarios.Duration(20 * time.Second)}
		h := begin(t, scenarios.Scenario{GPUs: []scenarios.GPU{{}}, InfiniBand: 2,
			Faults: []scenarios.Fault{flaps, {Kind: "ib_down", At: scenarios.Duration(30 * time.Second)}}}, Options{})
		for _, c := range []struct {
			wait  time.Duration
			ports string // name, state and number of link-down events
		}{
			{0, "[{mlx5_0/1 true true 0} {mlx5_1/1 true true 0}]"},
			{12 * time.Second, "[{mlx5_0/1 true true 0} {mlx5_1/1 false true 1}]"},
			{6 * time.Second, "[{mlx5_0/1 true true 0} {mlx5_1/1 true true 1}]"},
			{34 * time.Second, "[{mlx5_0/1 false true 1} {mlx5_1/1 false true 3}]"},
		} {
			time.Sleep(c.wait)
			got, err := h.Kernel().IBPorts()
			if err != nil || fmt.Sprint(got) != c.ports {
				t.Errorf("ports are %v, %v, want %v", got, err, c.ports)
			}
		}
	})
}

// TestBoot checks that the boot id follows the seed, and that the boot precedes
// every process.
func TestBoot(t *testing.T) {
	bubble(t, func(t *testing.T) {
		ids := map[string]int{}
		for _, seed := range []uint64{1, 1, 2} {
			h := begin(t, embedded(t, "workloads"), Options{Seed: seed})
			id, err := h.Kernel().BootID()
			if err != nil || len(id) != 36 {
				t.Errorf("boot id %q, %v", id, err)
			}
			ids[id]++
			at, err := h.Kernel().Booted()
			if p, ok := h.Process(2101); err != nil || !ok || !at.Before(p.Began) {
				t.Errorf("booted at %v, %v, after a process of %v", at, err, p.Began)
			}
		}
		if len(ids) != 2 {
			t.Errorf("boot ids of seeds 1, 1 and 2: %v", ids)
		}
	})
}

// TestKernelIsAFileSystem runs fstest.TestFS on the trees.
func TestKernelIsAFileSystem(t *testing.T) {
	bubble(t, func(t *testing.T) {
		k := begin(t, embedded(t, "mixed"), Options{}).Kernel()
		if err := fstest.TestFS(k.Sys, "bus/pci/devices/0000:1b:00.0/config",
			"class/infiniband/mlx5_7/ports/1/state"); err != nil {
			t.Error(err)
		}
		if err := fstest.TestFS(k.Proc, "stat"); err != nil {
			t.Error(err)
		}
	})
}

// BenchmarkKernel reads everything that the collectors read, on the largest
// host.
func BenchmarkKernel(b *testing.B) {
	h := begin(b, embedded(b, "faults"), Options{})
	k := h.Kernel()
	for b.Loop() {
		devices, err := k.PCIDevices()
		if err != nil {
			b.Fatal(err)
		}
		for _, d := range devices {
			if _, err := k.Answers(d.Address); err != nil {
				b.Fatal(err)
			}
			if _, err := k.AERErrors(d.Address, "fatal"); err != nil {
				b.Fatal(err)
			}
		}
		if _, err := k.IBPorts(); err != nil {
			b.Fatal(err)
		}
	}
}
