package links

import (
	"strconv"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors"
	"gpusteward/collectors/gpu"
)

// Traffic of NVLink and C2C over the GPM window.
var (
	GPMNVLink = collectors.Gauge("nvgpu_gpm_nvlink_bytes_per_second",
		"NVLink traffic over the window.", "direction", "link")
	GPMC2C = collectors.Gauge("nvgpu_gpm_c2c_bytes_per_second",
		"C2C traffic over the window, summed over the links.", "direction")
)

// Metric ids of GPM: the sums of NVLink, then rx and tx of each link.
const (
	gpmNVLinkRX, gpmNVLinkTX = 60, 61
	gpmNVLinkFirst           = 62
	gpmNVLinkLinks           = 18
	gpmC2CTX, gpmC2CRX       = 100, 101
)

var _ = collectors.Register(collectors.Collector{
	Name:    "gpm_links",
	Doc:     "NVLink and C2C traffic (Hopper and later).",
	Tier:    collectors.Fast,
	Metrics: []*collectors.Metric{GPMNVLink, GPMC2C},
	Open: func(g *gpu.Device) collectors.Read {
		ids := []uint32{gpmNVLinkRX, gpmNVLinkTX, gpmC2CRX, gpmC2CTX}
		present, _, linked := links(g)
		for i := range min(present, gpmNVLinkLinks) {
			ids = append(ids, gpmNVLinkFirst+2*uint32(i), gpmNVLinkFirst+2*uint32(i)+1)
		}
		c2c := []nvml.FieldValue{{FieldId: nvml.FI_DEV_C2C_LINK_COUNT}}
		g.Fields(c2c)
		chips, ret := gpu.FieldNumber(c2c[0])
		joined := ret == nvml.SUCCESS && chips > 0
		if linked != nvml.SUCCESS && !joined { // GPM answers 0 for missing links
			return func(_ *gpu.Device, out *collectors.Readings) { out.Put(GPMNVLink, 0, nvml.ERROR_NOT_SUPPORTED) }
		}
		gpm := g.Meter(-1, ids...)
		return func(_ *gpu.Device, out *collectors.Readings) {
			v, _, ret := gpm.Read(out.Now)
			if ret == nvml.ERROR_NO_DATA {
				return
			}
			if ret != nvml.SUCCESS {
				out.Put(GPMNVLink, 0, ret)
				return
			}
			put := func(m *collectors.Metric, v nvml.GpmMetric, labels ...string) {
				out.Put(m, v.Value*(1<<20), gpu.Absent(nvml.Return(v.NvmlReturn)), labels...)
			}
			if linked == nvml.SUCCESS && !out.Config.PerLink {
				put(GPMNVLink, v[0], "rx", allLinks)
				put(GPMNVLink, v[1], "tx", allLinks)
			} else if linked == nvml.SUCCESS {
				for i, each := range v[4:] {
					put(GPMNVLink, each, [...]string{"rx", "tx"}[i%2], strconv.Itoa(i/2))
				}
			}
			if joined {
				put(GPMC2C, v[2], "rx")
				put(GPMC2C, v[3], "tx")
			}
		}
	},
})
