package health

import (
	"cmp"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"

	"gpusteward/collectors"
	"gpusteward/health/derived"
	"gpusteward/health/incident"
)

// A Verdict is the condition of a node at one moment, in one word and with
// reasons.
type Verdict struct {
	Node     string         `json:"node"`
	Time     time.Time      `json:"time"`
	Status   incident.State `json:"status"` // of the node: the worst of its own and its GPUs'
	Reason   string         `json:"reason,omitempty"`
	GPUs     []Health       `json:"gpus"`
	Findings []Finding      `json:"findings"`           // the worst first
	Disabled []string       `json:"disabled,omitempty"` // checks that are not made
}

// Health is the condition of a GPU.
type Health struct {
	GPU    string         `json:"gpu"`
	UUID   string         `json:"uuid"`
	Status incident.State `json:"status"`
	Reason string         `json:"reason,omitempty"` // why it does not answer
}

// noData is the reason for an unknown node if there is no better one.
const noData = "a part of it has no data"

// verdict returns the judgement after an evaluation. A GPU without data is
// unknown, not well.
func (m *Monitor) verdict(s *derived.Snapshot, now time.Time) Verdict {
	v := Verdict{Node: m.Node, Time: now, Findings: m.engine.Findings(), Disabled: m.engine.disabled(), GPUs: []Health{}}
	if v.Findings == nil {
		v.Findings = []Finding{}
	}
	down := map[incident.Entity]string{}
	for _, stuck := range s.Of(collectors.WorkerStuck) {
		reason := stuck.Labels[2]
		if strings.HasPrefix(reason, "nvml") {
			down[incident.EntityOf(stuck, nil)] = "hangs in " + reason
		} else {
			down[incident.EntityOf(stuck, nil)] = "does not answer: " + strings.ReplaceAll(reason, "_", " ")
		}
	}
	away := map[incident.Entity]bool{}
	for _, sample := range s.Of(Away) {
		away[incident.EntityOf(sample, nil)] = sample.Value == 1
	}
	for _, up := range s.Of(collectors.Up) {
		gpu := incident.EntityOf(up, nil)
		its := func(f Finding) bool { return f.Entity.Parent() == gpu }
		state := worst(v.Findings, its).State()
		if away[gpu] && state < incident.Degraded {
			v.GPUs = append(v.GPUs, Health{gpu.GPU, gpu.UUID, incident.OK, "is away: a virtual machine has it"})
			continue
		}
		if state < incident.Degraded &&
			(up.Value == 0 ||
				slices.ContainsFunc(v.Findings,
					func(f Finding) bool { return its(f) && f.State == incident.Unknown })) {
			state = incident.Unknown
		}
		v.GPUs = append(v.GPUs, Health{gpu.GPU, gpu.UUID, state, down[gpu]})
	}
	if len(v.GPUs) == 0 && m.Ready != nil {
		if err := m.Ready(); err != nil {
			v.Reason = err.Error()
		}
	}
	v.sum()
	return v
}

// ofTenant reports whether f is a fault of a workload or a tenant.
func (f Finding) ofTenant() bool { return f.Entity.Workload != "" || f.Entity.Tenant != "" }

// worst is the severity of the worst of some findings. Checks in shadow mode do
// not count. Neither do faults of a workload or a tenant: they do not affect
// the GPU, and taking the node out of service for them would punish the others.
func worst(findings []Finding, some func(Finding) bool) (s incident.Severity) {
	for _, f := range findings {
		if !f.Shadow && !f.ofTenant() && some(f) {
			s = max(s, f.Severity)
		}
	}
	return s
}

// sum sets the status of the node to that of its worst part. An unknown part is
// not well; the reason names it.
func (v *Verdict) sum() {
	why := ""
	for _, g := range v.GPUs {
		if g.Status == incident.Unknown && why == "" {
			why = noData
			if g.Reason != "" {
				why = "GPU " + g.GPU + " " + g.Reason
			}
		}
	}
	switch {
	case len(v.GPUs) == 0:
		why = cmp.Or(v.Reason, "no GPU is known")
	case slices.ContainsFunc(v.Findings, func(f Finding) bool {
		return f.State == incident.Unknown &&
			f.Entity.Parent() == incident.Entity{}
	}):
		why = cmp.Or(why, noData)
	}
	v.Status, v.Reason = worst(v.Findings, func(Finding) bool { return true }).State(), ""
	if v.Status < incident.Degraded && why != "" {
		v.Status, v.Reason = incident.Unknown, why
	}
}

// Verdict returns the last judgement.
func (m *Monitor) Verdict() Verdict { return m.view.Load().verdict }

// ServeHTTP answers with the last judgement, as JSON.
func (m *Monitor) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "\t")
	_ = encoder.Encode(m.Verdict()) // the client may have left
}
