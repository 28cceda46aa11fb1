//go:build servers

package integration

import (
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gpusteward/internal/fixture"
)

// often sets the shortest intervals: these tests are about the chain, not about waiting.
const often = "collectors: {fast: 500ms, medium: 500ms, slow: 500ms}\n"

// farther is the time that something may take through three servers on a busy machine. Faults last half a minute, and
// alerts keep firing after them.
const farther = 3 * time.Minute

// within waits until cond holds, for as long as the chain may take.
func within(t *testing.T, what string, cond func() bool) {
	t.Helper()
	fixture.Until(t, farther, what, cond)
}

// A chain is an agent, Prometheus, Alertmanager and the receiver of its messages.
type chain struct {
	*testing.T
	told         *receiver
	alertmanager string
}

func newChain(t *testing.T) chain {
	t.Parallel()
	installed(t, "prometheus", "prometheus-alertmanager")
	c := chain{T: t}
	c.told, c.alertmanager = startReceiver(t)
	t.Cleanup(func() {
		if t.Failed() {
			for _, m := range c.told.all() {
				t.Logf("told: %+v", m)
			}
		}
	})
	return c
}

// becomes waits until the last message about each alert is as wanted: by its name, its subject and its status.
func (c chain) becomes(want map[string]string) {
	c.Helper()
	missing := map[string]string{}
	defer func() {
		if c.Failed() {
			c.Logf("not so: %v", missing)
		}
	}()
	within(c.T, fmt.Sprint("told of ", want), func() bool {
		clear(missing)
		for name, state := range want {
			if got := c.told.state(name); got != state {
				missing[name] = got
			}
		}
		return len(missing) == 0
	})
}

// suppressed waits until Alertmanager has an alert of a GPU that others
// inhibit, and returns the names of these, each once.
func (c chain) suppressed(which func(a known) bool) (by []string) {
	c.Helper()
	within(c.T, "the alert is silenced", func() bool {
		all, names := alertsAt(c.T, c.alertmanager), map[string]string{}
		for _, a := range all {
			names[a.Fingerprint] = a.Labels["alertname"]
		}
		by = nil
		for _, a := range all {
			if which(a) && a.Status.State == "suppressed" {
				for _, f := range a.Status.InhibitedBy {
					by = append(by, names[f])
				}
			}
		}
		return len(by) > 0
	})
	return by
}

// TestChainByRules sends the faults of a scenario all the way: from the agent, by TLS and with a password, to
// Prometheus with the shipped rules, to Alertmanager with the shipped configuration, to the receiver.
func TestChainByRules(t *testing.T) {
	c := newChain(t)
	web := fixture.Config(t, "tls_server_config: {cert_file: cert.pem, key_file: key.pem}\n"+
		"basic_auth_users: {prometheus: "+sesame+"}\n")
	tlsFiles(t, filepath.Dir(web))
	a := start(t, "--demo=testdata/scenario/chain.yml", "--config.file="+fixture.Config(t, often),
		"--web.config.file="+web).listening()
	startPrometheus(t, c.alertmanager, a.url, true, "scheme: https",
		"tls_config: {ca_file: "+filepath.Join(filepath.Dir(web), "cert.pem")+"}",
		"basic_auth: {username: prometheus, password: open sesame}")
	c.becomes(map[string]string{"GPUPowerBrake": "1 firing, 2 firing", "UnhookedProcess": "0 triton firing",
		"GPUECCUncorrectable": "3 firing"})
	c.becomes(map[string]string{"GPUMissing": " firing, 3 firing"}) // of the node and of the GPU
	by := c.suppressed(func(a known) bool {
		return a.Labels["alertname"] == "GPUECCUncorrectable" && a.Labels["gpu"] == "3"
	})
	if !slices.ContainsFunc(by, func(name string) bool { return name == "GPUMissing" || name == "GPULost" }) {
		t.Errorf("the GPU that is gone has its ECC errors silenced by %q", by)
	}
	c.becomes(map[string]string{"GPUPowerBrake": "1 resolved, 2 resolved", "UnhookedProcess": "0 triton resolved",
		"GPUMissing": " resolved, 3 resolved", "GPULost": "3 resolved"})
	// Alertmanager says nothing of an alert that ends while it is inhibited.
	within(t, "nothing fires", func() bool {
		return !slices.ContainsFunc(alertsAt(t, c.alertmanager), func(a known) bool { return !degraded(a.Labels) })
	})

	team, page := []string{"GPUPowerBrake", "UnhookedProcess", "GPUECCUncorrectable"}, []string{"GPULost", "GPUMissing"}
	together := false
	for _, m := range c.told.all() {
		name := m.GroupLabels["alertname"]
		if degraded(m.GroupLabels) {
			continue
		}
		fixture.If(t, m.Receiver == "team" && !slices.Contains(team, name) ||
			m.Receiver == "page" && !slices.Contains(page, name) || m.GroupLabels["instance"] != hostName(),
			"%s of %v is told to %s", name, m.GroupLabels, m.Receiver)
		together = together || name == "GPUPowerBrake" && len(m.Alerts) == 2
		for _, a := range m.Alerts {
			for _, what := range []string{"summary", "description", "action", "runbook_url"} {
				if a.Annotations[what] == "" || strings.Contains(a.Annotations[what], "{{") {
					t.Errorf("%s has the %s %q", name, what, a.Annotations[what])
				}
			}
			fixture.If(t, a.Labels["source"] != "" || a.Labels["check"] == "" || a.Labels["severity"] == "",
				"%s has the labels %v", name, a.Labels)
		}
	}
	// One may be told before or after the other: a busy agent reads one GPU later.
	fixture.Equal(t, together, true, "no message tells of both GPUs that are slowed down")
	fixture.Equal(t, c.told.last("GPUECCUncorrectable")["3"].Annotations["description"],
		"GPU 3 had 1 uncorrectable ECC error in 5 minutes.", "it says")
}

// degraded says whether an alert is that of the agent, which with short intervals fires too easily on a busy machine.
func degraded(labels map[string]string) bool { return labels["alertname"] == "AgentDegraded" }

// pushing starts an agent that itself sends the alert of a lost GPU to Alertmanager.
func (c chain) pushing(args ...string) *agent {
	c.Helper()
	config := fixture.Config(c.T, often+"health: {labels: {instance: '{host}'}, alertmanagers: ["+c.alertmanager+"]}\n")
	return start(c.T, append(args, "--demo=testdata/scenario/chain_push.yml", "--config.file="+config)...).listening()
}

// TestChainByPush has the agent send alerts to Alertmanager itself, while Prometheus scrapes it without the
// rules. The fault is latched: an acknowledgement ends it.
func TestChainByPush(t *testing.T) {
	c := newChain(t)
	dir := t.TempDir()
	a := c.pushing("--runtime.dir=" + dir)
	startPrometheus(t, c.alertmanager, a.url, false)
	c.becomes(map[string]string{"GPULost": "1 firing"})
	status := run(t.Context(), []string{"ack", "gpu_lost", "1", "--runtime.dir=" + dir}, io.Discard, a.log)
	fixture.Stop(t, status != 0, "the fault is not acknowledged: %d", status)
	c.becomes(map[string]string{"GPULost": "1 resolved"})
	for _, m := range c.told.all() {
		if m.GroupLabels["alertname"] == "AgentDegraded" {
			continue // hurried, it fires too easily on a busy machine
		}
		fixture.Equal(t, m.GroupLabels["alertname"], "GPULost", "a GPU that is lost is told of as … too")
		for _, a := range m.Alerts {
			fixture.If(t, m.Receiver != "page" || m.GroupLabels["instance"] != hostName() ||
				a.Labels["source"] != "gpusteward" || a.Annotations["summary"] == "" ||
				a.Annotations["runbook_url"] == "", "told %+v", m)
		}
	}
}

// TestChainByBoth has the agent push alerts and Prometheus evaluate the rules, which nobody should configure.
// Both have the same labels, and Alertmanager inhibits Prometheus's alert if the agent sends the same one.
func TestChainByBoth(t *testing.T) {
	c := newChain(t)
	startPrometheus(t, c.alertmanager, c.pushing().url, true)
	by := c.suppressed(func(a known) bool { return a.Labels["alertname"] == "GPULost" && a.Labels["source"] == "" })
	fixture.Equal(t, slices.Compact(by)[0], "GPULost", "Prometheus's alert about the lost GPU is silenced by %q", by)
	labels := map[string]map[string]string{}
	for _, a := range alertsAt(t, c.alertmanager) {
		if a.Labels["alertname"] == "GPULost" {
			labels[a.Labels["source"]] = a.Labels
		}
	}
	maps.Copy(labels[""], map[string]string{"source": "gpusteward", "node": hostName()})
	fixture.Equal(t, fmt.Sprint(labels["gpusteward"]), fmt.Sprint(labels[""]), "the agent's alert has the labels")
	c.becomes(map[string]string{"GPULost": "1 firing"})
	for _, m := range c.told.all() {
		for _, a := range m.Alerts {
			fixture.If(t, a.Labels["alertname"] == "GPULost" && a.Labels["source"] != "gpusteward",
				"told twice: %+v", m)
		}
	}
}

// TestChainSilence: drain silences the alerts of a GPU or of the host at an Alertmanager, says at which it did not,
// and waits for none. resume ends that, although another agent did it.
func TestChainSilence(t *testing.T) {
	c := newChain(t)
	deaf := fixture.Value(net.Listen("tcp", "127.0.0.1:0"))(t) // it never answers
	defer deaf.Close()
	dir := t.TempDir()
	file := fixture.Config(t, often+"health: {labels: {cluster: a}, alertmanagers: ["+c.alertmanager+", http://"+
		deaf.Addr().String()+"]}\nweb: {external_url: 'http://{host}:1/gpu/'}\n")
	agent := func() *agent {
		return start(t, "--demo=testdata/scenario/chain_push.yml", "--config.file="+file, "--runtime.dir="+dir).listening()
	}
	order := func(args ...string) string {
		t.Helper()
		status, out, errs := gpusteward(t, append(args, "--runtime.dir="+dir)...)
		fixture.Equal(t, status, 0, "%q: %s", args, errs)
		return out
	}
	lost := func() (a known) {
		for _, a = range alertsAt(t, c.alertmanager) {
			if a.Labels["alertname"] == "GPULost" {
				return a
			}
		}
		return known{}
	}
	first := agent()
	within(t, "GPULost fires", func() bool { return lost().Status.State == "active" })
	fixture.Equal(t, lost().GeneratorURL, "http://"+hostName()+":1/gpu/#gpu="+lost().Labels["uuid"], "its page")
	for i, gpu := range []string{"0", "1", "", ""} { // the last time replaces the silence before
		args, of := []string{"drain", "--silence=2h"}, hostName()
		if gpu != "" {
			args, of = append(args, "--gpu="+gpu), "GPU "+gpu+" of "+of
		}
		said := order(args...)
		for _, want := range []string{"drained.\nThe alerts of " + of + " are silenced until ", " at " + c.alertmanager + ".",
			"not silenced at http://" + deaf.Addr().String() + ": no answer within 5s."} {
			fixture.Contains(t, said, want, "drain")
		}
		within(t, "the lost GPU is silenced", func() bool { return len(lost().Status.SilencedBy) == min(i, 2) })
	}
	fixture.Equal(t, first.stop(), 0, "the agent ends")
	agent()
	within(t, "it takes orders", func() bool { return fixture.Error(os.Stat(filepath.Join(dir, "agent", "control.sock"))) == nil })
	said := order("resume")
	for _, want := range []string{"resumed.\n", "is ended at " + c.alertmanager + ".",
		"may remain until its end at http://" + deaf.Addr().String()} {
		fixture.Contains(t, said, want, "resume")
	}
	after := fixture.Get(t, c.alertmanager+"/api/v2/silences")
	fixture.Equal(t, strings.Contains(after, `"state":"active"`), false, "silences are left: %s", after)
	fixture.AtLeast(t, strings.Count(after, `"state":"expired"`), 3, "silences that ended")
}

// state returns the last message about alerts of a name as text, by GPU and tenant.
func (r *receiver) state(name string) string {
	last := r.last(name)
	var all []string
	for _, of := range slices.Sorted(maps.Keys(last)) {
		all = append(all, of+" "+last[of].Status)
	}
	return strings.Join(all, ", ")
}
