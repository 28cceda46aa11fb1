package activity

import (
	"slices"
	"strconv"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors"
	"gpusteward/collectors/gpu"
)

// GPM of each MIG GPU instance (Hopper and later).
var (
	MIGActivity = collectors.Gauge("nvgpu_mig_activity_ratio",
		"Share of the window in which the GPU instance's pipe was active.", "gi", "pipe")
	MIGOccupancy = collectors.Gauge("nvgpu_mig_sm_occupancy_ratio",
		"Warps resident on the GPU instance's SMs, as a ratio of the maximum.", "gi")
	MIGPCIe = collectors.Gauge("nvgpu_mig_pcie_bytes_per_second",
		"PCIe traffic of the GPU instance over the window.", "gi", "direction")
)

var _ = collectors.Register(collectors.Collector{
	Name:    "mig_gpm",
	Doc:     "Activity of each MIG GPU instance (Hopper and later).",
	Tier:    collectors.Fast,
	Metrics: []*collectors.Metric{MIGActivity, MIGOccupancy, MIGPCIe},
	Open: func(g *gpu.Device) collectors.Read {
		ids := make([]uint32, len(gpmRows))
		for i, r := range gpmRows {
			ids[i] = r.id
		}
		metrics := map[*collectors.Metric]*collectors.Metric{GPMActivity: MIGActivity, GPMOccupancy: MIGOccupancy,
			GPMPCIe: MIGPCIe}
		var geometry []string // the MIG devices behind instances
		instances := map[int]*gpu.Meter{}
		return func(g *gpu.Device, out *collectors.Readings) {
			var now []string
			for _, m := range g.Instances() {
				now = append(now, m.UUID)
			}
			if !slices.Equal(now, geometry) { // an id may now mean another instance
				for _, i := range instances {
					i.Close()
				}
				clear(instances)
				geometry = now
			}
			for _, m := range g.Instances() {
				if instances[m.GI] == nil {
					instances[m.GI] = g.Meter(m.GI, ids...)
				}
			}
			for gi, instance := range instances {
				values, _, ret := instance.Read(out.Now)
				if ret == nvml.ERROR_NO_DATA {
					continue
				}
				if ret != nvml.SUCCESS {
					out.Put(MIGActivity, 0, ret)
					continue
				}
				for i, r := range gpmRows {
					labels := []string{strconv.Itoa(gi), r.label}
					if r.label == "" {
						labels = labels[:1]
					}
					out.Put(metrics[r.metric], r.value(values[i]), gpu.Absent(nvml.Return(values[i].NvmlReturn)), labels...)
				}
			}
		}
	},
})
