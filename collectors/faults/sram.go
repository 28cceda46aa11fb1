package faults

import (
	"gpusteward/collectors"
	"gpusteward/collectors/gpu"
)

// SRAM errors in detail. The threshold is NVIDIA's criterion for replacement.
var (
	SRAMUncorrected = collectors.Counter("nvgpu_sram_ecc_uncorrected_total",
		"Uncorrectable SRAM errors over the board's life, by unit.", "bucket")
	SRAMUncorrectedByKind = collectors.Counter("nvgpu_sram_ecc_uncorrected_by_kind_total",
		"Uncorrectable SRAM errors by kind; scope aggregate includes volatile.", "kind", "scope")
	SRAMThreshold = collectors.Gauge("nvgpu_sram_ecc_threshold_exceeded",
		"Whether uncorrectable SRAM errors exceeded the limit for replacement.")
)

var _ = collectors.Register(collectors.Collector{
	Name:    "sram",
	Doc:     "Uncorrectable SRAM errors by unit and kind.",
	Tier:    collectors.Medium,
	Metrics: []*collectors.Metric{SRAMUncorrected, SRAMUncorrectedByKind, SRAMThreshold},
	Read: func(g *gpu.Device, out *collectors.Readings) {
		s, ret := g.GetSramEccErrorStatus()
		out.Put(SRAMUncorrected, float64(s.AggregateUncBucketL2), ret, "l2")
		out.Put(SRAMUncorrected, float64(s.AggregateUncBucketSm), ret, "sm")
		out.Put(SRAMUncorrected, float64(s.AggregateUncBucketPcie), ret, "pcie")
		out.Put(SRAMUncorrected, float64(s.AggregateUncBucketMcu), ret, "mcu")
		out.Put(SRAMUncorrected, float64(s.AggregateUncBucketOther), ret, "other")
		out.Put(SRAMUncorrectedByKind, float64(s.VolatileUncParity), ret, "parity", "volatile")
		out.Put(SRAMUncorrectedByKind, float64(s.VolatileUncSecDed), ret, "secded", "volatile")
		out.Put(SRAMUncorrectedByKind, float64(s.AggregateUncParity), ret, "parity", "aggregate")
		out.Put(SRAMUncorrectedByKind, float64(s.AggregateUncSecDed), ret, "secded", "aggregate")
		out.Put(SRAMThreshold, collectors.Bool(s.BThresholdExceeded != 0), ret)
	},
})
