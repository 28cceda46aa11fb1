package exporter

import (
	"cmp"
	"encoding/json"
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/common/version"

	"gpusteward/collectors"
	"gpusteward/collectors/device"
	"gpusteward/collectors/workloads"
)

// A State is the host at one moment, as /api/v1/state returns it. An unknown
// value is left out, never 0; ratios are from 0 to 1.
type State struct {
	Time       time.Time   `json:"time"`
	Version    string      `json:"version"`
	Host       HostState   `json:"host"`
	Faults     []Fault     `json:"faults,omitempty"`  // of the node; the worst first
	Shadow     []Fault     `json:"shadow,omitempty"`  // findings in shadow mode, of the node and its GPUs
	GPUs       []GPU       `json:"gpus"`              // by index
	Workloads  []Workload  `json:"workloads"`         // those with the most memory first
	Tenants    []Tenant    `json:"tenants,omitempty"` // by GPU, those with the largest share first
	Escalation []Escalated `json:"ladder,omitempty"`  // workloads above observe, the highest first
}

// HostState is the state of the host without its GPUs.
type HostState struct {
	Name          string `json:"name"`
	Grafana       string `json:"grafana_url,omitempty"` // with the dashboards of this host
	Fleet         bool   `json:"fleet,omitempty"`       // /fleet shows all hosts
	Note          string `json:"note,omitempty"`        // for example, that the host is simulated
	NotReady      string `json:"not_ready,omitempty"`   // the reason
	DriverUp      bool   `json:"driver_up"`
	DriverVersion string `json:"driver_version,omitempty"`
	CUDAVersion   string `json:"cuda_version,omitempty"`
	Drained       bool   `json:"drained"`
	GPUs          *int   `json:"gpus,omitempty"` // that the driver lists
	GPUsExpected  int    `json:"gpus_expected"`
	BrokerUp      *bool  `json:"broker_up,omitempty"` // only if the enforcer is enabled
}

// hostFacts read the host's samples.
var hostFacts = map[*collectors.Metric]func(h *HostState, s collectors.Sample){
	collectors.DriverUp:        func(h *HostState, s collectors.Sample) { h.DriverUp = s.Value == 1 },
	workloads.BrokerUp:         func(h *HostState, s collectors.Sample) { up := s.Value == 1; h.BrokerUp = &up },
	collectors.Drained:         func(h *HostState, s collectors.Sample) { h.Drained = s.Value == 1 },
	collectors.Devices:         func(h *HostState, s collectors.Sample) { n := int(s.Value); h.GPUs = &n },
	collectors.DevicesExpected: func(h *HostState, s collectors.Sample) { h.GPUsExpected = int(s.Value) },
	device.DriverInfo: func(h *HostState, s collectors.Sample) {
		h.DriverVersion, h.CUDAVersion = label(s, "driver_version"), label(s, "cuda_version")
	},
}

// fill adds the samples to s.
func (s *State) fill(samples []collectors.Sample) {
	gpus, workloads, tenants, escalation := map[[2]string]*seenGPU{}, map[string]*Workload{},
		seenTenants{}, seenEscalated{}
	for _, sample := range samples {
		if note := hostFacts[sample.Metric]; note != nil {
			note(&s.Host, sample)
		} else if note := workloadFacts[sample.Metric]; note != nil {
			name := label(sample, "workload")
			if workloads[name] == nil {
				workloads[name] = &Workload{Name: name}
			}
			note(workloads[name], sample)
		} else if note := tenantFacts[sample.Metric]; note != nil {
			note(tenants.of(sample), sample)
		} else if note := escalationFacts[sample.Metric]; note != nil {
			note(escalation.of(sample), sample)
		} else if note := gpuFacts[sample.Metric]; note != nil {
			id := [2]string(sample.Labels)
			if gpus[id] == nil {
				gpus[id] = &seenGPU{GPU: GPU{Index: number(id[0]), UUID: id[1]}}
			}
			note(gpus[id], sample)
		}
	}
	s.GPUs, s.Workloads = []GPU{}, []Workload{}
	for _, g := range gpus {
		s.GPUs = append(s.GPUs, g.whole())
	}
	s.Tenants = tenants.all(s.GPUs)
	s.Escalation = escalation.above(s.Tenants)
	for id := range escalation {
		if w := workloads[id[1]]; w != nil {
			w.Tenants = append(w.Tenants, id[0])
		}
	}
	for _, w := range workloads {
		slices.Sort(w.Tenants)
		slices.SortFunc(w.GPUs, func(a, b WorkloadGPU) int { return cmp.Compare(a.Index, b.Index) })
		s.Workloads = append(s.Workloads, *w)
	}
	slices.SortFunc(s.GPUs, func(a, b GPU) int {
		return cmp.Or(cmp.Compare(a.Index, b.Index), cmp.Compare(a.UUID, b.UUID))
	})
	slices.SortFunc(s.Workloads, func(a, b Workload) int {
		return cmp.Or(cmp.Compare(b.memory(), a.memory()), cmp.Compare(a.Name, b.Name))
	})
}

// find adds the findings of health to s, the worst first.
func (s *State) find(faults []Fault) {
	for _, f := range slices.Backward(faults) {
		if f.Shadow {
			s.Shadow = slices.Insert(s.Shadow, 0, f)
			continue
		}
		at := slices.IndexFunc(s.GPUs, func(g GPU) bool { return g.UUID == f.UUID })
		if at < 0 || f.UUID == "" {
			f.Command = f.next(-1)
			s.Faults = slices.Insert(s.Faults, 0, f)
			continue
		}
		f.Command = f.next(s.GPUs[at].Index)
		s.GPUs[at].Faults = slices.Insert(s.GPUs[at].Faults, 0, f)
	}
}

// now returns the current state.
func (s *Server) now() State {
	state := State{Time: time.Now().UTC(), Version: version.Version,
		Host: HostState{Name: s.options.Hostname, Grafana: s.options.Grafana(), Fleet: s.options.Fleet().URL != "",
			Note: s.options.Note}}
	if err := s.options.Ready(); err != nil {
		state.Host.NotReady = err.Error()
	}
	state.fill(s.options.Samples())
	s.boards.remind(state.GPUs)
	s.pace.tell(&state)
	if s.options.Faults != nil {
		state.find(s.options.Faults())
	}
	s.culprits(state.Workloads)
	return state
}

// state answers with the current state.
func (s *Server) state(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	if err := json.NewEncoder(w).Encode(s.now()); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

// byLabel has values by the value of a label.
type byLabel map[string]float64

func (b *byLabel) add(key string, v float64) {
	b.set(key, (*b)[key]+v)
}

func (b *byLabel) set(key string, v float64) {
	if *b == nil {
		*b = byLabel{}
	}
	(*b)[key] = v
}

// of returns the value of key; NaN if there is none.
func (b byLabel) of(key string) float64 {
	if v, ok := b[key]; ok {
		return v
	}
	return math.NaN()
}

// total returns the sum of the values.
func (b byLabel) total() (sum float64) {
	for v := range maps.Values(b) {
		sum += v
	}
	return sum
}

// each returns what b has more than before, for each of n; nil for none.
func (b byLabel) each(before byLabel, n float64) (more byLabel) {
	if n > 0 {
		for key, v := range b {
			more.set(key, max(0, v-before[key])/n)
		}
	}
	return more
}

// last returns the value of s's last label.
func last(s collectors.Sample) string { return s.Labels[len(s.Labels)-1] }

// number returns text as a number; 0 if it is none.
func number(text string) int {
	n, _ := strconv.Atoi(text)
	return n
}

// unixTime converts seconds since 1970 to a time, to the millisecond.
func unixTime(seconds float64) *time.Time {
	t := time.UnixMilli(int64(seconds * 1000)).UTC()
	return &t
}
