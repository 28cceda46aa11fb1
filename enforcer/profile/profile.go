// Package profile tells where the GPU time of a live program goes. A Recorder has the hook time one launch in many,
// between two events of its own, and counts all launches in the trace. A Profile is what it found: it is written as a
// table, for pprof, or as a trace for Chrome and Perfetto.
package profile

import "time"

// A Profile is what a program did on its GPUs for some seconds.
type Profile struct {
	PID      int       `json:"pid"`
	Comm     string    `json:"comm,omitempty"`
	Tenant   string    `json:"tenant"`
	Workload string    `json:"workload,omitempty"`
	Began    time.Time `json:"began"`
	Seconds  float64   `json:"seconds"` // for which the program was observed
	Launches uint64    `json:"launches"`
	Lost     uint64    `json:"lost_events,omitempty"` // that were overwritten before they were read: their launches are missing
	Kernels  []Kernel  `json:"kernels"`               // by Total, the largest first
	Spans    []Span    `json:"spans,omitempty"`       // if asked for: by Start
}

// A Kernel is one, or a graph with all that is in it, on one GPU. Times are GPU time.
type Kernel struct {
	Name     string  `json:"name"` // as the compiler wrote it, or a number for one without a name
	Graph    bool    `json:"graph,omitempty"`
	GPU      string  `json:"gpu"` // UUID
	Launches uint64  `json:"launches"`
	Samples  int     `json:"samples"`       // launches that were timed
	Mean     float64 `json:"mean_seconds"`  // of the samples; 0 without one
	P99      float64 `json:"p99_seconds"`   // of the samples
	Total    float64 `json:"total_seconds"` // Mean times Launches
	Share    float64 `json:"share"`         // of the sum of all kernels' Total
}

// The kinds of spans.
const (
	SpanLaunch     = "launch"     // a kernel or a graph was launched; Seconds is 0
	SpanKernel     = "kernel"     // a launch that was timed: its time on the GPU
	SpanWait       = "wait"       // a thread waited for its GPU
	SpanCopy       = "copy"       // a thread copied, or launched a copy
	SpanCollective = "collective" // a collective was launched
	SpanHeld       = "held"       // a thread waited for its turn on the GPU
	SpanBusy       = "busy"       // the GPU had work of the program
)

// A Span is what a thread or a GPU did for some time.
type Span struct {
	Kind    string  `json:"kind"`
	Name    string  `json:"name"`
	Start   float64 `json:"start_seconds"` // since the beginning of the profile
	Seconds float64 `json:"seconds"`
	Thread  uint16  `json:"thread"`        // place of the thread in the process; of SpanKernel and SpanBusy: 0
	GPU     string  `json:"gpu,omitempty"` // UUID
}
