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
		"Incidents within the window of the check or level that counts them, also from before a restart of the agent. "+
			"One that only a reset ends counts until a reset, a reboot or an acknowledgement, if a check judges it.",
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
	// the node has those of all its GPUs beside its own, but none beyond the window:
	// for a signal that a message without a GPU is compared with
	Whole bool
	// those that only a reset ends count beyond the window, until there was one
	Holds bool
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
		PromDuration(i.Window))
	g.example = func(e incident.Entity, before, after float64) []Example {
		if i.Node {
			e = incident.Entity{}
		}
		return src.gauge(e, before, after)
	}
	g.counts, g.merges = &i, &src
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
			if i.Whole {
				found[incident.Entity{}] = nil
			}
			for _, up := range s.Of(collectors.Up) {
				found[incident.EntityOf(up, nil)] = nil
			}
		}
		for n := range m.incidents {
			e := &m.incidents[n]
			if gpu := e.Entity.Parent(); i.Whole && found[gpu] == nil { // it may be lost, and still have other incidents
				found[gpu] = nil
			}
			holds, recent := i.Holds && m.holds(e), m.now.Sub(e.First) <= i.Window
			if !holds && !recent || !i.Match(e) {
				continue
			}
			entity, ok := i.entity(e)
			if ok && e.First.After(m.cleared[clearing{i.Name, entity}]) {
				found[entity] = append(found[entity], e)
			}
			if node := (incident.Entity{}); i.Whole && recent && entity != node {
				found[node] = append(found[node], e)
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

// holds reports whether only a reset ends e, and none was seen since.
func (m *memory) holds(e *incident.Event) bool {
	return e.NeedsReset && e.First.After(m.resets.last(e.Entity))
}

// hold finds the counts that have an incident that holds.
func (m *memory) hold() {
	clear(m.held)
	for _, i := range counts {
		for n := range m.incidents {
			e := &m.incidents[n]
			if !i.Holds || !m.holds(e) || !i.Match(e) {
				continue
			}
			entity, ok := i.entity(e)
			if key := (clearing{i.Name, entity}); ok && e.First.After(m.cleared[key]) {
				m.held[key] = true
			}
		}
	}
}

// holding reports whether a level of a failing check counts an incident that
// holds.
func (m *memory) holding(c *Check, st *status) bool {
	for i, l := range c.Levels {
		if counted := l.When.Signal.counts; counted != nil && st.levels[i].active &&
			m.held[clearing{counted.Name, st.Entity}] {
			return true
		}
	}
	return false
}

// knows reports whether the ID belongs to a known incident.
func (m *memory) knows(id string) bool {
	return slices.ContainsFunc(m.incidents, func(e incident.Event) bool { return e.ID == id })
}

// history is the age from which an incident says nothing about the present, if the
// agent did not watch what followed.
const history = 5 * time.Minute

// remember takes a new incident, or news of a known one.
func (m *memory) remember(e incident.Event) {
	if e.Kind != incident.KindIncident {
		return
	}
	old := m.since.Sub(e.First) > history
	for i := len(m.incidents) - 1; i >= 0; i-- {
		if before := &m.incidents[i]; before.ID == e.ID {
			e.NeedsReset = e.NeedsReset && (before.NeedsReset || !old)
			*before = e
			return
		}
	}
	e.NeedsReset = e.NeedsReset && !old
	m.incidents = append(m.incidents, e)
}

// tidy drops incidents that are too old to matter, and those beyond the bound.
// It takes them from the owner and GPU with the most, so that no owner's faults
// displace another's.
func (m *memory) tidy() {
	m.incidents = slices.DeleteFunc(m.incidents,
		func(e incident.Event) bool { return m.now.Sub(e.First) > longestWindow && !m.holds(&e) })
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
