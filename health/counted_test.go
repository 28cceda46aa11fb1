package health

import (
	"fmt"
	"testing"
	"time"

	"gpusteward/collectors"
	"gpusteward/health/derived"
	"gpusteward/health/incident"
	"gpusteward/internal/fixture"
)

// TestIncidentsAreCountedBesideOthers puts incidents that a check of workloads
// does not count before those that it counts.
func TestIncidentsAreCountedBesideOthers(t *testing.T) {
	t.Parallel()
	m := newMemory(birth.Add(time.Hour))
	add := func(code int, workload string, ago time.Duration) {
		m.remember(incident.Event{Kind: incident.KindIncident, ID: workload + ago.String(), What: incident.WhatXID,
			Code: code, PID: 7, Entity: gpuEntity("0"), Workload: workload,
			Class: incident.XIDs()[code].Class, Severity: incident.XIDs()[code].Severity, First: m.now.Add(-ago)})
	}
	const window = 10 * time.Minute // of xid_tenant
	add(31, "pod:a", window+time.Second)
	add(31, "pod:a", window)
	add(79, "pod:a", time.Minute)
	add(31, "", time.Second)
	add(31, "pod:a", 0)
	add(31, "pod:b", 0)
	s := derived.NewSnapshot([]collectors.Sample{on("0", collectors.Up, 1)})
	m.count(s)
	for workload, want := range map[string]float64{"pod:a": 2, "pod:b": 1, "": -1} {
		fixture.Equal(t, valueOf(s, RecentIncidents, "0", "xid_tenant", workload, ""), want, "%q had", workload)
	}
}

// TestOwnersBeyondTheUsualNumber checks the number of owners with an XID
// beyond twice the number on the host's other GPUs.
func TestOwnersBeyondTheUsualNumber(t *testing.T) {
	t.Parallel()
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
