package faults

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors"
	"gpusteward/collectors/gpu"
)

// Retired pages: cards before Ampere exclude bad memory this way.
var (
	RetiredPages        = collectors.Gauge("nvgpu_retired_pages", "Pages of memory retired, by cause.", "cause")
	RetiredPagesPending = collectors.Gauge("nvgpu_retired_pages_pending",
		"Whether the retirement of pages is pending until a reset.")
)

var _ = collectors.Register(collectors.Collector{
	Name:    "retired_pages",
	Doc:     "Retired pages of memory (before Ampere).",
	Tier:    collectors.Slow,
	Metrics: []*collectors.Metric{RetiredPages, RetiredPagesPending},
	Read: func(g *gpu.Device, out *collectors.Readings) {
		pages, ret := g.GetRetiredPages(nvml.PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS)
		out.Put(RetiredPages, float64(len(pages)), ret, "single_bit")
		pages, ret = g.GetRetiredPages(nvml.PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR)
		out.Put(RetiredPages, float64(len(pages)), ret, "double_bit")
		pending, ret := g.GetRetiredPagesPendingStatus()
		out.Put(RetiredPagesPending, collectors.On(pending), ret)
	},
})
