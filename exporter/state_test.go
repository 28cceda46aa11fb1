package exporter

import (
	"encoding/json"
	"errors"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/faults"
	"gpusteward/collectors/workloads"
	"gpusteward/internal/fixture"
)

func TestStateGolden(t *testing.T) {
	var s samples
	s.host(2, 2)
	s.h100("0")
	s.mig("0")
	s.put(faults.XIDErrors, 2, "0", "GPU-0", "31", "9")
	s.put(faults.XIDLast, before(time.Minute), "0", "GPU-0", "31")
	s.put(workloads.AllocationInfo, 1, "0", "GPU-0", "slurm:4711", "slurm")
	s.down("1", "nvmlDeviceGetTemperature")
	s.workload("slurm:4711", "0", 40, .5)
	s.put(workloads.WorkloadMemory, 1<<30, "0", "GPU-0", "slurm:4711", "9")                            // and in an instance
	s.put(workloads.JobHang, 61, "0", "GPU-0", "default", "slurm:4711", "3", "stopped", "a.py:1 in f") // with its meaning
	s.began("slurm:4711", "slurm", time.Hour)
	text := fixture.Value(json.MarshalIndent(s.state(nil), "", "  "))(t)
	fixture.Golden(t, "testdata/"+"state.json", string(text)+"\n")
}

// Unknown values are left out: only names and values that are always known remain.
func TestStateLeavesOutUnknownValues(t *testing.T) {
	var s samples
	s.put(collectors.Up, 1, "0", "GPU-0")
	s.put(workloads.WorkloadProcesses, 1, "0", "GPU-0", "unit:a", "compute")
	text := fixture.Value(json.Marshal(s.state(nil)))(t)
	const want = `{"time":"2026-03-01T12:00:00Z","version":"1.0",` +
		`"host":{"name":"node17","driver_up":false,"drained":false,"gpus_expected":0},` +
		`"gpus":[{"index":0,"uuid":"GPU-0","up":true}],` +
		`"workloads":[{"workload":"unit:a","gpus":[{"index":0,"uuid":"GPU-0","processes":{"compute":1}}]}]}`
	fixture.Equal(t, string(text), want, "the state in JSON")
}

func TestStateFaults(t *testing.T) {
	var s samples
	put := s.of("0")
	put(faults.XIDErrors, 0, "48", "")
	put(faults.XIDErrors, 2, "31", "")
	put(faults.XIDErrors, 1, "31", "9")
	put(faults.XIDErrors, 1, "79", "")
	put(faults.XIDErrors, 1, "13", "") // at an unknown time
	put(faults.XIDLast, before(time.Hour), "31")
	put(faults.XIDLast, before(time.Minute), "79")
	state := s.state(nil)
	since := noon.Add(-2 * time.Minute)
	state.find([]Fault{
		{UUID: "GPU-0", What: "It is lost.", Check: "gpu_lost", Severity: "emergency", Last: &since,
			Finding: Finding{Entity: "gpu=0", Latched: true}},
		{What: "A port is down.", Check: "ib_port", Severity: "critical", Last: &since},
		{UUID: "GPU-0", What: "It was hot.", Check: "thermal_margin", Severity: "info", Last: &since,
			Finding: Finding{Recovered: &since, Clears: &noon}},
		{UUID: "GPU-0", What: "It is odd.", Check: "drift", Severity: "warning", Finding: Finding{Shadow: true}},
		{UUID: "GPU-gone", What: "It is missing.", Check: "broker", Severity: "emergency", Last: &since},
	})
	words := func(all []Fault) (texts []string) {
		for _, f := range all {
			texts = append(texts, f.words(noon))
		}
		return texts
	}
	if got, want := words(state.GPUs[0].Faults), []string{"Emergency, for 2m: It is lost.",
		"Info, recovered 11:58, clears 12:00 UTC: It was hot.", "XID 79 1m ago", "XID 31 ×3 1h00m ago", "XID 13"}; !reflect.DeepEqual(got,
		want) {
		t.Errorf("the faults are\n%q, want\n%q", got, want)
	}
	if got, want := words(state.Faults), []string{"Critical, for 2m: A port is down.",
		"Emergency, for 2m: It is missing."}; !reflect.DeepEqual(got, want) {
		t.Errorf("the node's faults are\n%q, want\n%q: also those of a GPU that is not shown", got, want)
	}
	var next []string
	for _, f := range append(state.GPUs[0].Faults[:3], state.Faults...) {
		next = append(next, f.Command)
	}
	fixture.EqualSlices(t, next, []string{"sudo gpusteward ack gpu_lost gpu=0", "", "",
		"gpusteward check --only=ib_port", "systemctl status gpusteward-broker"}, "what to run next")
	fixture.If(t, len(state.Shadow) != 1 || state.Shadow[0].UUID != "GPU-0" || state.Shadow[0].What != "It is odd.",
		"the findings in shadow mode are %+v", state.Shadow)
}

// GPUs are sorted by index and workloads by memory, independent of the order of samples.
func TestStateIsSorted(t *testing.T) {
	var s samples
	s.workload("unit:small", "2", 1, .1)
	s.workload("unit:none", "10", 0, .1)
	s.put(workloads.WorkloadProcesses, 1, "2", "GPU-2", "unit:a-secret", "compute") // with unknown memory
	s.workload("unit:large", "2", 2, .1)
	s.workload("unit:large", "10", 2, .1)
	for _, gpu := range []string{"10", "9", "2"} {
		s.put(collectors.Up, 1, gpu, "GPU-"+gpu)
	}
	state := s.state(nil)
	var order []string
	for _, g := range state.GPUs {
		order = append(order, g.UUID)
	}
	for _, w := range state.Workloads {
		order = append(order, w.Name)
	}
	fixture.Equal(t, strings.Join(order, " "), "GPU-2 GPU-9 GPU-10 unit:large unit:small unit:none unit:a-secret", "the order is")
	s = nil
	s.workload("unit:large", "10", 2, .1)
	s.workload("unit:large", "2", 2, .1)
	on := s.state(nil).Workloads[0].GPUs
	fixture.If(t, len(on) != 2 || on[0].Index != 2 || on[1].Index != 10, "a workload on two GPUs has %+v", on)
}

func TestStateIsServed(t *testing.T) {
	ready := errors.New("gpu 0 has not been read yet")
	s := server(t, func(o *Options) {
		o.Ready, o.Note, o.Hostname = func() error { return ready }, "This host is simulated.", "node17"
	})
	began := time.Now()
	w := request(s, http.MethodGet, "/api/v1/state")
	wantAnswer(t, w, http.StatusOK, `"not_ready":"gpu 0 has not been read yet"`)
	kind, cache := w.Header().Get("Content-Type"), w.Header().Get("Cache-Control")
	fixture.If(t, kind != "application/json" || cache != "no-store", "the state is %q, kept %q", kind, cache)
	var state State
	fixture.Must(t, json.Unmarshal(w.Body.Bytes(), &state))
	h := state.Host
	fixture.If(t, h.Name != "node17" || h.Note != "This host is simulated." || state.Time.Before(began) ||
		len(state.GPUs) != 2 || state.GPUs[1].Up, "the state is %+v", state)
	ready = nil
	if w := request(s, http.MethodGet, "/api/v1/state"); strings.Contains(w.Body.String(), "not_ready") {
		t.Errorf("ready, it is %s", w.Body)
	}
}

func TestStateHasTheTenants(t *testing.T) {
	var s samples
	s.tenant("", "stray", 0.5, 0, 0, 0)
	s.tenant("1", "b", 0.25, 0.125, 2, 1)
	s.tenant("1", "a", 0.75, 0.5, 0, 1)
	s.quota("1", "a", 0.25, "kernel", "hook", "none")
	s.stands("a", "unit:x", "observe", true, nil)
	s.stands("a", "unit:y", "pause", true, nil)
	s.stands("a", "unit:z", "pause", false, nil)
	text := fixture.Value(json.Marshal(s.state(nil).Tenants))(t)
	const want = `[{"tenant":"a","gpu":1,"uuid":"GPU-1","sessions":2,"target_ratio":0.75,"share_ratio":0.5,` +
		`"guarantee_ratio":0.25,"memory_used_bytes":1073741824,"backends":["hook","kernel"],"rung":"pause"},` +
		`{"tenant":"b","gpu":1,"uuid":"GPU-1","sessions":2,"target_ratio":0.25,"share_ratio":0.125,"limit_ratio":0.5,` +
		`"memory_used_bytes":1073741824,"memory_limit_bytes":2147483648},` +
		`{"tenant":"stray","uuid":"GPU-","sessions":2,"target_ratio":0.5,"share_ratio":0,"memory_used_bytes":0}]`
	fixture.Equal(t, string(text), want, "the tenants in JSON")
}

// TestTenantsOnMIG has tenants on MIG devices, named as in the table of quotas.
func TestTenantsOnMIG(t *testing.T) {
	var s samples
	s.mig("3")
	s.tenant("4", "a", 1, 1, 0, 0)
	var tenants samples
	tenants.tenant("", "a", .5, .5, 0, 0)
	for _, device := range []string{"MIG-gone", "MIG-b", "MIG-c"} {
		for _, x := range tenants {
			x.Labels = append([]string{"", device}, x.Labels[2:]...)
			s = append(s, x)
		}
	}
	var places []string
	for _, x := range s.state(nil).Tenants {
		places = append(places, x.UUID+" "+x.place())
	}
	fixture.EqualSlices(t, places, []string{"MIG-c 3:9", "MIG-b 3:10", "GPU-4 4", "MIG-gone ?"}, "it is")
}

func TestStateHasEscalatedWorkloads(t *testing.T) {
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
	var s samples
	s.workload("unit:both", "0", 1, .1)
	s.workload("unit:none", "0", 1, .1)
	s.stands("b", "unit:both", "observe", false, nil)
	s.stands("a", "unit:both", "warn", false, nil)
	s.stands("a", "unit:gone", "warn", false, nil)
	all := s.state(nil).Workloads
	fixture.If(t, len(all) != 2 || !slices.Equal(all[0].Tenants, []string{"a", "b"}) || all[1].Tenants != nil,
		"the workloads are %+v", all)
}

// The colour shows the action: red if a workload does not run; yellow if it is warned, slowed or in shadow mode.
func TestEscalationInColour(t *testing.T) {
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
