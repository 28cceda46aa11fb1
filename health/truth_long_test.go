//go:build long

package health

import (
	"slices"
	"testing"
	"time"

	"gpusteward/health/incident"
)

// TestHealthyHostsAreQuiet measures false alarms on simulated healthy hosts: at
// most one false warning in a host-week, and no false critical. make truth
// DAYS=1000 asks for more days.
func TestHealthyHostsAreQuiet(t *testing.T) {
	began := time.Now()
	v := judgeAll(t, *truthDays)
	weeks := float64(v.evaluations) / stepsWeek
	paged := map[incident.Severity]int{}
	for a, n := range v.alarms {
		if !a.shadow && !slices.Contains(trueAlarms, a.check) {
			paged[a.severity] += n
		}
	}
	t.Log(v.table(weeks, time.Since(began)))
	t.Logf("%d false warnings in %.1f host-weeks, %d false critical ones", paged[incident.Warning], weeks,
		paged[incident.Critical]+paged[incident.Emergency])
	if paged[incident.Critical]+paged[incident.Emergency] > 0 || float64(paged[incident.Warning]) > weeks {
		t.Error("at most one false warning in a host-week is good, and no false critical")
	}
	slices.Sort(v.told)
	for i, s := range v.told[:min(len(v.told), *truthShow)] {
		t.Logf("%d: %s", i+1, s)
	}
}
