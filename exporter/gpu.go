package exporter

import (
	"cmp"
	"slices"

	"gpusteward/collectors"
	"gpusteward/collectors/activity"
	"gpusteward/collectors/device"
	"gpusteward/collectors/faults"
	"gpusteward/collectors/links"
	"gpusteward/collectors/workloads"
)

// A GPU is the state of one GPU.
type GPU struct {
	Index  int    `json:"index"`
	UUID   string `json:"uuid"`
	Name   string `json:"name,omitempty"`
	PCI    string `json:"pci_bus_id,omitempty"`
	Up     bool   `json:"up"`
	Reason string `json:"reason,omitempty"` // why it is not up: the driver call that hangs, or the driver's return code

	Utilization byLabel  `json:"utilization_ratio,omitempty"` // by engine: gpu, memory, encoder, decoder, jpeg, ofa
	Activity    byLabel  `json:"activity_ratio,omitempty"`    // by pipe: sm, tensor, dram, ...
	NoGPM       bool     `json:"no_gpm,omitempty"`            // the GPU does not measure its pipes and links
	Memory      byLabel  `json:"memory_bytes,omitempty"`      // by state: used, free, reserved
	MemoryTotal *float64 `json:"memory_total_bytes,omitempty"`
	Temperature byLabel  `json:"temperature_celsius,omitempty"` // by sensor: gpu, memory
	Margin      *float64 `json:"temperature_margin_celsius,omitempty"`
	Power       *float64 `json:"power_watts,omitempty"`
	PowerLimit  *float64 `json:"power_limit_watts,omitempty"`
	Clocks      byLabel  `json:"clock_hertz,omitempty"`             // by clock: graphics, sm, memory, video
	NVLink      byLabel  `json:"nvlink_bytes_per_second,omitempty"` // by direction: rx, tx
	PCIe        byLabel  `json:"pcie_bytes_per_second,omitempty"`   // by direction, seen from the GPU: rx, tx
	// since the driver was loaded, by severity: corrected, uncorrected
	ECC       byLabel  `json:"ecc_errors,omitempty"`
	Throttled []string `json:"throttled,omitempty"` // why its clocks are held, without gpu_idle
	// the findings of health, the worst first; then XIDs, the newest first
	Faults    []Fault `json:"faults,omitempty"`
	Processes byLabel `json:"processes,omitempty"` // by type: compute, graphics, mps
	MIG       []MIG   `json:"mig_devices,omitempty"`
}

// A MIG is one MIG device. The devices of one GPU instance share its resources.
type MIG struct {
	GI          string   `json:"gi"`
	CI          string   `json:"ci"`
	UUID        string   `json:"uuid"`
	Profile     string   `json:"profile"`
	MemoryUsed  *float64 `json:"memory_used_bytes,omitempty"`
	MemoryTotal *float64 `json:"memory_total_bytes,omitempty"`
	SMActivity  *float64 `json:"sm_activity_ratio,omitempty"`
}

// A seenGPU is a GPU as far as its samples have been read.
type seenGPU struct {
	GPU
	xids      seenXIDs
	instances map[string]*MIG // by GPU instance, the part that its devices share
}

// gpuFacts read a GPU's samples.
var gpuFacts = func() map[*collectors.Metric]func(g *seenGPU, s collectors.Sample) {
	m := map[*collectors.Metric]func(g *seenGPU, s collectors.Sample){
		collectors.Up:          func(g *seenGPU, s collectors.Sample) { g.Up = s.Value == 1 },
		collectors.WorkerStuck: func(g *seenGPU, s collectors.Sample) { g.Reason = label(s, "reason") },
		collectors.Unsupported: func(g *seenGPU, s collectors.Sample) {
			g.NoGPM = g.NoGPM || label(s, "feature") == activity.GPMActivity.Name
		},
		device.Info: func(g *seenGPU, s collectors.Sample) {
			g.Name, g.PCI = label(s, "name"), label(s, "pci_bus_id")
		},
		device.MemoryTotal:       func(g *seenGPU, s collectors.Sample) { g.MemoryTotal = &s.Value },
		device.TemperatureMargin: func(g *seenGPU, s collectors.Sample) { g.Margin = &s.Value },
		device.MIGMemoryAll:      func(g *seenGPU, s collectors.Sample) { g.instance(s).MemoryTotal = &s.Value },
		device.MIGMemory: func(g *seenGPU, s collectors.Sample) {
			if label(s, "state") == "used" {
				g.instance(s).MemoryUsed = &s.Value
			}
		},
		activity.MIGActivity: func(g *seenGPU, s collectors.Sample) {
			if label(s, "pipe") == "sm" {
				g.instance(s).SMActivity = &s.Value
			}
		},
		device.MIGInfo: func(g *seenGPU, s collectors.Sample) {
			g.MIG = append(g.MIG, MIG{GI: label(s, "gi"), CI: label(s, "ci"), UUID: label(s, "mig_uuid"),
				Profile: label(s, "profile")})
		},
		faults.XIDErrors: func(g *seenGPU, s collectors.Sample) { g.xids.of(s).Count += s.Value },
		faults.XIDLast:   func(g *seenGPU, s collectors.Sample) { g.xids.of(s).Last = unixTime(s.Value) },
		device.Power: func(g *seenGPU, s collectors.Sample) {
			if label(s, "scope") == "gpu" && (label(s, "kind") == "average" || g.Power == nil) {
				g.Power = &s.Value
			}
		},
		device.PowerLimit: func(g *seenGPU, s collectors.Sample) {
			if label(s, "limit") == "enforced" {
				g.PowerLimit = &s.Value
			}
		},
		links.GPMNVLink:  func(g *seenGPU, s collectors.Sample) { g.NVLink.add(label(s, "direction"), s.Value) },
		activity.GPMPCIe: func(g *seenGPU, s collectors.Sample) { g.PCIe.set(last(s), s.Value) },
		links.PCIeThroughput: func(g *seenGPU, s collectors.Sample) {
			if _, ok := g.PCIe[last(s)]; !ok { // GPM measures more of the time
				g.PCIe.set(last(s), s.Value)
			}
		},
		faults.ECCErrors: func(g *seenGPU, s collectors.Sample) {
			if label(s, "scope") == "volatile" {
				g.ECC.add(label(s, "severity"), s.Value)
			}
		},
		device.ClockEventActive: func(g *seenGPU, s collectors.Sample) {
			if why := label(s, "reason"); s.Value == 1 && why != "gpu_idle" {
				g.Throttled = append(g.Throttled, why)
			}
		},
	}
	for metric, of := range map[*collectors.Metric]func(g *seenGPU) *byLabel{
		activity.Utilization: func(g *seenGPU) *byLabel { return &g.Utilization },
		activity.GPMActivity: func(g *seenGPU) *byLabel { return &g.Activity },
		device.MemoryBytes:   func(g *seenGPU) *byLabel { return &g.Memory },
		device.Temperature:   func(g *seenGPU) *byLabel { return &g.Temperature },
		device.Clock:         func(g *seenGPU) *byLabel { return &g.Clocks },
		workloads.Processes:  func(g *seenGPU) *byLabel { return &g.Processes },
	} {
		m[metric] = func(g *seenGPU, s collectors.Sample) { of(g).add(last(s), s.Value) }
	}
	return m
}()

// instance returns the entry of s's GPU instance.
func (g *seenGPU) instance(s collectors.Sample) *MIG {
	gi := label(s, "gi")
	if g.instances == nil {
		g.instances = map[string]*MIG{}
	}
	if g.instances[gi] == nil {
		g.instances[gi] = new(MIG)
	}
	return g.instances[gi]
}

// whole returns the GPU once all samples have been read.
func (g *seenGPU) whole() GPU {
	g.Faults = g.xids.all()
	for i := range g.MIG {
		m := &g.MIG[i]
		if shared := g.instances[m.GI]; shared != nil {
			m.MemoryUsed, m.MemoryTotal, m.SMActivity = shared.MemoryUsed, shared.MemoryTotal, shared.SMActivity
		}
	}
	slices.SortFunc(g.MIG, func(a, b MIG) int {
		return cmp.Or(cmp.Compare(number(a.GI), number(b.GI)), cmp.Compare(number(a.CI), number(b.CI)))
	})
	return g.GPU
}
