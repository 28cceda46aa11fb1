package device

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors"
	"gpusteward/collectors/gpu"
)

// Modes set by an operator.
var (
	ModeEnabled = collectors.Gauge("nvgpu_mode_enabled",
		"Whether a mode of the GPU is on; a _pending mode takes effect at the next reset.", "mode")
	ComputeMode = collectors.Gauge("nvgpu_compute_mode",
		"Compute mode: 0 default, 1 exclusive thread, 2 prohibited, 3 exclusive process.")
	VirtualizationInfo = collectors.Gauge("nvgpu_virtualization_info", "Virtualization mode of the GPU, always 1.", "mode")
)

var _ = collectors.Register(collectors.Collector{
	Name:    "modes",
	Doc:     "Modes set by an operator.",
	Tier:    collectors.Slow,
	Metrics: []*collectors.Metric{ModeEnabled, ComputeMode, VirtualizationInfo},
	Read: func(g *gpu.Device, out *collectors.Readings) {
		mode := func(name string, s nvml.EnableState, ret nvml.Return) {
			out.Put(ModeEnabled, collectors.On(s), ret, name)
		}
		state, ret := g.GetPersistenceMode()
		mode("persistence", state, ret)
		state, ret = g.GetAccountingMode()
		mode("accounting", state, ret)
		state, ret = g.GetDisplayActive()
		mode("display", state, ret)
		state, pending, ret := g.GetEccMode()
		mode("ecc", state, ret)
		mode("ecc_pending", pending, ret)
		state, _, ret = g.GetAutoBoostedClocksEnabled()
		mode("auto_boost", state, ret)
		mig, migPending, ret := g.GetMigMode()
		out.Put(ModeEnabled, float64(mig), ret, "mig")
		out.Put(ModeEnabled, float64(migPending), ret, "mig_pending")
		dram, dramPending, ret := g.GetDramEncryptionMode()
		out.Put(ModeEnabled, collectors.Bool(dram.EncryptionState != 0), ret, "dram_encryption")
		out.Put(ModeEnabled, collectors.Bool(dramPending.EncryptionState != 0), ret, "dram_encryption_pending")
		compute, ret := g.GetComputeMode()
		out.Put(ComputeMode, float64(compute), ret)
		virtual, ret := g.GetVirtualizationMode()
		out.Put(VirtualizationInfo, 1, ret, gpu.Known(virtualizationModes, virtual))
	},
})

var virtualizationModes = map[nvml.GpuVirtualizationMode]string{
	nvml.GPU_VIRTUALIZATION_MODE_NONE: "none", nvml.GPU_VIRTUALIZATION_MODE_PASSTHROUGH: "pass_through",
	nvml.GPU_VIRTUALIZATION_MODE_VGPU: "vgpu", nvml.GPU_VIRTUALIZATION_MODE_HOST_VGPU: "host_vgpu",
	nvml.GPU_VIRTUALIZATION_MODE_HOST_VSGA: "host_vsga",
}
