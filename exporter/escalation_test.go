package exporter

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"gpusteward/internal/fixture"
)

func TestStateHasEscalatedWorkloads(t *testing.T) {
	t.Parallel()
	var s samples
	s.stands("a", "unit:calm", "observe", false, map[string]float64{"memory": 8})
	s.stands("b", "unit:warned", "warn", true, map[string]float64{"compute": 4, "memory": 0})
	s.stands("a", "unit:said", "pause", true, nil)
	s.stands("b", "unit:done", "pause", false, nil)
	s.stands("b", "unit:newer", "quarantine", false, nil) // from a newer enforcer
	text := fixture.Value(json.Marshal(s.state(nil).Escalation))(t)
	const want = `[{"workload":"unit:done","tenant":"b","rung":"pause","shadow":false},` +
		`{"workload":"unit:said","tenant":"a","rung":"pause","shadow":true},` +
		`{"workload":"unit:warned","tenant":"b","rung":"warn","shadow":true,"violations":{"compute":4}}]`
	fixture.Equal(t, string(text), want, "the escalation in JSON")
}

// A workload has the tenants of its processes, with or without violations.
func TestWorkloadsHaveTenants(t *testing.T) {
	t.Parallel()
	var s samples
	s.workload("unit:both", "0", 1, .1)
	s.workload("unit:none", "0", 1, .1)
	s.stands("b", "unit:both", "observe", false, nil)
	s.stands("a", "unit:both", "warn", false, nil)
	s.stands("a", "unit:gone", "warn", false, nil)
	all := s.state(nil).Workloads
	if len(all) != 2 || !slices.Equal(all[0].Tenants, []string{"a", "b"}) || all[1].Tenants != nil {
		t.Errorf("the workloads are %+v", all)
	}
}

// The colour shows the action: red if a workload does not run; yellow if it is
// warned, slowed or in shadow mode.
func TestEscalationInColour(t *testing.T) {
	t.Parallel()
	for want, l := range map[string]Escalated{
		"\x1b[33m warn": {Level: "warn", Shadow: true}, "\x1b[33m throttle": {Level: "throttle"},
		"\x1b[31m pause":              {Level: "pause"},
		"\x1b[33m terminate (shadow)": {Level: "terminate", Shadow: true}, "\x1b[31m terminate": {Level: "terminate"},
	} {
		text := style{width: minWidth, colour: true}.table(State{Escalation: []Escalated{l}})
		fixture.Contains(t, text, want, "%+v is", l)
		fixture.Equal(t, strings.Contains(text, "warn (shadow)"), false, "a warning is done, not only said")
	}
}

func TestQuotaInWords(t *testing.T) {
	t.Parallel()
	at := func(v float64) *float64 { return &v }
	for want, c := range map[string]Tenant{
		"": {}, "≤50%": {Limit: at(.5)}, "50%": {Guarantee: at(.5), Limit: at(.5)},
		"30-50%": {Guarantee: at(.3), Limit: at(.5)}, "0-100%": {Guarantee: at(0)}, "100%": {Guarantee: at(1)},
	} {
		fixture.Equal(t, c.quota(), want, "%v to %v is written", c.Guarantee, c.Limit)
	}
}
