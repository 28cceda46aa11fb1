package health

import (
	"strconv"
	"testing"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/workloads"
	"gpusteward/health/derived"
	"gpusteward/health/incident"
)

// TestIncidentsAreRememberedForAMonth checks when incidents are forgotten.
func TestIncidentsAreRememberedForAMonth(t *testing.T) {
	t.Parallel()
	m := newMemory(birth)
	for i, id := range []string{"old", "month", "new"} {
		m.remember(incident.Event{Kind: incident.KindIncident, ID: id,
			First: birth.Add(time.Duration(i-1) * time.Second)})
		m.cleared[clearing{id, incident.Entity{}}] = birth.Add(time.Duration(i-1) * time.Second)
	}
	m.remember(incident.Event{Kind: incident.KindAck, ID: "ack", First: birth})
	m.remember(incident.Event{Kind: incident.KindIncident, ID: "new", First: birth.Add(time.Second), Count: 2})
	m.now = birth.Add(longestWindow)
	m.tidy()
	if len(m.incidents) != 2 || m.incidents[0].ID != "month" || m.incidents[1].Count != 2 || len(m.cleared) != 2 ||
		m.knows("old") || !m.knows("new") {
		t.Errorf("%+v, %v", m.incidents, m.cleared)
	}
	for i := len(m.incidents); i <= mostIncidents; i++ {
		m.remember(incident.Event{Kind: incident.KindIncident, ID: gpuEntity("0").String() + time.Duration(i).String(),
			What:  "often",
			First: birth.Add(time.Second)})
	}
	if m.tidy(); len(m.incidents) != mostIncidents || !m.knows("month") || !m.knows("new") {
		t.Errorf("%d incidents", len(m.incidents))
	}
}

// TestAbsentCountersAreForgotten simulates a host whose workloads come and
// go for months, each with its counters.
func TestAbsentCountersAreForgotten(t *testing.T) {
	t.Parallel()
	g := Increase(workloads.QoSViolations, 5*time.Minute, "by", "tenant")
	now := time.Unix(1, 0)
	e := NewEngine([]*Check{{ID: "missed", Levels: []Level{{Severity: incident.Warning, When: g.Above(0)}}}}, now)
	for i := range 600 {
		now = now.Add(time.Minute)
		e.Eval(derived.NewSnapshot([]collectors.Sample{{Metric: workloads.QoSViolations, Labels: []string{"0", "GPU-0",
			strconv.Itoa(i), "compute"}, Value: 7}}), nil, now)
	}
	if n := len(e.memory.counted[g].last); n > 130 {
		t.Errorf("%d counters are remembered of 600 that were there for a minute each, in ten hours", n)
	}
}
