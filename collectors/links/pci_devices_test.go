package links

import (
	"math"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors"
	"gpusteward/collectors/gpu"
	"gpusteward/collectors/host"
	"gpusteward/collectors/hosttest"
	"gpusteward/internal/fixture"
)

// TestPCIPresence lets GPUs fall off the bus in every way, and return.
func TestPCIPresence(t *testing.T) {
	for kind, c := range map[string]struct{ present, bound, devices float64 }{
		"lost":           {0, 1, 2},
		"pci_gone":       {0, 1, 2},
		"hot_remove":     {0, -1, 1},
		"driver_unbound": {1, 0, 2},
	} {
		t.Run(kind, func(t *testing.T) {
			source := "gpus: [{model: h100, count: 2}]\nfaults: [{at: 20s, for: 60s, gpu: 1, kind: " + kind + "}]\n"
			hosttest.In(t, source, collectors.DefaultConfig(), func(t *testing.T, h *collectors.Host) {
				hosttest.Advance(15 * time.Second)
				for _, index := range []string{"0", "1"} {
					hosttest.Want(t, h, 1, PCIDevicePresent, index, hosttest.PCIDevice(index)...)
					hosttest.Want(t, h, 1, PCIDeviceBound, index, hosttest.PCIDevice(index, "nvidia")...)
				}
				hosttest.Advance(20 * time.Second)
				hosttest.Want(t, h, c.devices, PCIDevices, "", "gpu")
				hosttest.Want(t, h, c.present, PCIDevicePresent, "1", hosttest.PCIDevice("1")...)
				if c.bound == 1 {
					hosttest.Want(t, h, 1, PCIDeviceBound, "1", hosttest.PCIDevice("1", "nvidia")...)
				} else {
					hosttest.WantNone(t, h, PCIDeviceBound, "1", hosttest.PCIDevice("1", "nvidia")...)
				}
				if c.bound == 0 {
					hosttest.Want(t, h, 0, PCIDeviceBound, "1", hosttest.PCIDevice("1", "")...)
				}
				hosttest.Want(t, h, 1, PCIDevicePresent, "0", hosttest.PCIDevice("0")...)
				hosttest.Advance(60 * time.Second)
				hosttest.Want(t, h, 2, PCIDevices, "", "gpu")
				hosttest.Want(t, h, 1, PCIDevicePresent, "1", hosttest.PCIDevice("1")...)
				hosttest.Want(t, h, 1, PCIDeviceBound, "1", hosttest.PCIDevice("1", "nvidia")...)
			})
		})
	}
}

const bus = "bus/pci/devices/"

// pci adds a device to files.
func pci(files fstest.MapFS, address, class string) {
	files[bus+address+"/uevent"] = &fstest.MapFile{Data: []byte("DRIVER=nvidia\nPCI_CLASS=" + class +
		"\nPCI_ID=10DE:2330\n")}
	files[bus+address+"/config"] = &fstest.MapFile{Data: []byte("\xde\x10")}
	files[bus+address+"/aer_dev_fatal"] = &fstest.MapFile{Data: []byte("DLP 2\nTOTAL_ERR_FATAL 2\n")}
}

// remove removes a device.
func remove(files fstest.MapFS, address string) {
	for _, name := range []string{"/uevent", "/config", "/aer_dev_fatal"} {
		delete(files, bus+address+name)
	}
}

// TestDevicesWithoutAKnownGPU checks that such devices are identified by their addresses.
func TestDevicesWithoutAKnownGPU(t *testing.T) {
	files := fstest.MapFS{}
	pci(files, "0000:07:00.0", "68000")
	pci(files, "0000:1b:00.0", "30200")
	pci(files, "0000:43:00.0", "30200")
	known := []gpu.ID{{Index: 3, UUID: "GPU-a", PCI: "00000000:1B:00.0"}, {Index: 4, UUID: "GPU-b"}}

	p := hosttest.ReadKernel("pci_devices", files)
	p.Known = known
	p.Pass()
	p.Has(t, `nvgpu_pci_device_present{gpu="3",kind="gpu",pci_bus_id="0000:1b:00.0",uuid="GPU-a"}`, 1)
	p.Has(t, `nvgpu_pci_device_present{gpu="",kind="gpu",pci_bus_id="0000:43:00.0",uuid=""}`, 1)
	p.Has(t, `nvgpu_pci_device_present{gpu="",kind="nvswitch",pci_bus_id="0000:07:00.0",uuid=""}`, 1)
	p.Has(t, `nvgpu_pci_devices{kind="gpu"}`, 2)
	p.Has(t, `nvgpu_pci_devices{kind="nvswitch"}`, 1)

	b := &pciBus{seen: map[string]*pciDevice{}, answers: func(string) (bool, error) { return true, nil },
		withheld: func(address string) bool { return address != "0000:52:00.0" }}
	ports := &hosttest.Reading{Known: known, Read: func(out *collectors.Readings) {
		b.read([]host.PCIDevice{{Address: "0000:1b:00.0", Kind: "gpu", Ports: "0000:15:01.0/0000:16:00.0", Lanes: 8,
			Driver: "nvidia"}, {Address: "0000:43:00.0", Kind: "gpu", Ports: "0000:40:01.0", Lanes: 8, Driver: "nvidia"},
			{Address: "0000:52:00.0", Kind: "gpu", Driver: "nvidia"}, {Address: "0000:61:00.0", Kind: "gpu", Driver: "vfio-pci"},
			{Address: "0000:07:00.0", Kind: "nvswitch", Driver: "nvidia"}}, out)
	}}
	ports.Pass()
	ports.Has(t, `nvgpu_pci_port_info{gpu="3",port="0000:15:01.0",uuid="GPU-a"}`, 1)
	ports.Has(t, `nvgpu_pci_port_info{gpu="3",port="0000:16:00.0",uuid="GPU-a"}`, 1)
	ports.Has(t, `nvgpu_pci_port_lanes{gpu="3",uuid="GPU-a"}`, 8)
	ports.HasNo(t, `nvgpu_pci_port_info{gpu="",port="0000:40:01.0",uuid=""}`)
	ports.HasNo(t, `nvgpu_pci_port_lanes{gpu="",uuid=""}`)
	ports.Has(t, `nvgpu_pci_devices_withheld{}`, 1)

	a := hosttest.ReadKernel("pcie_aer", files)
	a.Known = known
	a.Pass()
	a.Has(t, `nvgpu_pcie_aer_errors_total{gpu="3",kind="gpu",pci_bus_id="0000:1b:00.0",severity="fatal",uuid="GPU-a"}`,
		2)
	a.Has(t, `nvgpu_pcie_aer_errors_total{gpu="",kind="nvswitch",pci_bus_id="0000:07:00.0",severity="fatal",uuid=""}`,
		2)
	a.HasNo(t,
		`nvgpu_pcie_aer_errors_total{gpu="3",kind="gpu",pci_bus_id="0000:1b:00.0",severity="correctable",uuid="GPU-a"}`)
	fixture.Equal(t, a.Out.Failure, nvml.SUCCESS, "an uncounted severity is a failure")

	remove(files, "0000:07:00.0")
	remove(files, "0000:1b:00.0")
	p.Pass()
	p.Has(t, `nvgpu_pci_device_present{gpu="3",kind="gpu",pci_bus_id="0000:1b:00.0",uuid="GPU-a"}`, 0)
	p.Has(t, `nvgpu_pci_device_present{gpu="",kind="nvswitch",pci_bus_id="0000:07:00.0",uuid=""}`, 0)
	p.Has(t, `nvgpu_pci_devices{kind="gpu"}`, 1)
	p.Has(t, `nvgpu_pci_devices{kind="nvswitch"}`, 0)
}

// TestDevicesAreBounded checks that their number has a limit.
func TestDevicesAreBounded(t *testing.T) {
	files := fstest.MapFS{}
	p := hosttest.ReadKernel("pci_devices", files)
	for i := range 3 * maxDevices {
		address := "0000:00:" + strconv.FormatInt(int64(i+256), 16) + ".0"
		pci(files, address, "30200")
		if i%10 == 9 {
			p.Pass()
			remove(files, address)
		}
	}
	p.Pass()
	devices := 0
	for name := range p.Now {
		if strings.HasPrefix(name, PCIDevicePresent.Name) {
			devices++
		}
	}
	fixture.Equal(t, devices, maxDevices, "devices followed")
}

// TestBusWithoutNVIDIADevices: the GPUs may be on a bus that is not visible, as in WSL.
func TestBusWithoutNVIDIADevices(t *testing.T) {
	p := hosttest.ReadKernel("pci_devices",
		fstest.MapFS{bus + "0000:00:00.0/uevent": {Data: []byte("PCI_CLASS=60000\nPCI_ID=8086:0D57\n")}})
	p.Known = []gpu.ID{{UUID: "GPU-a", PCI: "00000000:1B:00.0"}}
	p.Pass()
	fixture.If(t, len(p.Now) != 0 || len(p.Out.Unsupported) != 1 || p.Out.Failure != nvml.SUCCESS,
		"it puts %v, failure %v", p.Now, p.Out.Failure)
}

// TestHungDeviceDoesNotHideOthers also checks that its own state is unknown, and that it is asked once.
func TestHungDeviceDoesNotHideOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const hangs, well = "0000:1b:00.0", "0000:43:00.0"
		release := make(chan struct{})
		var asked atomic.Int32
		b := &pciBus{seen: map[string]*pciDevice{}, answers: func(address string) (bool, error) {
			if address == hangs && asked.Add(1) > 1 {
				<-release
			}
			return true, nil
		}}
		devices := []host.PCIDevice{{Address: hangs, Kind: "gpu"}, {Address: well, Kind: "gpu"}}
		p := &hosttest.Reading{Read: func(out *collectors.Readings) { b.read(devices, out) }}
		name := func(address string) string {
			return `nvgpu_pci_device_present{gpu="",kind="gpu",pci_bus_id="` + address + `",uuid=""}`
		}
		p.Pass()
		p.Has(t, name(hangs), 1)
		for range 3 {
			began := time.Now()
			p.Pass()
			fixture.AtMost(t, time.Since(began), patience, "a pass took")
			p.Has(t, name(well), 1)
			p.HasNo(t, name(hangs))
			p.Has(t, `nvgpu_pci_devices{kind="gpu"}`, 2)
			fixture.Equal(t, p.Out.Failure, nvml.ERROR_TIMEOUT, "the failure is")
		}
		fixture.Equal(t, asked.Load(), 2, "it was asked … times")
		close(release)
		synctest.Wait()
		p.Pass()
		p.Has(t, name(hangs), 1)
	})
}

// TestSeriesCarryTheGPUsNamesFromTheStart starts without an inventory.
func TestSeriesCarryTheGPUsNamesFromTheStart(t *testing.T) {
	source := "gpus: [{model: h100, count: 2}]\nfaults: [{at: 0s, for: 1s, kind: wedge, call: nvmlInit}]\n"
	hosttest.In(t, source, collectors.DefaultConfig(), func(t *testing.T, h *collectors.Host) {
		for range 100 {
			for _, s := range h.Samples() {
				fixture.Need(t, s.Metric == PCIDevicePresent && s.Labels[1] == "", false, "%v %q", s.Metric, s.Labels)
			}
			hosttest.Advance(20 * time.Millisecond)
		}
		hosttest.Want(t, h, 1, PCIDevicePresent, "1", hosttest.PCIDevice("1")...)
	})
}

func TestPCIeRate(t *testing.T) {
	hosttest.In(t, "gpus: [{model: h100}, {model: l4}, {model: a100}]\n", collectors.DefaultConfig(), func(t *testing.T, h *collectors.Host) {
		hosttest.Advance(12 * time.Second)
		for index, want := range map[string]float64{"0": 63e9, "1": 31.5e9, "2": 31.5e9} {
			if rate := PCIeRate(h, hosttest.Told(h, collectors.Up, "gpu", index)["uuid"], "max"); math.Abs(rate/want-1) > .01 {
				t.Errorf("the link of GPU %s moves %.4g bytes a second, want about %.4g", index, rate, want)
			}
		}
		fixture.Equal(t, PCIeRate(h, "GPU-none", "max"), 0, "a missing GPU has a link with … bytes a second")
	})
}
