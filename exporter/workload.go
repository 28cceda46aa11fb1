package exporter

import (
	"math"
	"slices"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/workloads"
)

// A Workload is the owner of processes on GPUs, or of allocated GPUs.
type Workload struct {
	Name string            `json:"workload"`
	Info map[string]string `json:"info,omitempty"` // the labels of nvgpu_workload_info that are not empty
	// of the tenants to which its processes belong, those with quotas
	Tenants []string      `json:"tenants,omitempty"`
	Since   *time.Time    `json:"since,omitempty"` // start of its oldest process on a GPU
	Steps   *Steps        `json:"steps,omitempty"` // of its programs under the hook
	GPUs    []WorkloadGPU `json:"gpus,omitempty"`  // by index

	totals *totals // nil: it has no program under the hook
}

// A WorkloadGPU is the use of one GPU by a workload.
type WorkloadGPU struct {
	Index       int      `json:"index"`
	UUID        string   `json:"uuid"`
	Allocated   string   `json:"allocated,omitempty"` // which source says that the GPU is allocated to it
	Memory      *float64 `json:"memory_bytes,omitempty"`
	Utilization byLabel  `json:"utilization_ratio,omitempty"` // by engine: sm, memory, encoder, decoder
	SMSeconds   *float64 `json:"sm_seconds,omitempty"`
	Energy      *float64 `json:"energy_joules,omitempty"`
	Processes   byLabel  `json:"processes,omitempty"` // by type: compute, graphics, mps
	Job         *Job     `json:"job,omitempty"`       // of its programs under the hook
	// its memory is in host memory; nil: it is not suspended
	Suspended *Suspended `json:"suspended,omitempty"`
}

// workloadFacts read the samples with the label workload.
var workloadFacts = func() map[*collectors.Metric]func(w *Workload, s collectors.Sample) {
	m := map[*collectors.Metric]func(w *Workload, s collectors.Sample){
		workloads.WorkloadStart: func(w *Workload, s collectors.Sample) { w.Since = unixTime(s.Value) },
		workloads.WorkloadInfo: func(w *Workload, s collectors.Sample) {
			w.Info = map[string]string{}
			for i, name := range s.Metric.Labels {
				if v := s.Labels[i]; v != "" && name != "workload" {
					w.Info[name] = v
				}
			}
		},
	}
	for metric, note := range map[*collectors.Metric]func(g *WorkloadGPU, s collectors.Sample){
		workloads.AllocationInfo: func(g *WorkloadGPU, s collectors.Sample) { g.Allocated = label(s, "source") },
		workloads.WorkloadUse: func(g *WorkloadGPU, s collectors.Sample) {
			g.Utilization.add(label(s, "engine"), s.Value)
		},
		workloads.WorkloadProcesses: func(g *WorkloadGPU, s collectors.Sample) {
			g.Processes.add(label(s, "type"), s.Value)
		},
		workloads.WorkloadSM:     func(g *WorkloadGPU, s collectors.Sample) { g.SMSeconds = &s.Value },
		workloads.WorkloadEnergy: func(g *WorkloadGPU, s collectors.Sample) { g.Energy = &s.Value },
		workloads.WorkloadMemory: func(g *WorkloadGPU, s collectors.Sample) {
			if g.Memory == nil {
				g.Memory = new(float64)
			}
			*g.Memory += s.Value // the sum over GPU instances
		},
	} {
		m[metric] = func(w *Workload, s collectors.Sample) { note(w.on(s), s) }
	}
	return m
}()

// on returns the entry of s's GPU.
func (w *Workload) on(s collectors.Sample) *WorkloadGPU {
	i := slices.IndexFunc(w.GPUs, func(g WorkloadGPU) bool { return g.UUID == s.Labels[1] })
	if i < 0 {
		i = len(w.GPUs)
		w.GPUs = append(w.GPUs, WorkloadGPU{Index: number(s.Labels[0]), UUID: s.Labels[1]})
	}
	return &w.GPUs[i]
}

// job returns what the workload's programs do on the GPU.
func (g *WorkloadGPU) job() *Job {
	if g.Job == nil {
		g.Job = new(Job)
	}
	return g.Job
}

// who returns the workload, with the user of a Slurm job.
func (w Workload) who() string {
	if user := w.Info["slurm_user"]; user != "" {
		return w.Name + " (" + user + ")"
	}
	return w.Name
}

// memory returns the workload's memory on the GPUs where it is known; NaN if it
// is known on none.
func (w Workload) memory() float64 {
	sum, none := 0., true
	for _, g := range w.GPUs {
		if g.Memory != nil {
			sum, none = sum+*g.Memory, false
		}
	}
	if none {
		return math.NaN()
	}
	return sum
}
