package exporter

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"gpusteward/collectors"
	"gpusteward/collectors/workloads"
)

// A Tenant is the broker's report of a tenant on one GPU. Ratios are of the
// GPU's time over the last 10 s.
type Tenant struct {
	Name string `json:"tenant"`
	// index of the GPU, or of the GPU of its MIG device; nil if the driver does
	// not list it
	GPU         *int     `json:"gpu,omitempty"`
	GI          string   `json:"gi,omitempty"` // of a MIG device: its GPU instance
	UUID        string   `json:"uuid"`
	Sessions    int      `json:"sessions"` // of processes under the hook
	Target      *float64 `json:"target_ratio,omitempty"`
	Share       *float64 `json:"share_ratio,omitempty"`
	Guarantee   *float64 `json:"guarantee_ratio,omitempty"`
	Limit       *float64 `json:"limit_ratio,omitempty"` // nil: none
	MemoryUsed  *float64 `json:"memory_used_bytes,omitempty"`
	MemoryLimit *float64 `json:"memory_limit_bytes,omitempty"`
	Backends    []string `json:"backends,omitempty"` // those that hold its quota: hook, mps, kernel
	Level       string   `json:"rung,omitempty"`     // highest level of its workloads, on any GPU
	Shadow      bool     `json:"shadow,omitempty"`   // levels above warn are only reported
}

// tenantFacts read the samples with the label tenant.
var tenantFacts = map[*collectors.Metric]func(t *Tenant, s collectors.Sample){
	workloads.QuotaSessions:    func(t *Tenant, s collectors.Sample) { t.Sessions = int(s.Value) },
	workloads.QuotaGuarantee:   func(t *Tenant, s collectors.Sample) { t.Guarantee = &s.Value },
	workloads.QuotaLimit:       func(t *Tenant, s collectors.Sample) { t.Limit = &s.Value },
	workloads.QuotaMemoryUsed:  func(t *Tenant, s collectors.Sample) { t.MemoryUsed = &s.Value },
	workloads.QuotaMemoryLimit: func(t *Tenant, s collectors.Sample) { t.MemoryLimit = &s.Value },
	workloads.QuotaBackend: func(t *Tenant, s collectors.Sample) {
		if b := label(s, "backend"); b != "none" && !slices.Contains(t.Backends, b) {
			t.Backends = append(t.Backends, b)
			slices.Sort(t.Backends) // hook first
		}
	},
	workloads.QuotaTarget: func(t *Tenant, s collectors.Sample) {
		if label(s, "window") == "10s" {
			t.Target = &s.Value
		}
	},
	workloads.QuotaShare: func(t *Tenant, s collectors.Sample) {
		if label(s, "window") == "10s" {
			t.Share = &s.Value
		}
	},
}

// seenTenants are the tenants seen so far, by UUID and name.
type seenTenants map[[2]string]*Tenant

// of returns the entry of s's tenant and GPU.
func (seen seenTenants) of(s collectors.Sample) *Tenant {
	id := [2]string{label(s, "uuid"), label(s, "tenant")}
	if seen[id] == nil {
		seen[id] = &Tenant{UUID: id[0], Name: id[1]}
		if i, err := strconv.Atoi(label(s, "gpu")); err == nil {
			seen[id].GPU = &i
		}
	}
	return seen[id]
}

// all returns the tenants by GPU, those with the largest share first. It finds
// their MIG devices in gpus.
func (seen seenTenants) all(gpus []GPU) (all []Tenant) {
	for _, t := range seen {
		all = append(all, *t)
	}
	for i := range all {
		all[i].locate(gpus)
	}
	index := func(t Tenant) int {
		if t.GPU == nil {
			return 1 << 30
		}
		return *t.GPU
	}
	slices.SortFunc(all, func(a, b Tenant) int {
		return cmp.Or(cmp.Compare(index(a), index(b)), cmp.Compare(number(a.GI), number(b.GI)),
			cmp.Compare(a.UUID, b.UUID), cmp.Compare(known(b.Share), known(a.Share)), cmp.Compare(a.Name, b.Name))
	})
	return all
}

// locate finds the MIG device of t, if it has one.
func (t *Tenant) locate(gpus []GPU) {
	for _, g := range gpus {
		for _, m := range g.MIG {
			if m.UUID == t.UUID {
				t.GPU, t.GI = &g.Index, m.GI
			}
		}
	}
}

// place returns the GPU as the table of quotas may call it: 0, or 0:1 for a GPU
// instance.
func (t *Tenant) place() string {
	switch {
	case t.GPU == nil:
		return "?"
	case t.GI != "":
		return fmt.Sprintf("%d:%s", *t.GPU, t.GI)
	}
	return strconv.Itoa(*t.GPU)
}

// order returns a number that grows with the GPU and its GPU instance.
func (t *Tenant) order() float64 {
	if t.GPU == nil {
		return math.Inf(1)
	}
	return float64(*t.GPU)*1000 + float64(number(t.GI))
}

// shownTenants is the most lines of tenants in a status.
const shownTenants = 20

// targetWidth is the minimum width with a column for the target.
const targetWidth = 100

// tenants returns a row for each tenant and GPU. It is explained by those of the
// tenant's workloads that are escalated.
func (st style) tenants(all []Tenant, escalated []Escalated) grid {
	wide := len("GPU")
	for _, t := range all {
		wide = max(wide, len(t.place()))
	}
	g := grid{title: "Tenants", empty: "There are no tenants: the enforcer is not enabled.", columns: []column{
		{"TENANT", st.width - 63 - wide}, {"GPU", -wide}, {"SESS", -4}, {"SHARE", -5}, {"QUOTA", -7}, {"GiB", -11},
		{"BACKEND", 11}, {"LEVEL", 18}}}
	for _, t := range all {
		memory := figure("%.1f", known(t.MemoryUsed)/(1<<30))
		if memory.text != "" && t.MemoryLimit != nil {
			memory.text += show("/%.1f", *t.MemoryLimit/(1<<30))
		}
		var more strings.Builder
		for _, l := range escalated {
			if l.Tenant == t.Name {
				level := standing(l.Level, l.Shadow)
				more.WriteString(st.wrapped(level.paint, "  ", level.text+": "+l.Workload+": "+l.found()))
			}
		}
		g.rows = append(g.rows, row{t.UUID + " " + t.Name, []field{words(t.Name),
			{t.place(), -t.order(), ""}, {strconv.Itoa(t.Sessions), float64(t.Sessions), ""}, figure("%.0f%%", 100*known(t.Share)), words(t.quota()),
			memory, words(strings.Join(t.Backends, "+")), standing(t.Level, t.Shadow)},
			more.String()})
	}
	if st.width >= targetWidth {
		g.columns[0].width -= 7
		g.columns = slices.Insert(g.columns, 4, column{"TARGET", -6})
		for i, t := range all {
			g.rows[i].fields = slices.Insert(g.rows[i].fields, 4, figure("%.0f%%", 100*known(t.Target)))
		}
	}
	return g
}

// quota writes the guarantee and the limit, such as 30-50%.
func (t Tenant) quota() string {
	limit := 1.
	if t.Limit != nil {
		limit = *t.Limit
	}
	switch {
	case t.Guarantee == nil && t.Limit == nil:
		return ""
	case t.Guarantee == nil: // there is no enforcer
		return fmt.Sprintf("≤%.0f%%", 100*limit)
	case *t.Guarantee == limit:
		return fmt.Sprintf("%.0f%%", 100*limit)
	}
	return fmt.Sprintf("%.0f-%.0f%%", 100**t.Guarantee, 100*limit)
}
