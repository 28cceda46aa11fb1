package health

import (
	"testing"
	"time"

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
