package faults

import (
	"gpusteward/collectors"
	"gpusteward/collectors/gpu"
)

// Repairs that wait for a reset, and unrepairable memory.
var (
	RepairPending = collectors.Gauge("nvgpu_memory_repair_pending",
		"Whether a repair is pending until a reset.", "kind")
	MemoryUnrepairable = collectors.Gauge("nvgpu_memory_unrepairable", "Whether the card has unrepairable memory.")
)

var _ = collectors.Register(collectors.Collector{
	Name:    "repair",
	Doc:     "Pending repairs and unrepairable memory.",
	Tier:    collectors.Slow,
	Metrics: []*collectors.Metric{RepairPending, MemoryUnrepairable},
	Read: func(g *gpu.Device, out *collectors.Readings) {
		r, ret := g.GetRepairStatus()
		out.Put(RepairPending, float64(r.BChannelRepairPending), ret, "channel")
		out.Put(RepairPending, float64(r.BTpcRepairPending), ret, "tpc")
		u, ret := g.GetUnrepairableMemoryFlag_v1()
		out.Put(MemoryUnrepairable, float64(u.BUnrepairableMemory), ret)
	},
})
