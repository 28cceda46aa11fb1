package health

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"gpusteward/collectors"
	"gpusteward/health/derived"
	"gpusteward/health/incident"
)

// Metrics of incidents.
var (
	RecentIncidents = collectors.Gauge("nvgpu_recent_incidents",
		"Incidents within the window of the check or level that counts them, also from before a restart of the agent.",
		"count", "workload", "device")
	IncidentsTotal = collectors.Counter("nvgpu_incidents_total",
		"Incidents since the agent started, by the class of the fault: one for each fault, whatever the number of "+
			"its messages.", "class")
)

// Bounds of the memory of incidents.
const (
	longestWindow = 30 * 24 * time.Hour
	mostIncidents = 4096
)

// An Incidents says which incidents a signal counts.
type Incidents struct {
	Name   string // of the count: mostly the check's
	Window time.Duration
	Match  func(e *incident.Event) bool
	// the label that belongs to the entity beside the GPU: workload or device
	Per string
	// they count for the node, not for their GPUs
	Node bool
	// counts the matching incidents, given those of each other GPU; nil: their
	// number
	Count func(events []*incident.Event, elsewhere [][]*incident.Event) float64
}

// Signal returns the number of incidents as a signal. It is a gauge of the
// host, also for Prometheus: Prometheus does not count a first occurrence, and
// the host remembers incidents over restarts.
func (i Incidents) Signal() *Signal {
	g := &Signal{node: i.Node, uses: []*collectors.Metric{RecentIncidents}, window: i.Window}
	if i.Per != "" {
		g.by = []string{i.Per}
	}
	src := from(RecentIncidents, []string{"count", i.Name})
	src.by = g.by
	g.query, g.words = src.collapsed("max", src.selector()), fmt.Sprintf("the incidents %s in %s", i.Name,
		promDuration(i.Window))
	g.example = func(e incident.Entity, before, after float64) []Example {
		if i.Node {
			e = incident.Entity{}
		}
		return src.gauge(e, before, after)
	}
	g.counts = &i
	counts = append(counts, &i)
	g.read = func(_ *memory, s *derived.Snapshot, put func(incident.Entity, float64)) {
		gather(src, s, func(a, b float64) float64 { return max(a, b) }, put)
	}
	return g
}

// counts are the incidents that the checks count.
var counts []*Incidents

// count adds the incidents to s; a GPU, or the node, without any has 0.
func (m *memory) count(s *derived.Snapshot) {
	var all []collectors.Sample
	for _, i := range counts {
		found := map[incident.Entity][]*incident.Event{}
		switch {
		case i.Node:
			found[incident.Entity{}] = nil
		case i.Per == "":
			for _, up := range s.Of(collectors.Up) {
				found[incident.EntityOf(up, nil)] = nil
			}
		}
		for n := range m.incidents {
			e := &m.incidents[n]
			if age := m.now.Sub(e.First); age > i.Window || !i.Match(e) {
				continue
			}
			entity, ok := i.entity(e)
			if !ok {
				continue
			}
			if e.First.After(m.cleared[clearing{i.Name, entity}]) {
				found[entity] = append(found[entity], e)
			}
		}
		for e, events := range found {
			n := float64(len(events))
			if i.Count != nil {
				var elsewhere [][]*incident.Event
				for other, events := range found {
					if other != e {
						elsewhere = append(elsewhere, events)
					}
				}
				n = i.Count(events, elsewhere)
			}
			all = append(all, collectors.Sample{Metric: RecentIncidents, Labels: []string{e.GPU, e.UUID, i.Name,
				e.Workload, e.Device}, Value: n})
		}
	}
	s.Add(all...)
}

// entity returns the entity that e counts for; false if there is none.
func (i Incidents) entity(e *incident.Event) (incident.Entity, bool) {
	entity := e.Entity.Parent()
	switch {
	case i.Node:
		entity = incident.Entity{}
	case i.Per == "workload":
		entity.Workload = e.Workload
		return entity, e.Workload != ""
	case i.Per == "device":
		entity.Device = e.Entity.Device
	}
	return entity, true
}

// knows reports whether the ID belongs to a known incident.
func (m *memory) knows(id string) bool {
	return slices.ContainsFunc(m.incidents, func(e incident.Event) bool { return e.ID == id })
}

// remember takes a new incident, or news of a known one.
func (m *memory) remember(e incident.Event) {
	if e.Kind != incident.KindIncident {
		return
	}
	for i := len(m.incidents) - 1; i >= 0; i-- {
		if m.incidents[i].ID == e.ID {
			m.incidents[i] = e
			return
		}
	}
	m.incidents = append(m.incidents, e)
}

// tidy drops incidents that are too old to matter, and those beyond the bound.
// It takes them from the owner and GPU with the most, so that nobody's faults
// push out another's.
func (m *memory) tidy() {
	old := 0
	for old < len(m.incidents) && m.now.Sub(m.incidents[old].First) > longestWindow {
		old++
	}
	m.incidents = m.incidents[old:]
	if excess := len(m.incidents) - mostIncidents; excess > 0 {
		m.thin(excess)
	}
	maps.DeleteFunc(m.cleared, func(_ clearing, t time.Time) bool { return m.now.Sub(t) > longestWindow })
}

// A recurring fault belongs to one owner on one GPU.
type recurring struct {
	incident.Entity
	what  string
	code  int
	owner string
}

func recurringOf(e *incident.Event) recurring {
	return recurring{e.Entity.Parent(), e.What, e.Code, e.Owner}
}

// thin drops n incidents, each the oldest of the most frequent fault.
func (m *memory) thin(excess int) {
	counts, often := map[recurring]*int{}, make([]*int, len(m.incidents))
	for i := range m.incidents {
		f := recurringOf(&m.incidents[i])
		if counts[f] == nil {
			counts[f] = new(int)
		}
		*counts[f]++
		often[i] = counts[f]
	}
	for range excess {
		most := 0
		for i, n := range often {
			if *n > *often[most] {
				most = i
			}
		}
		*often[most]--
		often, m.incidents = slices.Delete(often, most, most+1), slices.Delete(m.incidents, most, most+1)
	}
}
