package collectors

import "gpusteward/collectors/gpu"

// Device memory. The states sum to the total; reserved belongs to the driver.
var (
	MemoryBytes = Gauge("nvgpu_memory_bytes", "Bytes of device memory by state; the states sum to the total.", "state")
	MemoryTotal = Gauge("nvgpu_memory_total_bytes", "Bytes of device memory.")
)

var _ = Register(Collector{
	Name:    "memory",
	Doc:     "Device memory.",
	Tier:    Fast,
	Metrics: []*Metric{MemoryBytes, MemoryTotal},
	Read: func(g *gpu.Device, out *Readings) {
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
