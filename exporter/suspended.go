package exporter

import (
	"fmt"
	"strings"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/workloads"
)

// Suspended tells that a workload's GPU memory is in host memory.
type Suspended struct {
	Phase   string  `json:"phase"`        // suspending, suspended or resuming
	Seconds float64 `json:"seconds"`      // since the phase began
	Bytes   float64 `json:"memory_bytes"` // of GPU memory that it had
}

func init() {
	for metric, note := range map[*collectors.Metric]func(u *Suspended, s collectors.Sample){
		workloads.SuspendedBytes: func(u *Suspended, s collectors.Sample) { u.Bytes = s.Value },
		workloads.SuspendedSeconds: func(u *Suspended, s collectors.Sample) {
			u.Phase, u.Seconds = label(s, "phase"), s.Value
		},
	} {
		workloadFacts[metric] = func(w *Workload, s collectors.Sample) {
			g := w.on(s)
			if g.Suspended == nil {
				g.Suspended = new(Suspended)
			}
			note(g.Suspended, s)
		}
	}
}

// suspended writes a line for each GPU on which a workload is suspended.
func (st style) suspended(b *strings.Builder, w Workload) {
	for _, g := range w.GPUs {
		if u := g.Suspended; u != nil {
			b.WriteString(st.wrapped(yellow, "  ", fmt.Sprintf("%s on GPU %d for %s: %.1f GiB are in host memory", u.Phase,
				g.Index, age(time.Duration(u.Seconds*float64(time.Second))), u.Bytes/(1<<30))))
		}
	}
}
