package activity

import (
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors"
	"gpusteward/collectors/gpu"
)

// GPMMedia is a family of its own, so that sums over the SMs' pipes exclude
// video engines.
var GPMMedia = collectors.Gauge("nvgpu_gpm_media_activity_ratio",
	"Share of the window in which the video engine was active.", "engine")

var _ = collectors.Register(collectors.Collector{
	Name:    "gpm_media",
	Doc:     "Activity of each video, JPEG and optical flow engine (Hopper and later).",
	Tier:    collectors.Fast,
	OptIn:   true,
	Metrics: []*collectors.Metric{GPMMedia},
	Open: func(g *gpu.Device) collectors.Read {
		var ids []uint32
		var names []string
		for _, e := range []struct {
			name     string
			first, n uint32
		}{{"nvdec", 30, 8}, {"nvjpg", 40, 8}, {"nvofa", 50, 2}} {
			for i := range e.n {
				ids, names = append(ids, e.first+i), append(names, fmt.Sprintf("%s%d", e.name, i))
			}
		}
		gpm := g.Meter(-1, ids...)
		return func(_ *gpu.Device, out *collectors.Readings) {
			values, _, ret := gpm.Read(out.Now)
			if ret == nvml.ERROR_NO_DATA {
				return
			}
			if ret != nvml.SUCCESS {
				out.Put(GPMMedia, 0, ret)
				return
			}
			for i, v := range values {
				out.Put(GPMMedia, min(1, v.Value/100), gpu.Absent(nvml.Return(v.NvmlReturn)), names[i])
			}
		}
	},
})
