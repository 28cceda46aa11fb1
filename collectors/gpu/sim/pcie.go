package sim

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors/gpu/sim/models"
	"gpusteward/collectors/gpu/sim/scenarios"
)

// pcieState is the fault of the PCIe link, and its errors since the driver was
// loaded.
type pcieState struct {
	errors, rate      uint64    // rate is per second
	generation, width int       // 0 means the model's value
	aer               [3]uint64 // errors that the kernel counted, by severity
}

func (g *gpu) pcieErrorsBegin(f *scenarios.Fault) { g.pcie.rate = f.Count }
func (g *gpu) pcieErrorsEnd(*scenarios.Fault)     { g.pcie.rate = 0 }
func (g *gpu) pcieWorse(f *scenarios.Fault)       { g.pcie.generation, g.pcie.width = f.Generation, f.Width }
func (g *gpu) pcieWell(*scenarios.Fault)          { g.pcie.generation, g.pcie.width = 0, 0 }

// generation returns the current generation of the link.
func (g *gpu) generation() int {
	n := g.model.PCIe.Generation
	if g.hot == 0 {
		n = g.model.PCIe.IdleGeneration
	}
	if g.pcie.generation > 0 {
		n = min(n, g.pcie.generation)
	}
	return n
}

// lanes returns the current width of the link.
func (g *gpu) lanes() int {
	if g.pcie.width > 0 {
		return g.pcie.width
	}
	return g.model.PCIe.Width
}

// GetPcieThroughput returns KB per second, without the driver's delay of 20 ms.
func (d *device) GetPcieThroughput(counter nvml.PcieUtilCounter) (uint32, nvml.Return) {
	return read(d, "nvmlDeviceGetPcieThroughput", func(g *gpu) (uint32, nvml.Return) {
		const kilo = 1 << 20 / 1000.0
		switch counter {
		case nvml.PCIE_UTIL_TX_BYTES:
			return uint32(g.work.gpm.pcieTx * kilo), nvml.SUCCESS
		case nvml.PCIE_UTIL_RX_BYTES:
			return uint32(g.work.gpm.pcieRx * kilo), nvml.SUCCESS
		}
		return 0, nvml.ERROR_INVALID_ARGUMENT
	})
}

// GetPcieReplayCounter returns replays since the driver was loaded.
func (d *device) GetPcieReplayCounter() (int, nvml.Return) {
	return read(d, "nvmlDeviceGetPcieReplayCounter",
		func(g *gpu) (int, nvml.Return) { return int(g.pcie.errors), nvml.SUCCESS })
}

// GetCurrPcieLinkGeneration returns the generation, which some models lower
// when idle.
func (d *device) GetCurrPcieLinkGeneration() (int, nvml.Return) {
	return read(d, "nvmlDeviceGetCurrPcieLinkGeneration",
		func(g *gpu) (int, nvml.Return) { return g.generation(), nvml.SUCCESS })
}

// GetCurrPcieLinkWidth returns the number of lanes.
func (d *device) GetCurrPcieLinkWidth() (int, nvml.Return) {
	return read(d, "nvmlDeviceGetCurrPcieLinkWidth", func(g *gpu) (int, nvml.Return) { return g.lanes(), nvml.SUCCESS })
}

// GetMaxPcieLinkGeneration returns the maximum of GPU and slot.
func (d *device) GetMaxPcieLinkGeneration() (int, nvml.Return) {
	return fixed(d, "nvmlDeviceGetMaxPcieLinkGeneration", func(m *models.Model) int { return m.PCIe.Generation })
}

// GetMaxPcieLinkWidth returns the number of lanes.
func (d *device) GetMaxPcieLinkWidth() (int, nvml.Return) {
	return fixed(d, "nvmlDeviceGetMaxPcieLinkWidth", func(m *models.Model) int { return m.PCIe.Width })
}

// GetGpuMaxPcieLinkGeneration returns the maximum of the GPU.
func (d *device) GetGpuMaxPcieLinkGeneration() (int, nvml.Return) {
	return fixed(d, "nvmlDeviceGetGpuMaxPcieLinkGeneration", func(m *models.Model) int { return m.PCIe.Generation })
}

// GetPcieSpeed returns megatransfers per second and lane.
func (d *device) GetPcieSpeed() (int, nvml.Return) {
	return read(d, "nvmlDeviceGetPcieSpeed", func(g *gpu) (int, nvml.Return) {
		speeds := []int{1: 2500, 2: 5000, 3: 8000, 4: 16000, 5: 32000, 6: 64000}
		return speeds[g.generation()], nvml.SUCCESS
	})
}
