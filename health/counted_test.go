package health

import (
	"testing"
	"time"

	"gpusteward/collectors"
	"gpusteward/health/derived"
	"gpusteward/health/incident"
)

// TestIncidentsAreCountedBesideOthers has incidents that a check of workloads
// does not count come before those that it does.
func TestIncidentsAreCountedBesideOthers(t *testing.T) {
	t.Parallel()
	m := newMemory(birth.Add(time.Hour))
	add := func(code int, workload string, ago time.Duration) {
		m.remember(incident.Event{Kind: incident.KindIncident, ID: workload + ago.String(), What: incident.WhatXID, Code: code, PID: 7, Entity: gpuEntity("0"), Workload: workload,
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
		if got := valueOf(s, RecentIncidents, "0", "xid_tenant", workload, ""); got != want {
			t.Errorf("%q had %v, want %v", workload, got, want)
		}
	}
}
