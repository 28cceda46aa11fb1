package links

import (
	"strconv"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors"
	"gpusteward/collectors/gpu"
)

// C2C links connect a GPU with its Grace CPU.
var (
	C2CUp        = collectors.Gauge("nvgpu_c2c_link_up", "Whether the C2C link is up.", "link")
	C2CBandwidth = collectors.Gauge("nvgpu_c2c_link_bandwidth_max_bytes_per_second",
		"Maximum bandwidth of the C2C link.", "link")
	C2CErrors     = collectors.Counter("nvgpu_c2c_errors_total", "Errors of the C2C link between GPU and CPU, by type.", "link", "type")
	C2CPowerState = collectors.Gauge("nvgpu_c2c_power_state",
		"Power state of the C2C link: 0 full power, 1 low power.", "link")
)

var _ = collectors.Register(collectors.Collector{
	Name:    "c2c",
	Doc:     "C2C links to a Grace CPU.",
	Tier:    collectors.Medium,
	Metrics: []*collectors.Metric{C2CUp, C2CBandwidth, C2CErrors, C2CPowerState},
	Read: func(g *gpu.Device, out *collectors.Readings) {
		count := []nvml.FieldValue{{FieldId: nvml.FI_DEV_C2C_LINK_COUNT}}
		g.Fields(count)
		n, ret := gpu.FieldNumber(count[0])
		if ret == nvml.SUCCESS && n == 0 {
			ret = nvml.ERROR_NOT_SUPPORTED
		}
		if ret != nvml.SUCCESS {
			out.Put(C2CUp, 0, gpu.Absent(ret))
			return
		}
		for link := range uint32(n) {
			name := strconv.Itoa(int(link))
			out.Fields(g, []collectors.Field{
				collectors.NewField(nvml.FI_DEV_C2C_LINK_GET_STATUS, link, C2CUp, 1, name),
				collectors.NewField(nvml.FI_DEV_C2C_LINK_GET_MAX_BW, link, C2CBandwidth, 1e6, name),
				collectors.NewField(nvml.FI_DEV_C2C_LINK_ERROR_INTR, link, C2CErrors, 1, name, "crc"),
				collectors.NewField(nvml.FI_DEV_C2C_LINK_ERROR_REPLAY, link, C2CErrors, 1, name, "replay"),
				collectors.NewField(nvml.FI_DEV_C2C_LINK_ERROR_REPLAY_B2B, link, C2CErrors, 1, name, "replay_b2b"),
				collectors.NewField(nvml.FI_DEV_C2C_LINK_POWER_STATE, link, C2CPowerState, 1, name),
			})
		}
	},
})
