package health

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/workloads"
	"gpusteward/health/derived"
	"gpusteward/health/incident"
	"gpusteward/internal/fixture"
)

// TestIncidentsAreCountedBesideOthers puts incidents that a check of workloads
// does not count before those that it counts.
func TestIncidentsAreCountedBesideOthers(t *testing.T) {
	m := newMemory(birth.Add(time.Hour))
	add := func(pid, code int, workload string, ago time.Duration) {
		m.remember(incident.Event{Kind: incident.KindIncident, ID: workload + ago.String(), What: incident.WhatXID,
			Code: code, PID: pid, Entity: gpuEntity("0"), Workload: workload,
			Class: incident.XIDs()[code].Class, Severity: incident.XIDs()[code].Severity, First: m.now.Add(-ago)})
	}
	const window = 10 * time.Minute // of xid_tenant
	add(7, 31, "pod:a", window+time.Second)
	add(7, 31, "pod:a", window)
	add(7, 79, "pod:a", time.Minute)
	add(7, 31, "", time.Second)
	add(7, 31, "pod:a", 0)
	add(7, 31, "pod:b", 0)
	add(0, 31, "pod:c", 0) // it may be another's
	s := derived.NewSnapshot([]collectors.Sample{on("0", collectors.Up, 1)})
	m.count(s)
	for workload, want := range map[string]float64{"pod:a": 2, "pod:b": 1, "pod:c": -1, "": -1} {
		fixture.Equal(t, valueOf(s, RecentIncidents, "0", "xid_tenant", workload, ""), want, "%q had", workload)
	}
}

// TestOwnersBeyondTheUsualNumber checks the number of owners with an XID
// beyond twice the number on the host's other GPUs.
func TestOwnersBeyondTheUsualNumber(t *testing.T) {
	had := func(owners int) (all []*incident.Event) {
		for i := range 2 * owners { // twice for each owner
			all = append(all, &incident.Event{Code: 13, Owner: fmt.Sprint(i % owners)})
		}
		return all
	}
	for _, c := range []struct {
		here      int
		elsewhere []int
		want      float64
	}{{5, nil, 5}, {5, []int{0, 0}, 5}, {5, []int{1, 1}, 3}, {5, []int{1}, 3}, {5, []int{2, 0, 2}, 1},
		{5, []int{2, 0, 0}, 5}, {2, []int{3}, 0}} {
		var elsewhere [][]*incident.Event
		for _, n := range c.elsewhere {
			elsewhere = append(elsewhere, append(had(n), &incident.Event{Code: 31, Owner: "other"}))
		}
		fixture.Equal(t, owners(had(c.here), elsewhere), c.want, "%d owners, and elsewhere %v", c.here, c.elsewhere)
	}
}

// TestIncidentsAreRememberedForAMonth checks when incidents are forgotten.
func TestIncidentsAreRememberedForAMonth(t *testing.T) {
	t.Parallel()
	m := newMemory(birth)
	for i, id := range []string{"old", "month", "new"} {
		m.remember(incident.Event{Kind: incident.KindIncident, ID: id, First: birth.Add(time.Duration(i-1) * time.Second)})
		m.cleared[clearing{id, incident.Entity{}}] = birth.Add(time.Duration(i-1) * time.Second)
	}
	m.remember(incident.Event{Kind: incident.KindAck, ID: "ack", First: birth})
	m.remember(incident.Event{Kind: incident.KindIncident, ID: "new", First: birth.Add(time.Second), Count: 2})
	m.now = birth.Add(30 * 24 * time.Hour)
	m.tidy()
	fixture.If(t, len(m.incidents) != 2 || m.incidents[0].ID != "month" || m.incidents[1].Count != 2 || len(m.cleared) != 2 ||
		m.knows("old") || !m.knows("new"), "%+v, %v", m.incidents, m.cleared)
	for i := len(m.incidents); i <= mostIncidents; i++ {
		m.remember(incident.Event{Kind: incident.KindIncident, ID: gpuEntity("0").String() + time.Duration(i).String(),
			What:  "often",
			First: birth.Add(time.Second)})
	}
	if m.tidy(); len(m.incidents) != mostIncidents || !m.knows("month") || !m.knows("new") {
		t.Errorf("%d incidents", len(m.incidents))
	}
}

// TestAbsentCountersAreForgotten simulates a host whose workloads come and go for months, each with its counters.
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
	fixture.AtMost(t, len(e.memory.counted[g].last), 130,
		"… counters are remembered of 600 that were there for a minute each, in ten hours")
}
