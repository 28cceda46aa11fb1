package collectors

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors/gpu"
)

// Row remapping: cards replace bad rows of memory this way (Ampere and later).
var (
	RemappedRows    = Gauge("nvgpu_remapped_rows", "Rows of memory replaced by spare ones.", "cause", "state")
	RowRemapPending = Gauge("nvgpu_row_remap_pending", "Whether row replacements are pending until a reset.")
	RowRemapFailure = Gauge("nvgpu_row_remap_failure", "Whether a row could not be replaced.")
	RowRemapBanks   = Gauge("nvgpu_row_remap_banks", "Memory banks, by number of spare rows left.", "availability")
)

var remapFields = []Field{
	NewField(nvml.FI_DEV_REMAPPED_COR, 0, RemappedRows, 1, "correctable", "active"),
	NewField(nvml.FI_DEV_REMAPPED_UNC, 0, RemappedRows, 1, "uncorrectable", "active"),
	NewField(nvml.FI_DEV_REMAPPED_ROWS_COR_INACTIVE, 0, RemappedRows, 1, "correctable", "inactive"),
	NewField(nvml.FI_DEV_REMAPPED_ROWS_UNC_INACTIVE, 0, RemappedRows, 1, "uncorrectable", "inactive"),
	NewField(nvml.FI_DEV_REMAPPED_PENDING, 0, RowRemapPending, 1),
	NewField(nvml.FI_DEV_REMAPPED_FAILURE, 0, RowRemapFailure, 1),
}

var _ = Register(Collector{
	Name:    "row_remap",
	Doc:     "Row remapping and the spare rows left.",
	Tier:    Medium,
	Metrics: []*Metric{RemappedRows, RowRemapPending, RowRemapFailure, RowRemapBanks},
	Read: func(g *gpu.Device, out *Readings) {
		out.Fields(g, remapFields)
		h, ret := g.GetRowRemapperHistogram()
		out.Put(RowRemapBanks, float64(h.Max), ret, "max")
		out.Put(RowRemapBanks, float64(h.High), ret, "high")
		out.Put(RowRemapBanks, float64(h.Partial), ret, "partial")
		out.Put(RowRemapBanks, float64(h.Low), ret, "low")
		out.Put(RowRemapBanks, float64(h.None), ret, "none")
	},
})
