package activity

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors"
	"gpusteward/collectors/gpu"
)

// GPM: the profiling counters of Hopper and later, readable without a profiler.
// Values are means over the window, which is the time since the previous
// reading.
var (
	GPMActivity = collectors.Gauge("nvgpu_gpm_activity_ratio",
		"Share of the window in which the pipe was active, mean over its units.", "pipe")
	GPMOccupancy = collectors.Gauge("nvgpu_gpm_sm_occupancy_ratio",
		"Warps resident on the SMs, as a ratio of the maximum.")
	GPMPCIe = collectors.Gauge("nvgpu_gpm_pcie_bytes_per_second",
		"PCIe traffic over the window, as seen from the GPU.", "direction")
	GPMWindow = collectors.Gauge("nvgpu_gpm_window_seconds",
		"Time over which the GPU's activity (nvgpu_gpm_*) was measured last, from one sample to the next.")
	PCIeBytes = collectors.Counter("nvgpu_pcie_bytes_total",
		"Bytes of PCIe traffic since the agent opened the GPU, as seen from the GPU; integrated from GPM.", "direction")
)

const mib = 1 << 20

// gpmRows maps GPM metrics to ours. The driver answers 0 for units that the
// chip lacks, so the table holds only what Hopper has.
var gpmRows = []gpmRow{
	{1, GPMActivity, .01, "graphics"}, {2, GPMActivity, .01, "sm"}, {4, GPMActivity, .01, "integer"},
	{5, GPMActivity, .01, "tensor"}, {6, GPMActivity, .01, "tensor_dfma"}, {7, GPMActivity, .01, "tensor_hmma"},
	{9, GPMActivity, .01, "tensor_imma"}, {10, GPMActivity, .01, "dram"}, {11, GPMActivity, .01, "fp64"},
	{12, GPMActivity, .01, "fp32"}, {13, GPMActivity, .01, "fp16"}, {3, GPMOccupancy, .01, ""},
	{20, GPMPCIe, mib, "tx"}, {21, GPMPCIe, mib, "rx"},
}

type gpmRow struct {
	id     uint32
	metric *collectors.Metric
	scale  float64
	label  string
}

// value is m in the row's unit. A ratio can exceed 1 by the rounding at both
// ends of the window.
func (r gpmRow) value(m nvml.GpmMetric) float64 {
	v := collectors.Scaled(m.Value, r.scale)
	if r.scale == .01 {
		v = min(v, 1)
	}
	return v
}

var _ = collectors.Register(collectors.Collector{
	Name:    "gpm",
	Doc:     "Activity of the GPU's units and PCIe traffic (Hopper and later).",
	Tier:    collectors.Fast,
	First:   true,
	Metrics: []*collectors.Metric{GPMActivity, GPMOccupancy, GPMPCIe, GPMFlops, GPMWindow, PCIeBytes},
	Open: func(g *gpu.Device) collectors.Read {
		ids := make([]uint32, len(gpmRows))
		for i, r := range gpmRows {
			ids[i] = r.id
		}
		gpm, flops := g.Meter(-1, ids...), newFlopMeter(g)
		return func(g *gpu.Device, out *collectors.Readings) {
			values, window, ret := gpm.Read(out.Now)
			if ret == nvml.ERROR_NO_DATA {
				return
			}
			if ret != nvml.SUCCESS {
				for _, m := range []*collectors.Metric{GPMActivity, GPMOccupancy, GPMPCIe, GPMFlops, GPMWindow, PCIeBytes} {
					out.Put(m, 0, ret)
				}
				return
			}
			activity := map[string]float64{}
			for i, r := range gpmRows {
				v, ret := r.value(values[i]), nvml.Return(values[i].NvmlReturn)
				if r.label == "" {
					out.Put(r.metric, v, gpu.Absent(ret))
					continue
				}
				out.Put(r.metric, v, gpu.Absent(ret), r.label)
				if r.metric == GPMActivity && ret == nvml.SUCCESS {
					activity[r.label] = v
				}
				if r.metric == GPMPCIe && ret == nvml.SUCCESS {
					out.Add(PCIeBytes, v*window.Seconds(), r.label)
				}
			}
			flops.put(g, out, activity)
			out.Set(GPMWindow, window.Seconds())
		}
	},
})
