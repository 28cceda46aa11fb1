package device

import (
	"gpusteward/collectors"
	"gpusteward/collectors/gpu"
)

// Device memory. The states sum to the total; reserved belongs to the driver.
var (
	MemoryBytes = collectors.Gauge("nvgpu_memory_bytes",
		"Bytes of device memory by state; the states sum to the total.", "state")
	MemoryTotal = collectors.Gauge("nvgpu_memory_total_bytes", "Bytes of memory that the GPU has, with what the driver reserves.")
)

var _ = collectors.Register(collectors.Collector{
	Name:    "memory",
	Doc:     "Device memory.",
	Tier:    collectors.Fast,
	Metrics: []*collectors.Metric{MemoryBytes, MemoryTotal},
	Read: func(g *gpu.Device, out *collectors.Readings) {
		m, ret := g.GetMemoryInfo_v2()
		if gpu.Unsupported(ret) { // before driver 510, used includes reserved
			v1, ret := g.GetMemoryInfo()
			out.Put(MemoryBytes, float64(v1.Used), ret, "used")
			out.Put(MemoryBytes, float64(v1.Free), ret, "free")
			out.Put(MemoryTotal, float64(v1.Total), ret)
			return
		}
		out.Put(MemoryBytes, float64(m.Used), ret, "used")
		out.Put(MemoryBytes, float64(m.Free), ret, "free")
		out.Put(MemoryBytes, float64(m.Reserved), ret, "reserved")
		out.Put(MemoryTotal, float64(m.Total), ret)
	},
})

// MemoryOf returns the memory of a GPU as last read, in bytes: the total, the
// free part, and the driver's own (0 if an old driver does not report it). For a
// MIG device it is the memory of its GPU instance, shared by all compute
// instances. ok is false if the GPU does not answer. MemoryOf makes no driver
// call.
func MemoryOf(h *collectors.Host, uuid string) (total, free, reserved uint64, ok bool) {
	if m, is := h.MIG(uuid); is {
		all, ok := h.Reading(m.Parent, MIGMemoryAll, m.GI)
		left, known := h.Reading(m.Parent, MIGMemory, m.GI, "free")
		own, _ := h.Reading(m.Parent, MIGMemory, m.GI, "reserved")
		return uint64(all), uint64(left), uint64(own), ok && known
	}
	all, ok := h.Reading(uuid, MemoryTotal)
	left, known := h.Reading(uuid, MemoryBytes, "free")
	own, _ := h.Reading(uuid, MemoryBytes, "reserved")
	return uint64(all), uint64(left), uint64(own), ok && known
}
