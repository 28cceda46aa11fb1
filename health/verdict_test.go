package health

import (
	"cmp"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"gpusteward/collectors"
	"gpusteward/health/derived"
	"gpusteward/health/incident"
	"gpusteward/internal/fixture"
)

// TestVerdictOfAGPU checks the verdict on a GPU by its readings and findings: the check reads the margin.
func TestVerdictOfAGPU(t *testing.T) {
	const cool, warm, hot, none = 50, -1, -20, 1000
	for name, c := range map[string]struct {
		up     float64
		away   bool
		stuck  string
		margin float64
		want   Health
		node   string
	}{
		"it is well":            {up: 1, margin: cool, want: Health{Status: incident.OK}},
		"it is warm":            {up: 1, margin: warm, want: Health{Status: incident.Degraded}},
		"it is hot":             {up: 1, margin: hot, want: Health{Status: incident.Unhealthy}},
		"nothing is read of it": {up: 1, margin: none, want: Health{Status: incident.Unknown}, node: noData},
		"it hangs": {stuck: "nvmlDeviceGetTemperature", margin: cool,
			want: Health{Status: incident.Unknown, Reason: "hangs in nvmlDeviceGetTemperature"},
			node: "GPU 0 hangs in nvmlDeviceGetTemperature"},
		"it is lost": {stuck: "gpu_is_lost", margin: cool, want: Health{Status: incident.Unknown,
			Reason: "does not answer: gpu is lost"}, node: "GPU 0 does not answer: gpu is lost"},
		"it is lost, and hot": {stuck: "gpu_is_lost", margin: hot, want: Health{Status: incident.Unhealthy,
			Reason: "does not answer: gpu is lost"}},
		"it is down, and unsaid": {margin: cool, want: Health{Status: incident.Unknown}, node: noData},
		"it is away": {away: true, stuck: "not_listed", margin: cool, want: Health{Status: incident.OK,
			Reason: "is away: a virtual machine has it"}},
		"it is lost, and warm": {stuck: "gpu_is_lost", margin: warm, want: Health{Status: incident.Degraded,
			Reason: "does not answer: gpu is lost"}},
		"it is away, and was warm": {away: true, stuck: "not_listed", margin: warm,
			want: Health{Status: incident.Degraded, Reason: "does not answer: not listed"}},
		"it is away, and was hot": {away: true, stuck: "not_listed", margin: hot,
			want: Health{Status: incident.Unhealthy, Reason: "does not answer: not listed"}},
	} {
		w := newWorld(t, hotCheck)
		w.steps(1, hotAt(cool))
		if c.margin != none {
			w.steps(3, hotAt(c.margin))
		} else {
			w.steps(3)
		}
		samples := []collectors.Sample{on("0", collectors.Up, c.up), on("0", Away, collectors.Bool(c.away))}
		if c.stuck != "" {
			samples = append(samples, on("0", collectors.WorkerStuck, 1, c.stuck))
		}
		m := &Monitor{engine: w.engine}
		v := m.verdict(derived.NewSnapshot(samples), w.now)
		c.want.GPU, c.want.UUID = "0", "GPU-0"
		fixture.If(t, len(v.GPUs) != 1 || v.GPUs[0] != c.want || v.Status != c.want.Status || v.Reason != c.node,
			"%s: %+v, and the node %v, %q; want %+v, %q", name, v.GPUs, v.Status, v.Reason, c.want, c.node)
	}
}

// TestVerdictOfANode checks the verdict on a host by its own findings, and for
// a host without a GPU. The faults of a workload or a tenant do not affect it.
func TestVerdictOfANode(t *testing.T) {
	gpus := []Health{{GPU: "0", UUID: "GPU-0"}}
	gpu := incident.Entity{GPU: "0", UUID: "GPU-0"}
	for name, c := range map[string]struct {
		v      Verdict
		want   incident.State
		reason string
	}{
		"nothing is found": {Verdict{GPUs: gpus}, incident.OK, ""},
		"something is unknown of it": {Verdict{GPUs: gpus,
			Findings: []Finding{{State: incident.Unknown}}}, incident.Unknown, noData},
		"something is unknown of a GPU, of which more is known": {Verdict{GPUs: gpus,
			Findings: []Finding{{Entity: gpu, State: incident.Unknown}}}, incident.OK, ""},
		"it recovers": {Verdict{GPUs: gpus,
			Findings: []Finding{{State: incident.Recovering, Severity: incident.Warning}}}, incident.Degraded, ""},
		"unknown, and worse": {Verdict{GPUs: gpus,
			Findings: []Finding{{State: incident.Unknown}, {Entity: gpu, State: incident.Unhealthy,
				Severity: incident.Critical}}}, incident.Unhealthy, ""},
		"unknown, and a little worse": {Verdict{GPUs: gpus,
			Findings: []Finding{{State: incident.Unknown}, {Entity: gpu, State: incident.Degraded,
				Severity: incident.Warning}}}, incident.Degraded, ""},
		"it is worth knowing": {Verdict{GPUs: gpus,
			Findings: []Finding{{State: incident.Suspect, Severity: incident.Info}}}, incident.Suspect, ""},
		"it is a shadow": {Verdict{GPUs: gpus,
			Findings: []Finding{{State: incident.Failed, Severity: incident.Emergency, Shadow: true}}}, incident.OK, ""},
		"no GPU":          {Verdict{}, incident.Unknown, "no GPU is known"},
		"no GPU, and why": {Verdict{Reason: "drained"}, incident.Unknown, "drained"},
		"no GPU, and a fault": {Verdict{Findings: []Finding{{State: incident.Failed,
			Severity: incident.Emergency}}}, incident.Failed, ""},
		"of two GPUs the first is unknown": {Verdict{GPUs: []Health{{GPU: "0",
			Status: incident.Unknown,
			Reason: "is late"}, {GPU: "1", Status: incident.Unknown}}}, incident.Unknown, "GPU 0 is late"},
	} {
		c.v.sum()
		fixture.If(t, c.v.Status != c.want || c.v.Reason != c.reason,
			"%s: %v, %q; want %v, %q", name, c.v.Status, c.v.Reason, c.want, c.reason)
	}
	for e, want := range map[incident.Entity]incident.State{gpu: incident.Unhealthy,
		{GPU: "0", UUID: "GPU-0", Link: "3"}: incident.Unhealthy, {GPU: "0", UUID: "GPU-0", Workload: "pod:a"}: incident.OK,
		{GPU: "0", UUID: "GPU-0", Tenant: "a"}: incident.OK} {
		v := Verdict{GPUs: []Health{{GPU: "0", UUID: "GPU-0"}},
			Findings: []Finding{{Entity: e, Severity: incident.Critical, State: incident.Unhealthy}}}
		v.sum()
		fixture.Equal(t, v.Status, want, "a fault of %v: the node is", e)
	}
	for _, ready := range []error{nil, collectors.ErrDrained, collectors.ErrNoGPUs} {
		m := &Monitor{engine: newWorld(t).engine, Options: Options{Ready: func() error { return ready }}}
		want := cmp.Or(ready, errors.New("no GPU is known")).Error()
		if v := m.verdict(derived.NewSnapshot(nil), birth); v.Status != incident.Unknown || v.Reason != want {
			t.Errorf("ready: %v: %v, %q", ready, v.Status, v.Reason)
		}
	}
}

// TestVerdictAsJSON holds the keys that other programs read.
func TestVerdictAsJSON(t *testing.T) {
	at := birth
	v := Verdict{Node: "n", Time: at, Status: incident.Degraded, Reason: "r",
		GPUs: []Health{{"0", "GPU-0", incident.Unknown, "is late"}},
		Findings: []Finding{{"hot", "Hot", incident.Entity{GPU: "0", Link: "1"}, incident.Warning, incident.Degraded, at, true, true,
			1, "> 0", 2, at, at, at, "It is hot.", "Cool it."}}}
	const when = `"2026-01-01T00:00:00Z"`
	want := strings.ReplaceAll(`{"node":"n","time":AT,"status":"degraded","reason":"r","gpus":[{"gpu":"0","uuid":"GPU-0",`+
		`"status":"unknown","reason":"is late"}],"findings":[{"check":"hot","alert":"Hot","entity":{"gpu":"0","link":"1"},`+
		`"severity":"warning","state":"degraded","since":AT,"latched":true,"shadow":true,"value":1,"limit":"\u003e 0",`+
		`"worst":2,"worst_at":AT,"recovered":AT,"clears":AT,"message":"It is hot.","action":"Cool it."}]}`, "AT", when)
	fixture.Equal(t, string(fixture.Value(json.Marshal(v))(t)), want, "a verdict is")
	j := Judgement{v, FromAgent, []string{"a"}, []string{"b"}}
	fixture.Equal(t, string(fixture.Value(json.Marshal(j))(t)), strings.TrimSuffix(want, "}")+
		`,"source":"agent","unjudged":["a"],"notes":["b"]}`, "a judgement is")
}
