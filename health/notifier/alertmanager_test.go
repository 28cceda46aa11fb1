package notifier

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/alertmanager/api/v2/models"

	"gpusteward/health"
)

const shippedConfig = "../../deploy/alertmanager.yml"

// tool returns the path of one of Alertmanager's programs.
func tool(t testing.TB, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Fatalf("%v: make tools installs it (Debian package prometheus-alertmanager)", err)
	}
	return path
}

// A server is a real Alertmanager on loopback.
type server struct {
	t      testing.TB
	url    *url.URL
	config string
	cmd    *exec.Cmd
	log    bytes.Buffer // read only after it has ended
}

// startAlertmanager starts one; it ends with the test.
func startAlertmanager(t testing.TB, config string) *server {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	s := &server{t: t, url: &url.URL{Scheme: "http", Host: l.Addr().String()}, config: config}
	t.Cleanup(func() {
		s.kill()
		if t.Failed() {
			t.Logf("alertmanager:\n%.4000s", s.log.String())
		}
	})
	s.start()
	return s
}

func (s *server) start() {
	s.t.Helper()
	path := tool(s.t, "prometheus-alertmanager")
	s.cmd = exec.Command(path, "--config.file="+s.config, "--storage.path="+s.t.TempDir(),
		"--web.listen-address="+s.url.Host, "--cluster.listen-address=", "--log.level=warn")
	s.cmd.Stderr = &s.log
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	eventually(s.t, "alertmanager is ready", 20*time.Second, func() bool {
		r, err := http.Get(s.url.String() + "/-/ready")
		if err == nil {
			r.Body.Close()
		}
		return err == nil && r.StatusCode == http.StatusOK
	})
}

func (s *server) kill() {
	if s.cmd == nil || s.cmd.Process == nil {
		return // it never started
	}
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
}

// alerts returns those that fire there.
func (s *server) alerts(query string) models.GettableAlerts {
	s.t.Helper()
	r, err := http.Get(s.url.String() + "/api/v2/alerts" + query)
	if err != nil {
		s.t.Fatal(err)
	}
	defer r.Body.Close()
	var all models.GettableAlerts
	if err := json.NewDecoder(r.Body).Decode(&all); err != nil {
		s.t.Fatal(err)
	}
	return slices.DeleteFunc(all, func(a *models.GettableAlert) bool { return !time.Time(*a.EndsAt).After(time.Now()) })
}

// eventually waits until a condition holds.
func eventually(t testing.TB, what string, limit time.Duration, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("after %v it does not hold that %s", limit, what)
		}
	}
}

// runNotifier runs a notifier until the test ends.
func runNotifier(t testing.TB, times timings, urls ...string) *Notifier {
	t.Helper()
	n, err := New(Options{URLs: urls, Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		t.Fatal(err)
	}
	n.timings = times
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = n.Run(ctx) }()
	t.Cleanup(func() { stop(); <-done })
	return n
}

// pushed returns an alert as the engine makes it.
func pushed(name, severity, check, uuid string) health.Alert {
	return health.Alert{Labels: map[string]string{"alertname": name, "severity": severity, "check": check, "source": "gpusteward", "node": "n1", "gpu": "0", "uuid": uuid},
		Annotations: map[string]string{"summary": "Of " + name + ".", "description": "<&> \u00e9"}, Starts: time.Now()}
}

func TestShippedAlertmanagerConfig(t *testing.T) {
	amtool := tool(t, "amtool")
	if out, err := exec.Command(amtool, "check-config", shippedConfig).CombinedOutput(); err != nil {
		t.Errorf("amtool check-config: %v\n%s", err, out)
	}
	for severity, want := range map[string]string{"emergency": "page", "critical": "page", "warning": "team", "info": "nobody"} {
		out, err := exec.Command(amtool, "config", "routes", "test", "--config.file="+shippedConfig, "--verify.receivers="+want, "alertname=A", "severity="+severity).CombinedOutput()
		if err != nil {
			t.Errorf("%s goes to %s, want %s", severity, out, want)
		}
	}
}

// An alert fires, arrives with all that it says, and is resolved, through the
// shipped configuration; only its receivers' address and the five minutes
// between messages of a group are others.
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
		if err := json.NewDecoder(r.Body).Decode(&m); err != nil {
			t.Error(err)
		}
		messages <- m
	}))
	defer receiver.Close()
	am := startAlertmanager(t, configured(t, "http://127.0.0.1:5001", receiver.URL, "group_interval: 5m", "group_interval: 1s"))
	n := runNotifier(t, defaultTimings, am.url.String())
	a := pushed("GPUECCUncorrectable", "critical", "ecc_uncorrectable", "GPU-1")
	for _, status := range []string{"firing", "resolved"} {
		if status == "resolved" {
			a = resolved(a)
		}
		n.Tell([]health.Alert{a})
		select {
		case m := <-messages:
			if got := m.Alerts[0]; m.path != "/page" || len(m.Alerts) != 1 || got.Status != status || !maps.Equal(got.Labels, a.Labels) || !maps.Equal(got.Annotations, a.Annotations) {
				t.Errorf("%+v, want %s %+v", m, status, a)
			}
		case <-time.After(30 * time.Second):
			t.Fatalf("no message that it is %s", status)
		}
	}
}

// configured returns a copy of the shipped configuration with each of old
// replaced by the new that follows it.
func configured(t testing.TB, replace ...string) string {
	t.Helper()
	text, err := os.ReadFile(shippedConfig)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(replace); i += 2 {
		if !bytes.Contains(text, []byte(replace[i])) {
			t.Fatalf("%s has no %s", shippedConfig, replace[i])
		}
	}
	path := filepath.Join(t.TempDir(), "alertmanager.yml")
	if err := os.WriteFile(path, []byte(strings.NewReplacer(replace...).Replace(string(text))), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// The rules of who silences whom, as shipped: those that are pushed have the
// label node, those of Prometheus instance.
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
		{with(prometheus(pushed("GPUStewardDown", "critical", "", ""), "n5:9836"), "node", "n5"), false},
		{with(pushed("OfTheDeadToo", "critical", "z", "GPU-8"), "node", "n5"), true},

		{pushed("Both", "critical", "b", "GPU-9"), false},
		{prometheus(pushed("Both", "critical", "b", "GPU-9"), "n1:9836"), true},
		{prometheus(pushed("Both", "critical", "b", "GPU-10"), "n1:9836"), false},
		{with(pushed("BothNode", "critical", "b", ""), "gpu", ""), false},
		{with(prometheus(pushed("BothNode", "critical", "b", ""), "n1:9836"), "gpu", "", "node", "n1"), true},
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
	eventually(t, "what is silenced is as it should be", 20*time.Second, func() bool {
		got := map[string]*models.GettableAlert{}
		for _, a := range am.alerts("") {
			got[a.Labels["case"]] = a
		}
		wrong = nil
		for i, c := range cases {
			if a := got[fmt.Sprint(i)]; a == nil || *a.Status.State == "unprocessed" || len(a.Status.InhibitedBy) > 0 != c.want {
				wrong = append(wrong, fmt.Sprint(i, " ", c.a.Labels["alertname"]))
			}
		}
		return wrong == nil
	})
}
