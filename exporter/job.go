package exporter

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/workloads"
	"gpusteward/internal/wire"
)

// A Job is what a workload's programs under the hook do on one GPU.
type Job struct {
	Stepping bool    `json:"stepping"`               // it repeats a step now
	Step     float64 `json:"step_seconds,omitempty"` // median of the last steps; 0: none yet
	Slow     *Slow   `json:"slow,omitempty"`         // its steps take longer than usual now
	Hang     *Hang   `json:"hang,omitempty"`         // it hangs, and waits for a process on this GPU
	// its other ranks wait for a rank on this GPU in every step
	Straggler *Straggler `json:"straggler,omitempty"`
	Ranks     []Rank     `json:"ranks,omitempty"`   // by communicator and rank
	Kernels   []Kernel   `json:"kernels,omitempty"` // with the most GPU time, if enforcer.kernel_times is set
	// of the job's process on this GPU for which others wait; 0: it has several there,
	// or they may not be listed
	PID int `json:"pid,omitempty"`
}

// Slow says why steps take longer than usual.
type Slow struct {
	Ratio    float64 `json:"ratio"` // part of the steps' time that is beyond usual
	Cause    string  `json:"cause"`
	What     string  `json:"what"` // the cause as a sentence
	Evidence string  `json:"evidence"`
}

// A Straggler names the rank that comes last again and again.
type Straggler struct {
	Ratio float64 `json:"ratio"` // part of a step that the other ranks wait for it
	Rank  string  `json:"rank"`
	Cause string  `json:"cause"`
	What  string  `json:"what"` // the cause as a sentence
}

// A Kernel is one, or a graph, with its GPU time so far.
type Kernel struct {
	Name    string  `json:"name"`
	Seconds float64 `json:"seconds"` // an estimate
}

// A Hang names the process for which a workload waits.
type Hang struct {
	Seconds float64 `json:"seconds"` // since the workload last got on
	Rank    string  `json:"rank,omitempty"`
	Reason  string  `json:"reason"`
	What    string  `json:"what"`            // the reason as a sentence
	Where   string  `json:"where,omitempty"` // where the process stands
}

// jobFacts read the samples of jobs.
var jobFacts = map[*collectors.Metric]func(j *Job, s collectors.Sample){
	workloads.JobStepping: func(j *Job, s collectors.Sample) { j.Stepping = s.Value == 1 },
	workloads.JobMedian:   func(j *Job, s collectors.Sample) { j.Step = s.Value },
	workloads.JobSlowdown: func(j *Job, s collectors.Sample) {
		cause := label(s, "cause")
		j.Slow = &Slow{Ratio: s.Value, Cause: cause, What: wire.SlowCauses[cause], Evidence: label(s, "evidence")}
	},
	workloads.JobStraggler: func(j *Job, s collectors.Sample) {
		cause := label(s, "cause")
		j.Straggler = &Straggler{Ratio: s.Value, Rank: label(s, "rank"), Cause: cause, What: wire.StragglerCauses[cause]}
	},
	workloads.WorkloadKernels: func(j *Job, s collectors.Sample) {
		j.Kernels = append(j.Kernels, Kernel{label(s, "kernel"), s.Value})
	},
	workloads.JobHang: func(j *Job, s collectors.Sample) {
		reason := label(s, "reason")
		j.Hang = &Hang{Seconds: s.Value, Rank: label(s, "rank"), Reason: reason, What: wire.HangReasons[reason],
			Where: label(s, "where")}
	},
}

func init() {
	for metric, note := range jobFacts {
		workloadFacts[metric] = func(w *Workload, s collectors.Sample) { note(w.on(s).job(), s) }
	}
}

// culprits finds the processes for which the other ranks of jobs wait.
func (s *Server) culprits(all []Workload) {
	if s.options.Processes == nil {
		return
	}
	for _, w := range all {
		for _, g := range w.GPUs {
			if g.Job == nil || g.Job.Hang == nil && g.Job.Straggler == nil {
				continue
			}
			if on, _ := s.listed(g.UUID, w.Name); len(on) == 1 {
				g.Job.PID = on[0].PID
			}
		}
	}
}

// job writes what a workload's programs do: how long a step takes on the GPU
// where it takes longest, why it is slow, its stragglers and its hangs.
func (st style) job(b *strings.Builder, w Workload) {
	step := 0.0
	for _, g := range w.GPUs {
		if g.Job != nil && g.Job.Stepping {
			step = max(step, g.Job.Step)
		}
	}
	hangs := slices.ContainsFunc(w.GPUs, func(g WorkloadGPU) bool { return g.Job != nil && g.Job.Hang != nil })
	if step > 0 && !hangs {
		b.WriteString(st.line(cell{text: "  a step takes " + stepTime(step), paint: dim}))
	}
	for _, g := range w.GPUs {
		if g.Job != nil && g.Job.Slow != nil && !hangs {
			b.WriteString(st.wrapped(yellow, "  ", g.Job.Slow.text(onGPU(g.Index))))
		}
		if g.Job != nil && g.Job.Straggler != nil && !hangs {
			b.WriteString(st.wrapped(yellow, "  ", g.Job.Straggler.text(onGPU(g.Index))))
		}
	}
	for _, g := range w.GPUs {
		if g.Job != nil && g.Job.Hang != nil {
			text := g.Job.Hang.text(onGPU(g.Index))
			if g.Job.PID > 0 {
				text += fmt.Sprintf("; its stack: sudo gpusteward stack %d", g.Job.PID)
			}
			b.WriteString(st.wrapped(red, "  ", text))
		}
	}
}

// stepTime writes the seconds that a step takes.
func stepTime(step float64) string {
	if step < 1 {
		return fmt.Sprintf("%.3g ms", 1000*step)
	}
	return fmt.Sprintf("%.3g s", step)
}

// times returns how many times its usual time a step takes.
func (s Slow) times() float64 { return 1 / max(1-s.Ratio, 1e-3) }

// onGPU names a place on the host.
func onGPU(index int) string { return fmt.Sprintf("GPU %d", index) }

func (s Slow) text(place string) string {
	return fmt.Sprintf("slow on %s, a step takes %.3g times its usual time: %s (%s)", place, s.times(), s.What,
		s.Evidence)
}

func (s Straggler) text(place string) string {
	if s.Ratio == 0 { // it was found across hosts
		return fmt.Sprintf("the ranks of its hosts wait for rank %s on %s", s.Rank, place)
	}
	return fmt.Sprintf("the other ranks wait %.0f %% of a step for rank %s on %s: %s", 100*s.Ratio, s.Rank, place, s.What)
}

func (h Hang) text(place string) string {
	process := "a process on " + place
	if h.Rank != "" && h.Rank != "-1" {
		process = fmt.Sprintf("rank %s on %s", h.Rank, place)
	}
	text := fmt.Sprintf("has hung for %s because of %s: %s", age(time.Duration(h.Seconds*float64(time.Second))), process,
		h.What)
	if h.Where != "" {
		text += "; it stands at " + h.Where
	}
	return text
}
