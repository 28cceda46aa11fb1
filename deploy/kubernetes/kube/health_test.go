package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
)

// A play is a reporter, the agent that it asks, and the clock.
type play struct {
	*reporter
	t      *testing.T
	server *server
	now    time.Time
	says   string // the agent's answer; "" is none
	detail string // of the worst finding
}

// begin starts a play with GPUs 1 to 3, of which the last has MIG devices.
func begin(t *testing.T) *play {
	t.Helper()
	s, api := serve(t)
	s.slices = []resourcev1.ResourceSlice{
		slice("node-1", driver, device("gpu-0", "uuid", "GPU-1"), device("gpu-1", driver+"/uuid", "GPU-2"),
			device("gpu-2-mig-1", "uuid", "MIG-1", "parentUUID", "GPU-3"),
			device("gpu-2-mig-2", "uuid", "MIG-2", "parentUUID", "GPU-3"), device("imex", "type", "x")),
		slice("node-2", driver, device("gpu-9", "uuid", "GPU-1")),
		slice("node-1", "dra.example", device("other", "uuid", "GPU-1")),
	}
	p := &play{t: t, server: s, now: time.Now().Truncate(time.Second)}
	p.restart(api, "NoSchedule")
	return p
}

// restart replaces the reporter by a new one.
func (p *play) restart(api *api, effect string) {
	log := slog.New(slog.DiscardHandler)
	p.reporter = &reporter{node: "node-1", hold: time.Minute, api: api, log: log,
		taints: &taints{node: "node-1", effect: effect, api: api, log: log}}
	p.ask = func(context.Context) (v verdict, err error) {
		if p.says == "" {
			return v, errors.New("no answer")
		}
		err = json.Unmarshal([]byte(p.says), &v)
		v.Time = p.now.Add(-5 * time.Second)
		return v, err
	}
}

// pass lets time pass and reports; gpus are the states of the GPUs from 1.
func (p *play) pass(d time.Duration, node string, gpus ...string) error {
	p.now = p.now.Add(d)
	p.says = ""
	if node != "" {
		text := fmt.Sprintf(`{"node": "node-1", "status": %q, "reason": "a reason", "gpus": [`, node)
		for i, state := range gpus {
			text += fmt.Sprintf(`{"gpu": "%d", "uuid": "GPU-%d", "status": %q},`, i, i+1, state)
		}
		p.says = strings.TrimSuffix(text, ",") +
			`], "findings": [{"check": "quiet", "shadow": true}, {"check": "slow", "entity": {"workload": "w"}}, ` +
			`{"check": "gpu_lost", "message": "It is` + p.detail + `\ngone."}]}`
	}
	return p.report(p.t.Context(), p.now)
}

// must is pass without an error.
func (p *play) must(d time.Duration, node string, gpus ...string) {
	p.t.Helper()
	if err := p.pass(d, node, gpus...); err != nil {
		p.t.Fatal(err)
	}
}

// fails is pass, and wants an error with a text.
func (p *play) fails(want string, d time.Duration, node string, gpus ...string) {
	p.t.Helper()
	if err := p.pass(d, node, gpus...); err == nil || !strings.Contains(err.Error(), want) {
		p.t.Errorf("%v, want %q", err, want)
	}
}

// did checks how often the server got a request.
func (p *play) did(request string, want int) {
	p.t.Helper()
	if n := p.server.did[request]; n != want {
		p.t.Errorf("%s: %d times, want %d", request, n, want)
	}
}

// is checks the node's condition, "Status Reason: message", and how long ago it changed.
func (p *play) is(want string, since time.Duration) {
	p.t.Helper()
	var all []corev1.NodeCondition
	for _, c := range p.server.node.Status.Conditions {
		if c.Type == conditionType {
			all = append(all, c)
		}
	}
	if n := len(p.server.node.Status.Conditions); len(all) != 1 || n != 2 {
		p.t.Fatalf("%d conditions of %d", len(all), n)
	}
	got := fmt.Sprintf("%s %s: %s", all[0].Status, all[0].Reason, all[0].Message)
	if changed := p.now.Sub(all[0].LastTransitionTime.Time); got != want || changed != since {
		p.t.Errorf("the condition is %q since %v, want %q since %v", got, changed, want, since)
	}
}

func (p *play) tainted(want string) {
	p.t.Helper()
	if got := p.server.tainted(); got != want {
		p.t.Errorf("tainted are %q, want %q", got, want)
	}
}

const (
	wellNode = "False GPUsAreHealthy: no GPU of the node is critical"
	illNode  = "True GPUCritical: gpu_lost: It is gone."
)

func TestConditionFollowsTheVerdict(t *testing.T) {
	p := begin(t)
	p.must(0, "ok", "ok")
	p.is(wellNode, 0)
	p.must(time.Minute, "degraded", "degraded")
	p.is(wellNode, time.Minute)
	p.must(time.Minute, "unhealthy", "ok")
	p.is(illNode, 0)
	p.must(30*time.Second, "failed", "ok")
	p.is(illNode, 30*time.Second)
	p.must(30*time.Second, "ok", "ok")
	p.is(illNode, time.Minute) // for the hold
	p.must(59*time.Second, "ok", "ok")
	p.is(illNode, 119*time.Second)
	p.must(time.Second, "ok", "ok")
	p.is(wellNode, 0)
}

// TestFlappingIsNotLifted: a GPU that is well for less than the hold stays out of service.
func TestFlappingIsNotLifted(t *testing.T) {
	p := begin(t)
	for i := range time.Duration(10) {
		p.must(30*time.Second, "failed", "failed")
		p.must(30*time.Second, "ok", "ok")
		p.is(illNode, 30*time.Second+i*time.Minute)
		p.tainted("gpu-0:NoSchedule")
	}
	if n := p.server.did["patch nodes/status"]; n > 3 { // one, and heartbeats
		t.Errorf("%d patches", n)
	}
	p.did("create devicetaintrules", 1)
}

// TestUnknownIsNotHealthy: without the agent the condition is Unknown, and taints stay.
func TestUnknownIsNotHealthy(t *testing.T) {
	p := begin(t)
	p.must(0, "failed", "failed", "ok")
	p.fails("no answer", time.Minute, "")
	p.is("Unknown GPUsAreUnknown: no answer", 0)
	p.tainted("gpu-0:NoSchedule")
	p.must(time.Minute, "unknown", "unknown", "ok")
	p.is("Unknown GPUsAreUnknown: a reason", 2*time.Minute-time.Minute)
	p.tainted("gpu-0:NoSchedule")
	p.must(time.Minute, "new word", "new word", "ok")
	p.tainted("gpu-0:NoSchedule")
	p.must(time.Hour, "ok", "ok", "ok") // its hold begins now
	p.tainted("gpu-0:NoSchedule")
	p.must(time.Minute, "ok", "ok", "ok")
	p.is(wellNode, time.Minute)
	p.tainted("")
}

func TestUnusableVerdicts(t *testing.T) {
	now := time.Now()
	good := verdict{Node: "node-1", Time: now.Add(-29 * time.Second), Status: "ok"}
	other, old := good, good
	other.Node, old.Time = "node-2", now.Add(-31*time.Second)
	for want, v := range map[string]verdict{"": good, `judges "node-2"`: other, "is 31s old": old} {
		if err := v.usable("node-1", now); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// TestPatchesAreFew: a report that changes nothing costs one request, and a heartbeat every 5 minutes.
// A message with a reading is not patched at each report.
func TestPatchesAreFew(t *testing.T) {
	for _, c := range []struct {
		node                   string
		reports, step, patches int
	}{{"ok", 81, 0, 5}, {"failed", 40, 1, 10}} { // 20 minutes, and 10
		p := begin(t)
		for i := range c.reports {
			p.detail = fmt.Sprint(" at ", i*c.step)
			p.must(15*time.Second, c.node, "ok")
		}
		p.did("patch nodes/status", c.patches)
	}
}

func TestTaintsAreSetAndLifted(t *testing.T) {
	for _, version := range []string{"v1", "v1beta2", "v1alpha3"} {
		p := begin(t)
		p.server.version = version
		p.must(0, "ok", "ok", "ok", "ok")
		p.tainted("")
		p.must(time.Minute, "failed", "ok", "failed", "ok")
		p.tainted("gpu-1:NoSchedule")
		p.must(time.Minute, "failed", "ok", "failed", "unhealthy")
		p.tainted("gpu-1:NoSchedule gpu-2-mig-1:NoSchedule gpu-2-mig-2:NoSchedule")
		p.must(time.Minute, "unhealthy", "ok", "ok", "unhealthy")
		p.must(time.Minute, "unhealthy", "ok", "ok", "unhealthy")
		p.tainted("gpu-2-mig-1:NoSchedule gpu-2-mig-2:NoSchedule")
		for _, r := range p.server.rules {
			s, o := r.Spec.DeviceSelector, r.OwnerReferences
			if *s.Driver != driver || *s.Pool != "node-1" || r.Spec.Taint.Key != taintKey || len(o) != 1 ||
				o[0].UID != "uid-of-node-1" || o[0].Kind != "Node" {
				t.Errorf("%+v", r)
			}
		}
		ill := p.server.tainted()
		p.must(time.Minute, "unknown") // the driver is gone
		p.tainted(ill)
		p.must(time.Minute, "ok", "ok", "ok") // GPU 3 was forgotten, but it is there
		p.tainted(ill)
		p.server.slices = p.server.slices[1:] // it was taken out
		p.must(time.Minute, "ok", "ok", "ok")
		p.tainted("")
	}
}

// TestRestartsLeaveNoOrphans: a new process lifts what an old one set.
func TestRestartsLeaveNoOrphans(t *testing.T) {
	p := begin(t)
	p.must(0, "failed", "failed", "failed")
	p.tainted("gpu-0:NoSchedule gpu-1:NoSchedule")
	p.restart(p.api, "NoSchedule")
	p.must(time.Minute, "failed", "ok", "failed")
	p.tainted("gpu-0:NoSchedule gpu-1:NoSchedule")
	p.did("create devicetaintrules", 2)
	p.must(time.Minute, "failed", "ok", "failed")
	p.tainted("gpu-1:NoSchedule")
	p.restart(p.api, "NoExecute")
	p.must(time.Minute, "failed", "ok", "failed")
	p.tainted("gpu-1:NoExecute")
	p.server.slices = nil // the driver was removed
	p.must(time.Minute, "ok", "ok", "ok")
	p.must(time.Minute, "ok", "ok", "ok")
	p.tainted("")
}

// TestTaintsOfOthersStay: rules of people, of other programs and of other nodes are never touched, not
// even with the name of ours.
func TestTaintsOfOthersStay(t *testing.T) {
	p := begin(t)
	other := "gpu-0"
	put := func(name string, labels map[string]string) {
		var r resourcev1.DeviceTaintRule
		r.Name, r.Labels = name, labels
		r.Spec = resourcev1.DeviceTaintRuleSpec{DeviceSelector: &resourcev1.DeviceTaintSelector{Device: &other},
			Taint: resourcev1.DeviceTaint{Key: taintKey, Effect: "None"}}
		p.server.put(r)
	}
	put("of-a-person", nil)
	put("of-another-program", map[string]string{managedBy: "other", nodeLabel: hash("node-1"), uuidLabel: "GPU-1"})
	put("of-another-node", map[string]string{managedBy: manager, nodeLabel: hash("node-2"), uuidLabel: "GPU-1"})
	put("gpusteward-"+hash("node-1", "node-1", "gpu-0", "NoSchedule"), nil)
	before := p.server.tainted()
	for range 3 {
		p.must(time.Minute, "ok", "ok")
	}
	p.tainted(before)
	p.fails("it exists", time.Minute, "failed", "failed")
	p.tainted(before)
	for range 3 {
		p.must(time.Minute, "ok", "ok")
	}
	p.tainted(before)
	p.did("delete devicetaintrules", 0)
}

// TestFailures: one failing call does not keep the others from being made.
func TestFailures(t *testing.T) {
	p := begin(t)
	for i, call := range []string{"list devicetaintrules", "list resourceslices", "create devicetaintrules"} {
		p.server.fail = call
		p.fails("500 it fails", time.Minute, "failed", "failed")
		p.is(illNode, time.Duration(i)*time.Minute)
		p.tainted("")
	}
	p.server.fail = "patch"
	p.fails("it fails", 10*time.Minute, "failed", "failed")
	p.tainted("gpu-0:NoSchedule")
	p.server.fail = "delete"
	p.pass(time.Minute, "ok", "ok")
	p.fails("it fails", time.Minute, "ok", "ok")
	p.tainted("gpu-0:NoSchedule")
	p.server.fail = ""
	p.must(time.Minute, "ok", "ok")
	p.tainted("")
}

func TestNoDeviceTaintRules(t *testing.T) {
	p := begin(t)
	p.server.version = "v2"
	p.fails("enable device taints", 0, "failed", "failed")
	p.is(illNode, 0)
}

// TestAgent asks the real agent about a simulated host, and servers that are none.
func TestAgent(t *testing.T) {
	dir := t.TempDir()
	scenario := filepath.Join(dir, "one.yml")
	if err := os.WriteFile(scenario, []byte("gpus: [{model: h100, load: idle}]\n"+
		"faults: [{at: 2s, for: 10m, kind: reset_required, gpu: 0}]\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("../../../gpusteward", "--demo="+scenario, "--runtime.dir="+dir, "--state.dir="+dir,
		"--web.listen-address=127.0.0.1:0")
	cmd.Env = append(os.Environ(), "NODE_NAME=node-1")
	if err := cmd.Start(); err != nil {
		t.Fatalf("%v: run make build", err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	ask := agent(filepath.Join(dir, "agent/control.sock"))
	for end := time.Now().Add(60 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		v, err := ask(t.Context())
		if err == nil && v.usable("node-1", time.Now()) == nil && stateOf(v.Status) == unhealthy && len(v.GPUs) == 1 &&
			stateOf(v.GPUs[0].Status) == unhealthy && strings.HasPrefix(v.GPUs[0].UUID, "GPU-") &&
			strings.Contains(v.message(), ": ") {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%+v, %v", v, err)
		}
	}
}

func TestAnswersThatAreNoVerdict(t *testing.T) {
	if _, err := agent(filepath.Join(t.TempDir(), "none"))(t.Context()); err == nil {
		t.Error("no agent is a verdict")
	}
	for want, handler := range map[string]http.HandlerFunc{
		"503":          func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) },
		"invalid":      func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>")) },
		"no":           func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("{}")) },
		"unexpected e": func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 0)) },
		"invalid char": func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 8<<20)) },
	} {
		socket := filepath.Join(t.TempDir(), "s")
		l, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		s := &http.Server{Handler: handler}
		go s.Serve(l)
		if _, err := agent(socket)(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
		_ = s.Close()
	}
}

func TestMessagesAreBounded(t *testing.T) {
	var v verdict
	if err := json.Unmarshal([]byte(`{"findings": [{"check": "a", "message": "`+strings.Repeat("é\\u001b", 500)+`"}]}`),
		&v); err != nil {
		t.Fatal(err)
	}
	if m := v.message(); len(m) > longest || !strings.HasSuffix(m, "...") || strings.ContainsRune(m, 0x1b) {
		t.Errorf("%d bytes: %q", len(m), m)
	}
}

func TestHealthCommandLine(t *testing.T) {
	t.Setenv("NODE_NAME", "")
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	for args, want := range map[string]string{
		"health":                           "--node",
		"health --node=a --interval=1s":    "--interval",
		"health --node=a --hold=-1s":       "--hold",
		"health --node=a --taint=NoGPU":    "--taint",
		"health --node=a":                  "KUBERNETES_SERVICE_HOST",
		"health --node=a --taint=NoGPU --": "--taint",
	} {
		var out strings.Builder
		if status := run(t.Context(), strings.Fields(args), &out); status != 2 || !strings.Contains(out.String(), want) {
			t.Errorf("%q: %d, %s, want %q", args, status, out.String(), want)
		}
	}
}
