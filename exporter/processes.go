package exporter

import (
	"cmp"
	"encoding/json"
	"net/http"
	"slices"
	"time"
)

// maxProcesses bounds the processes of an answer: those with the most memory.
const maxProcesses = 512

// A Process is a process on a GPU, as /api/v1/processes lists it.
type Process struct {
	GPU      string     `json:"uuid"` // of the GPU or its MIG device
	PID      int        `json:"pid"`
	Name     string     `json:"name,omitempty"` // the kernel's short name
	User     string     `json:"user,omitempty"`
	Workload string     `json:"workload,omitempty"`
	Type     string     `json:"type"` // compute, graphics, mps or server
	Memory   *uint64    `json:"memory_bytes,omitempty"`
	SM       *float64   `json:"sm_seconds,omitempty"` // since the agent first saw it
	Since    *time.Time `json:"since,omitempty"`      // its start
}

// processes answers with the processes on one GPU, on its MIG devices, or of
// one workload.
func (s *Server) processes(w http.ResponseWriter, r *http.Request) {
	gpu, workload, err := subject(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	out := struct {
		Listed    bool      `json:"listed"` // false: the configuration does not list processes
		All       int       `json:"all"`    // how many there are; processes has no more than 512
		Processes []Process `json:"processes"`
	}{Processes: []Process{}}
	if s.options.Processes != nil {
		out.Processes, out.Listed = s.listed(gpu, workload)
	}
	out.All = len(out.Processes)
	out.Processes = out.Processes[:min(out.All, maxProcesses)]
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_ = json.NewEncoder(w).Encode(out) // the client has left: nobody to tell
}

// listed returns the processes on a GPU or of a workload, those with the most
// memory first.
func (s *Server) listed(gpu, workload string) ([]Process, bool) {
	all, may := s.options.Processes()
	out := []Process{}
	if !may {
		return out, false
	}
	for _, p := range all {
		one := Process{GPU: p.UUID, PID: p.Process.PID, Name: p.Process.Comm, Type: p.Kind}
		if w := p.Process.Workload; w != nil {
			one.Workload = w.Key
		}
		if gpu != "" && s.options.Parent(p.UUID) != gpu || workload != "" && one.Workload != workload {
			continue
		}
		if !p.Unknown {
			one.User, one.Since = p.Process.User, &p.Process.Began
		}
		if p.Known {
			one.Memory = &p.Memory
		}
		if !p.Sampled.IsZero() {
			one.SM = &p.SM
		}
		out = append(out, one)
	}
	slices.SortFunc(out, func(a, b Process) int {
		return cmp.Or(-cmp.Compare(a.memory(), b.memory()), cmp.Compare(a.PID, b.PID), cmp.Compare(a.GPU, b.GPU))
	})
	return out, true
}

// memory returns the process's memory; 0 if it is unknown.
func (p Process) memory() uint64 {
	if p.Memory == nil {
		return 0
	}
	return *p.Memory
}
