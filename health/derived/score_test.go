package derived

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"gpusteward/health/incident"
	"gpusteward/internal/fixture"
)

// fault reports a fault of a rig's GPU.
func fault(r *rig, gpu int, id string, class incident.Class, severity incident.Severity) {
	r.Fault(incident.Event{Kind: incident.KindIncident, ID: id, Class: class, Severity: severity,
		Entity: incident.Entity{GPU: r.gpus[gpu].gpu, UUID: r.gpus[gpu].uuid}}, r.now)
}

func TestFaultScores(t *testing.T) {
	t.Parallel()
	r := newRig(2)
	r.step(step, nil)
	for _, class := range incident.Classes {
		fixture.Equal(t, r.get(FaultScore, 0, string(class)), 0, "%s before any fault", class)
	}
	score := func(class incident.Class) float64 { return r.get(FaultScore, 0, string(class)) }
	fault(r, 0, "a", incident.MemoryFault, incident.Critical)
	fault(r, 0, "a", incident.MemoryFault, incident.Critical) // the same incident again
	r.Fault(incident.Event{Kind: incident.KindTransition, ID: "t", Class: incident.MemoryFault,
		Severity: incident.Critical, Entity: incident.Entity{UUID: r.gpus[0].uuid}}, r.now)
	// on the node
	r.Fault(incident.Event{Kind: incident.KindIncident, ID: "n", Class: incident.MemoryFault,
		Severity: incident.Critical}, r.now)
	r.step(step, nil)
	if got := score(incident.MemoryFault); far(got, 1, .01) {
		t.Errorf("one critical fault: %g, want 1", got)
	}
	r.step(time.Hour, nil)
	if got := score(incident.MemoryFault); far(got, .5, .01) {
		t.Errorf("an hour later: %g, want half", got)
	}
	r.step(time.Hour, nil) // no longer consecutive
	for i := range 3 {
		fault(r, 0, fmt.Sprint("row", i), incident.HardwareFault, incident.Critical)
		fault(r, 0, fmt.Sprint("warning", i), incident.DriverCrash, incident.Warning)
	}
	r.step(step, nil)
	if got := score(incident.HardwareFault); far(got, 3.75, .01) {
		t.Errorf("three faults in a row: %g, want 1 + 1.25 + 1.5", got)
	}
	if got := score(incident.DriverCrash); far(got, 3.75/2, .01) {
		t.Errorf("three warnings in a row: %g, want half of that", got)
	}
	fixture.Equal(t, r.get(FaultScore, 1, string(incident.HardwareFault)), 0, "the other GPU has")
	// identified by its index
	r.Fault(incident.Event{Kind: incident.KindIncident, ID: "i", Class: incident.ComputeTimeout,
		Severity: incident.Critical, Entity: incident.Entity{GPU: "1"}}, r.now)
	r.step(step, nil)
	if got := r.get(FaultScore, 1, string(incident.ComputeTimeout)); far(got, 1, .01) {
		t.Errorf("a fault of the GPU with index 1: %g", got)
	}
}

func TestTenantFaultsDoNotMakeALemon(t *testing.T) {
	t.Parallel()
	r := newRig(2)
	r.step(step, nil)
	for i := range 12 { // two hours apart
		fault(r, 0, fmt.Sprint("tenant", i), incident.ApplicationFault, incident.Critical)
		// of another class, and a tenant's
		nvlink := incident.Event{Kind: incident.KindIncident, ID: fmt.Sprint("nvlink", i), What: incident.WhatXID,
			Code: 137, Severity: incident.XIDs()[137].Severity, Class: incident.XIDs()[137].Class}
		nvlink.Entity = incident.Entity{UUID: r.gpus[0].uuid}
		r.Fault(nvlink, r.now)
		for k := range 5 { // simultaneous faults are one offence
			fault(r, 1, fmt.Sprint("hardware", i, k), incident.HardwareFault, incident.Severity(2+k%2))
		}
		r.now = r.now.Add(2 * time.Hour)
		r.step(step, nil)
	}
	if good, bad := r.get(LemonScore, 0), r.get(LemonScore, 1); good != 0 || bad < 11 || bad > 12 {
		t.Errorf("a tenant's faults score %g, want 0; twelve offences score %g, want a little under 12", good, bad)
	}
	before := r.get(LemonScore, 1)
	r.now = r.now.Add(30 * 24 * time.Hour)
	r.step(step, nil)
	if got := r.get(LemonScore, 1); far(got, before/8, .01) {
		t.Errorf("30 days later: %g, want an eighth of %g", got, before)
	}
}

func TestScoresOutliveARestart(t *testing.T) {
	t.Parallel()
	r := newRig(2)
	for _, g := range r.gpus {
		g.values[eccCorrected] = 0
	}
	r.step(5*time.Minute, func() { r.gpus[0].values[eccCorrected] += 2 })
	fault(r, 0, "a", incident.MemoryFault, incident.Emergency)
	r.step(step, nil)
	text := fixture.Value(json.Marshal(r.Save(r.now)))(t)
	again := newRig(2)
	again.now, again.gpus = r.now, r.gpus
	fixture.Must(t, again.Restore(text, asItIs))
	fault(again, 0, "a", incident.MemoryFault, incident.Emergency) // repeated from the journal
	again.step(step, nil)
	if got := again.get(FaultScore, 0, string(incident.MemoryFault)); far(got, 2, .02) {
		t.Errorf("the fault score is %g, want 2", got)
	}
	if got := again.get(LemonScore, 0); far(got, 2, .02) {
		t.Errorf("the lemon score is %g, want 2", got)
	}
	if rate, sum := again.get(ECCCorrectablePerHour, 0), again.get(ECCCorrectableCUSUM, 0); rate < 50 || sum < 5 {
		t.Errorf("%g errors an hour, sum %g", rate, sum)
	}
	for _, bad := range []string{``, `[]`, `{"gpus":{"x":5}}`} {
		if err := New().Restore([]byte(bad), asItIs); err == nil {
			t.Errorf("%q is taken for a state", bad)
		}
	}
	odd := newRig(1)
	text = []byte(`{"gpus":{"` + odd.gpus[0].uuid +
		`":{"ecc":{"next":-5},"pcie":{"next":999},"faults":{"x":{},"memory-fault":null},` +
		`"rows":{"times":[2,1],"values":[1]}},"y":null}}`)
	fixture.Must(t, odd.Restore(text, asItIs))
	odd.gpus[0].values[remappedRows] = 1
	odd.step(2*time.Minute, nil)
	whole(t, odd.last)
}

func TestBackwardClockKeepsScores(t *testing.T) {
	t.Parallel()
	r := newRig(1)
	r.step(step, nil)
	fault(r, 0, "a", incident.MemoryFault, incident.Critical)
	r.now = r.now.Add(-24 * time.Hour)
	r.step(time.Hour, nil)
	if got := r.get(FaultScore, 0, string(incident.MemoryFault)); far(got, .5, .01) {
		t.Errorf("an hour after the clock went back a day: %g, want half", got)
	}
}

func TestClockJumpKeepsPresentGPUs(t *testing.T) {
	t.Parallel()
	r := newRig(1)
	r.step(step, nil)
	fault(r, 0, "a", incident.MemoryFault, incident.Emergency)
	r.Fault(incident.Event{Kind: incident.KindIncident, ID: "b", Class: incident.MemoryFault,
		Severity: incident.Critical, Entity: incident.Entity{UUID: "GPU-gone"}}, r.now)
	r.gpus = append(r.gpus, newRig(2).gpus[1])
	r.now = r.now.Add(100 * 24 * time.Hour)
	r.step(step, nil)
	if got := r.get(LemonScore, 0); got <= 0 || len(r.histories) != 2 || r.histories["GPU-gone"] != nil {
		t.Errorf("the lemon score is %g, %d histories", got, len(r.histories))
	}
}
