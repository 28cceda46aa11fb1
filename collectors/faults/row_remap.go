package faults

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors"
	"gpusteward/collectors/gpu"
)

// Row remapping: cards replace bad rows of memory this way (Ampere and later).
var (
	RemappedRows    = collectors.Gauge("nvgpu_remapped_rows", "Rows of memory replaced by spare ones.", "cause", "state")
	RowRemapPending = collectors.Gauge("nvgpu_row_remap_pending", "Whether row replacements are pending until a reset.")
	RowRemapFailure = collectors.Gauge("nvgpu_row_remap_failure", "Whether a row could not be replaced.")
	RowRemapBanks   = collectors.Gauge("nvgpu_row_remap_banks",
		"Memory banks, by number of spare rows left.", "availability")
)

var remapFields = []collectors.Field{
	collectors.NewField(nvml.FI_DEV_REMAPPED_COR, 0, RemappedRows, 1, "correctable", "active"),
	collectors.NewField(nvml.FI_DEV_REMAPPED_UNC, 0, RemappedRows, 1, "uncorrectable", "active"),
	collectors.NewField(nvml.FI_DEV_REMAPPED_ROWS_COR_INACTIVE, 0, RemappedRows, 1, "correctable", "inactive"),
	collectors.NewField(nvml.FI_DEV_REMAPPED_ROWS_UNC_INACTIVE, 0, RemappedRows, 1, "uncorrectable", "inactive"),
	collectors.NewField(nvml.FI_DEV_REMAPPED_PENDING, 0, RowRemapPending, 1),
	collectors.NewField(nvml.FI_DEV_REMAPPED_FAILURE, 0, RowRemapFailure, 1),
}

var _ = collectors.Register(collectors.Collector{
	Name:    "row_remap",
	Doc:     "Row remapping and the spare rows left.",
	Tier:    collectors.Medium,
	Metrics: []*collectors.Metric{RemappedRows, RowRemapPending, RowRemapFailure, RowRemapBanks},
	Read: func(g *gpu.Device, out *collectors.Readings) {
		out.Fields(g, remapFields)
		h, ret := g.GetRowRemapperHistogram()
		out.Put(RowRemapBanks, float64(h.Max), ret, "max")
		out.Put(RowRemapBanks, float64(h.High), ret, "high")
		out.Put(RowRemapBanks, float64(h.Partial), ret, "partial")
		out.Put(RowRemapBanks, float64(h.Low), ret, "low")
		out.Put(RowRemapBanks, float64(h.None), ret, "none")
	},
})
