package device

import (
	"strconv"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors"
	"gpusteward/collectors/gpu"
)

// MIG: gpu and uuid belong to the parent, gi names the GPU instance. Resources
// shared by the compute instances of a GPU instance appear once.
var (
	MIGInfo = collectors.Gauge("nvgpu_mig_info",
		"Identity of a MIG device, always 1.",
		"mig_uuid", "gi", "ci", "profile", "sm_count", "slices", "placement_start")
	MIGMemory = collectors.Gauge("nvgpu_mig_memory_bytes",
		"Bytes of memory of the GPU instance by state; the states sum to the total.", "gi", "state")
	MIGMemoryAll = collectors.Gauge("nvgpu_mig_memory_total_bytes", "Bytes of memory of the GPU instance.", "gi")
	MIGBAR1      = collectors.Gauge("nvgpu_mig_bar1_memory_bytes",
		"Bytes of BAR1 address space of the GPU instance, by state.", "gi", "state")
	MIGECC = collectors.Counter("nvgpu_mig_ecc_errors_total",
		"ECC errors of the GPU instance since the driver was loaded.", "gi", "severity")
	MIGDevices    = collectors.Gauge("nvgpu_mig_devices", "MIG devices into which the GPU is divided now.")
	MIGDevicesMax = collectors.Gauge("nvgpu_mig_devices_max", "Maximum number of MIG devices on the GPU.")
)

var _ = collectors.Register(collectors.Collector{
	Name:    "mig",
	Doc:     "MIG devices, their memory and errors.",
	Tier:    collectors.Medium,
	Metrics: []*collectors.Metric{MIGInfo, MIGMemory, MIGMemoryAll, MIGBAR1, MIGECC, MIGDevices, MIGDevicesMax},
	Read: func(g *gpu.Device, out *collectors.Readings) {
		ret := g.RefreshInstances()
		most, mret := g.GetMaxMigDeviceCount()
		if ret == nvml.SUCCESS && most == 0 {
			ret, mret = nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_NOT_SUPPORTED
		}
		out.Put(MIGDevices, float64(len(g.Instances())), ret)
		out.Put(MIGDevicesMax, float64(most), mret)
		seen := map[int]bool{}
		for _, m := range g.Instances() {
			gi := strconv.Itoa(m.GI)
			putMIG(g, m, out)
			if seen[m.GI] {
				continue
			}
			seen[m.GI] = true
			memory, ret := m.GetMemoryInfo_v2()
			out.Put(MIGMemory, float64(memory.Used), ret, gi, "used")
			out.Put(MIGMemory, float64(memory.Free), ret, gi, "free")
			out.Put(MIGMemory, float64(memory.Reserved), ret, gi, "reserved")
			out.Put(MIGMemoryAll, float64(memory.Total), ret, gi)
			bar1, ret := m.GetBAR1MemoryInfo()
			out.Put(MIGBAR1, float64(bar1.Bar1Used), ret, gi, "used")
			out.Put(MIGBAR1, float64(bar1.Bar1Free), ret, gi, "free")
			n, ret := m.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_CORRECTED, nvml.VOLATILE_ECC)
			out.Put(MIGECC, float64(n), ret, gi, "corrected")
			n, ret = m.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC)
			out.Put(MIGECC, float64(n), ret, gi, "uncorrected")
		}
	},
})

// putMIG puts the identity of a MIG device, and tells it to the host. Its name
// ends with its profile.
func putMIG(g *gpu.Device, m *gpu.MIG, out *collectors.Readings) {
	name, ret := m.GetName()
	_, profile, _ := strings.Cut(name, "MIG ")
	a, aret := m.GetAttributes()
	start := ""
	if instance, ret := g.Instance(m.GI); ret == nvml.SUCCESS {
		placement, ret := instance.GetInfo()
		start = gpu.Int(int(placement.Placement.Start), ret)
	}
	if ret == nvml.SUCCESS {
		out.MIG = append(out.MIG, collectors.MIGDevice{UUID: m.UUID, Index: strconv.Itoa(g.Index), Parent: g.UUID,
			GI: strconv.Itoa(m.GI)})
	}
	out.Put(MIGInfo, 1, ret, m.UUID, strconv.Itoa(m.GI), strconv.Itoa(m.CI), profile,
		gpu.Int(int(a.MultiprocessorCount), aret), gpu.Int(int(a.GpuInstanceSliceCount), aret), start)
}
