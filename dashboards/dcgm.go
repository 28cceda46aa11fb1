package dashboards

import (
	"fmt"
	"strings"

	"gpusteward/collectors"
	"gpusteward/collectors/activity"
	"gpusteward/collectors/links"
)

// A profiled metric is one of dcgm-exporter's that measures the same as one of ours, which GPUs
// before Hopper lack. deploy/prometheus/dcgm_exporter.yml gives it the labels of the agent's.
type profiled struct {
	of           *collectors.Metric
	label, value string // the label with a value in ours that has a metric of its own in dcgm-exporter
	dcgm         *collectors.Metric
}

// profile lists dcgm-exporter's metrics of profiling.
var profile = []profiled{
	{activity.GPMActivity, "pipe", "graphics", dcgm("GR_ENGINE_ACTIVE")},
	{activity.GPMActivity, "pipe", "sm", dcgm("SM_ACTIVE")},
	{activity.GPMActivity, "pipe", "tensor", dcgm("PIPE_TENSOR_ACTIVE")},
	{activity.GPMActivity, "pipe", "dram", dcgm("DRAM_ACTIVE")},
	{activity.GPMActivity, "pipe", "fp64", dcgm("PIPE_FP64_ACTIVE")},
	{activity.GPMActivity, "pipe", "fp32", dcgm("PIPE_FP32_ACTIVE")},
	{activity.GPMActivity, "pipe", "fp16", dcgm("PIPE_FP16_ACTIVE")},
	{activity.GPMOccupancy, "", "", dcgm("SM_OCCUPANCY")},
	{activity.GPMPCIe, "direction", "tx", dcgm("PCIE_TX_BYTES")},
	{activity.GPMPCIe, "direction", "rx", dcgm("PCIE_RX_BYTES")},
	{links.GPMNVLink, "direction", "tx", dcgm("NVLINK_TX_BYTES")},
	{links.GPMNVLink, "direction", "rx", dcgm("NVLINK_RX_BYTES")},
}

func dcgm(field string) *collectors.Metric {
	return &collectors.Metric{Name: "DCGM_FI_PROF_" + field, Labels: []string{"gpu", "uuid"}}
}

// dcgmMetrics returns the metrics of profile.
func dcgmMetrics() (all []*collectors.Metric) {
	for _, p := range profile {
		all = append(all, p.dcgm)
	}
	return all
}

// orDCGM aggregates a metric of GPM, with the value of a label or with all values. GPUs that lack
// it have dcgm-exporter's metric in its place.
func (s scope) orDCGM(m *collectors.Metric, value string, aggregate func(expr string) string,
	matchers ...string) string {
	var others []string
	for _, p := range profile {
		if p.of != m || value != "" && p.value != value {
			continue
		}
		if value == "" && p.label != "" {
			others = append(others, fmt.Sprintf("label_replace(%s, %q, %q, \"\", \"\")", s.of(p.dcgm), p.label, p.value))
			continue
		}
		others = append(others, s.of(p.dcgm))
		if value != "" {
			matchers = append(matchers, fmt.Sprintf("%s=%q", p.label, p.value))
		}
	}
	return aggregate(s.of(m, matchers...)) + " or " + aggregate(strings.Join(others, " or "))
}

// per returns an aggregation by labels, or of all without any.
func per(operator, labels string) func(expr string) string {
	if labels == "" {
		return func(expr string) string { return operator + "(" + expr + ")" }
	}
	return func(expr string) string { return by(operator, labels, expr) }
}
