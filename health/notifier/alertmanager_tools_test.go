//go:build tools

package notifier

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/alertmanager/api/v2/models"
	"go.yaml.in/yaml/v3"

	"gpusteward/health"
	"gpusteward/internal/fixture"
)

func TestShippedAlertmanagerConfig(t *testing.T) {
	amtool := tool(t, "amtool")
	out, err := exec.Command(amtool, "check-config", shippedConfig).CombinedOutput()
	fixture.If(t, err != nil || !strings.Contains(string(out), "- 1 templates\n"),
		"amtool check-config: %v\n%s", err, out)
	for severity, want := range map[string]string{"emergency": "page", "critical": "page", "warning": "team",
		"info": "nobody"} {
		for cluster, of := range map[string]string{"": "", "other": "", "example": "example-"} {
			for _, alert := range []string{"A", "IBPortDown"} {
				if want == "nobody" {
					of = ""
				}
				out, err := exec.Command(amtool, "config", "routes", "test", "--config.file="+shippedConfig,
					"--verify.receivers="+of+want, "alertname="+alert, "cluster="+cluster,
					"severity="+severity).CombinedOutput()
				if err != nil {
					t.Errorf("%s, %s of %q goes to %s, want %s", alert, severity, cluster, out, of+want)
				}
			}
		}
	}
}

// Each example of a receiver says all that its reader needs, and a program's name does nothing there.
func TestShippedMessages(t *testing.T) {
	t.Parallel()
	var shipped struct{ Receivers []map[string]any }
	fixture.Must(t, yaml.Unmarshal(fixture.Value(os.ReadFile(shippedConfig))(t), &shipped))
	one := map[string]any{"status": "firing", "startsAt": "2026-01-02T03:04:05Z", "generatorURL": "http://n1:1/#gpu=GPU-3",
		"labels": map[string]string{"alertname": "GPULost", "severity": "emergency", "instance": "n1:9836"},
		"annotations": map[string]string{"summary": "n1, GPU 3: The GPU is lost.", "description": "<!channel> & it was 7.",
			"action": "Power-cycle the host.", "runbook_url": "https://book#gpulost", "workload": "slurm:4711.0"}}
	other := maps.Clone(one)
	other["status"] = "resolved"
	messages := 0
	for _, alerts := range [][]any{{one}, {one, other}} {
		data := filepath.Join(t.TempDir(), "data.json")
		fixture.Must(t, os.WriteFile(data, fixture.Value(json.Marshal(map[string]any{"status": "firing", "alerts": alerts,
			"groupLabels": one["labels"], "commonLabels": one["labels"]}))(t), 0o600))
		var said strings.Builder
		var render func(key string, of any)
		render = func(key string, of any) {
			switch of := of.(type) {
			case map[string]any:
				for key, of := range of {
					render(key, of)
				}
			case []any:
				for _, of := range of {
					render(key, of)
				}
			case string:
				if strings.Contains(of, "{{") {
					kind := map[bool]string{true: "html", false: "text"}[key == "html"]
					out, err := exec.Command(tool(t, "amtool"), "template", "render", "--template.glob=../../deploy/*.tmpl",
						"--template.text="+of, "--template.type="+kind, "--template.data="+data).CombinedOutput()
					fixture.Must(t, err)
					said.Write(append(out, '\n'))
				}
			}
		}
		for _, r := range shipped.Receivers {
			said.Reset()
			if render("", r); said.Len() == 0 {
				continue
			}
			messages++
			for _, want := range []string{"emergency", "n1, GPU 3: The GPU is lost.", "it was 7.", "Power-cycle the host.",
				"https://book#gpulost", "http://n1:1/#gpu=GPU-3", "slurm:4711.0"} {
				fixture.Contains(t, said.String(), want, "the message to %s", r["name"])
			}
			fixture.Equal(t, strings.Contains(said.String(), "Resolved, was "), len(alerts) == 2, "an end is told to %s", r["name"])
			safe := strings.Contains(said.String(), "&lt;!channel&gt; &amp; it") || r["name"] == "example-pagerduty"
			fixture.Equal(t, safe, true, "the text to %s is escaped: %s", r["name"], &said)
		}
	}
	fixture.Equal(t, messages, 2*3, "messages are rendered")
}

// An alert fires, arrives with all its texts, and is resolved, through the shipped configuration. Only the address of
// the receivers and the five minutes between messages of a group are changed.
func TestAlertArrives(t *testing.T) {
	t.Parallel()
	type message struct {
		path   string
		Alerts []struct {
			Status              string
			Labels, Annotations map[string]string
		}
	}
	messages := make(chan message, 100)
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		m := message{path: r.URL.Path}
		err := json.NewDecoder(r.Body).Decode(&m)
		fixture.If(t, err != nil, "%v", err)
		messages <- m
	}))
	defer receiver.Close()
	am := startAlertmanager(t, configured(t, "http://127.0.0.1:5001", receiver.URL, "group_interval: 5m",
		"group_interval: 1s"))
	n := runNotifier(t, defaultTimings, am.url.String())
	a := pushed("GPUECCUncorrectable", "critical", "ecc_uncorrectable", "GPU-1")
	for _, status := range []string{"firing", "resolved"} {
		if status == "resolved" {
			a = resolved(a)
		}
		n.Tell([]health.Alert{a})
		select {
		case m := <-messages:
			if got := m.Alerts[0]; m.path != "/page" || len(m.Alerts) != 1 || got.Status != status ||
				!maps.Equal(got.Labels, a.Labels) || !maps.Equal(got.Annotations, a.Annotations) {
				t.Errorf("%+v, want %s %+v", m, status, a)
			}
		case <-time.After(time.Minute):
			t.Fatalf("no message that it is %s", status)
		}
	}
}

// A switch breaks a link of each host of a rack: through the shipped configuration, with shorter waits, that is one
// page. Another rack's host, whose page waits as long, shows when those of the rack would have come.
func TestARackPagesOnce(t *testing.T) {
	t.Parallel()
	pages := make(chan string, 100)
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var m struct{ GroupLabels map[string]string }
		err := json.NewDecoder(r.Body).Decode(&m)
		fixture.If(t, err != nil, "%v", err)
		pages <- m.GroupLabels["alertname"] + " of " + m.GroupLabels["rack"] + m.GroupLabels["instance"] + " to " + r.URL.Path
	}))
	defer receiver.Close()
	am := startAlertmanager(t, configured(t, "http://127.0.0.1:5001", receiver.URL, "group_wait: 90s", "group_wait: 3s",
		"group_wait: 5s", "group_wait: 100ms"))
	n := runNotifier(t, defaultTimings, am.url.String())
	var all []health.Alert
	port := func(node, rack string) health.Alert {
		a := pushed("IBPortDown", "critical", "ib_port", "")
		maps.Copy(a.Labels, map[string]string{"instance": node, "gpu": "", "device": "mlx5_0", "rack": rack, "cluster": "c"})
		return a
	}
	for _, node := range []string{"n1", "n2", "n3"} {
		all = append(all, port(node, "r1"))
	}
	n.Tell(all)
	fixture.Eventually(t, "Alertmanager has the hosts' alerts", func() bool { return len(am.alerts("")) == 3 })
	rack := pushed("RackInterconnectDown", "critical", "", "")
	maps.Copy(rack.Labels, map[string]string{"instance": "", "gpu": "", "rack": "r1", "cluster": "c"})
	n.Tell(append(all, rack, port("n9", "r2")))
	for _, want := range []string{"RackInterconnectDown of r1 to /page", "IBPortDown of r2n9 to /page"} {
		select {
		case got := <-pages:
			fixture.Equal(t, got, want, "it is")
		case <-time.After(time.Minute):
			t.Fatalf("no page: %s", want)
		}
	}
}

// The shipped inhibition rules apply to pushed alerts and to those of Prometheus.
func TestShippedInhibition(t *testing.T) {
	t.Parallel()
	am := startAlertmanager(t, configured(t, "http://127.0.0.1:5001", "http://127.0.0.1:1"))
	n := runNotifier(t, defaultTimings, am.url.String())
	with := func(a health.Alert, labels ...string) health.Alert {
		for i := 0; i < len(labels); i += 2 {
			a.Labels[labels[i]] = labels[i+1]
		}
		return a
	}
	prometheus := func(a health.Alert, instance string) health.Alert {
		return with(a, "source", "", "node", "", "instance", instance)
	}
	rack := func(a health.Alert, cluster, rack string) health.Alert {
		return with(a, "source", "", "node", "", "instance", "", "cluster", cluster, "rack", rack)
	}
	cases := []struct {
		a    health.Alert
		want bool // it is silenced
	}{
		{pushed("GPULost", "emergency", "gpu_lost", "GPU-1"), false},
		{pushed("GPUMissing", "emergency", "gpu_missing", "GPU-1"), false},
		{pushed("OfTheLost", "critical", "other", "GPU-1"), true},
		{pushed("OfAnother", "critical", "other", "GPU-2"), false},
		{with(pushed("OfTheNode", "critical", "other", ""), "gpu", ""), false},

		{pushed("Emergency", "emergency", "x", "GPU-3"), false},
		{pushed("Critical", "critical", "x", "GPU-3"), true},
		{pushed("Warning", "warning", "y", "GPU-3"), false},
		{pushed("Info", "info", "y", "GPU-3"), true},
		{with(pushed("OfALink", "info", "y", "GPU-3"), "link", "1"), false},
		{with(pushed("OfNoCheck", "info", "", "GPU-3"), "gpu", "0"), false},
		{pushed("PressureCritical", "critical", "p", "GPU-4"), false},
		{pushed("PressureWarning", "warning", "p", "GPU-4"), true},

		{prometheus(pushed("GPULost", "emergency", "gpu_lost", "GPU-5"), "n2:9836"), false},
		{prometheus(pushed("OfTheLostToo", "critical", "other", "GPU-5"), "n2:9836"), true},
		{prometheus(pushed("GPUStewardDown", "critical", "", ""), "n3:9836"), false},
		{prometheus(pushed("OfTheDead", "critical", "z", "GPU-6"), "n3:9836"), true},
		{prometheus(pushed("OfTheLiving", "critical", "z", "GPU-7"), "n4:9836"), false},
		{prometheus(pushed("GPUStewardDown", "critical", "", ""), "n5:9836"), false},
		{with(pushed("OfTheDeadToo", "critical", "z", "GPU-8"), "instance", "n5:9836"), true},

		{pushed("Both", "critical", "b", "GPU-9"), false},
		{prometheus(pushed("Both", "critical", "b", "GPU-9"), "n1:9836"), true},
		{prometheus(pushed("Both", "critical", "b", "GPU-10"), "n1:9836"), false},
		{with(pushed("Tenant", "warning", "t", "GPU-11"), "tenant", "a"), false},
		{with(prometheus(pushed("Tenant", "warning", "t", "GPU-11"), "n1:9836"), "tenant", "a"), true},
		{with(prometheus(pushed("Tenant", "warning", "t", "GPU-11"), "n1:9836"), "tenant", "b"), false},
		{rack(pushed("RackInterconnectDown", "critical", "", ""), "c1", "r1"), false},
		{with(pushed("IBPortDown", "critical", "ib_port", ""), "cluster", "c1", "rack", "r1", "instance", "n7"), true},
		{rack(pushed("IBPortDown", "critical", "ib_port", ""), "c1", "r1"), true},
		{rack(pushed("IBPortDown", "critical", "ib_port", ""), "c1", "r2"), false},
		{rack(pushed("IBPortDown", "critical", "ib_port", ""), "c2", "r1"), false},
		{rack(pushed("GPUPowerBrake", "critical", "power_brake", ""), "c1", "r1"), false},
		{rack(pushed("RackDown", "critical", "", ""), "c1", "r3"), false},
		{with(rack(pushed("GPUStewardDown", "critical", "", ""), "c1", "r3"), "instance", "n8:9836"), true},
		{with(rack(pushed("OfADeadRack", "critical", "z", "GPU-12"), "c1", "r3"), "instance", "n8:9836"), true},

		{with(pushed("Budget", "warning", "", ""), "cluster", "c1", "slo", "gpus", "window", "1h"), false},
		{with(pushed("Budget", "warning", "", ""), "cluster", "c1", "slo", "gpus", "window", "6h"), true},
		{with(pushed("Budget", "warning", "", ""), "cluster", "c2", "slo", "gpus", "window", "6h"), false},
		{with(pushed("Budget", "warning", "", ""), "cluster", "c2", "slo", "gpus", "window", "3d"), true},
		{with(pushed("Budget", "warning", "", ""), "cluster", "c1", "slo", "scrapes", "window", "3d"), false},

		{with(pushed("BothNode", "critical", "b", ""), "gpu", ""), false},
		{with(prometheus(pushed("BothNode", "critical", "b", ""), "n1:9836"), "gpu", ""), true},
		{with(prometheus(pushed("BothNode", "critical", "b", ""), "n6:9836"), "gpu", "", "node", "n6"), false},
	}
	var all []health.Alert
	for i := range cases {
		all = append(all, with(cases[i].a, "case", fmt.Sprint(i)))
	}
	n.Tell(all)
	var wrong []string
	defer func() {
		if t.Failed() {
			t.Logf("wrong: %q", wrong)
		}
	}()
	fixture.Eventually(t, "what is silenced is as it should be", func() bool {
		got := map[string]*models.GettableAlert{}
		for _, a := range am.alerts("") {
			got[a.Labels["case"]] = a
		}
		wrong = nil
		for i, c := range cases {
			if a := got[fmt.Sprint(i)]; a == nil || *a.Status.State == "unprocessed" ||
				len(a.Status.InhibitedBy) > 0 != c.want {
				wrong = append(wrong, fmt.Sprint(i, " ", c.a.Labels["alertname"]))
			}
		}
		return wrong == nil
	})
}
