package notifier

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/alertmanager/api/v2/models"

	"gpusteward/collectors"
	"gpusteward/collectors/host"
	"gpusteward/collectors/links"
	"gpusteward/health"
	"gpusteward/internal/fixture"
)

const shippedConfig = "../../deploy/alertmanager.yml"

// tool returns the path of one of Alertmanager's programs.
func tool(t testing.TB, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	fixture.Need(t, err != nil, false, "%v: make tools installs it (Debian package prometheus-alertmanager)", err)
	return path
}

// A server is a real Alertmanager on loopback.
type server struct {
	t      testing.TB
	url    *url.URL
	config string
	cmd    *exec.Cmd
	log    bytes.Buffer // read only after its end
}

// startAlertmanager starts an Alertmanager, which ends with the test.
func startAlertmanager(t testing.TB, config string) *server {
	t.Helper()
	s := &server{t: t, url: &url.URL{Scheme: "http", Host: fixture.FreeAddress(t)}, config: config}
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
	fixture.Must(s.t, s.cmd.Start())
	fixture.Eventually(s.t, "alertmanager is ready", func() bool {
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

// alerts returns the alerts that fire there.
func (s *server) alerts(query string) models.GettableAlerts {
	s.t.Helper()
	r := fixture.Value(http.Get(s.url.String() + "/api/v2/alerts" + query))(s.t)
	defer r.Body.Close()
	var all models.GettableAlerts
	fixture.Must(s.t, json.NewDecoder(r.Body).Decode(&all))
	return slices.DeleteFunc(all, func(a *models.GettableAlert) bool { return !time.Time(*a.EndsAt).After(time.Now()) })
}

// runNotifier runs a notifier until the test ends.
func runNotifier(t testing.TB, times timings, urls ...string) *Notifier {
	t.Helper()
	n := fixture.Value(New(Options{URLs: urls, Log: slog.New(slog.NewTextHandler(io.Discard, nil))}))(t)
	n.timings = times
	fixture.Running(t, n.Run)
	return n
}

// pushed returns an alert in the form of the engine.
func pushed(name, severity, check, uuid string) health.Alert {
	return health.Alert{Labels: map[string]string{"alertname": name, "severity": severity, "check": check,
		"source": "gpusteward", "node": "n1", "instance": "n1:9836", "gpu": "0", "uuid": uuid},
		Annotations: map[string]string{"summary": "Of " + name + ".", "description": "<&> \u00e9"}, Starts: time.Now()}
}

// configured returns a copy of the shipped configuration with replacements, given as pairs of old and new texts.
func configured(t testing.TB, replace ...string) string {
	t.Helper()
	text := fixture.Value(os.ReadFile(shippedConfig))(t)
	for i := 0; i < len(replace); i += 2 {
		fixture.Need(t, bytes.Contains(text, []byte(replace[i])), true, "%s has no %s", shippedConfig, replace[i])
	}
	path := filepath.Join(t.TempDir(), "alertmanager.yml")
	fixture.Must(t, os.WriteFile(path, []byte(strings.NewReplacer(replace...).Replace(string(text))), 0o600))
	return path
}

// turned resolves the alert of this name if it fires, and has another one fire if it does not.
func turned(fires map[string]health.Alert, name string, other health.Alert) health.Alert {
	a, on := fires[name]
	if delete(fires, name); on {
		return resolved(a)
	}
	fires[name] = other
	return other
}

// logged is a monitor of a host whose kernel logs what the test says.
type logged struct {
	*health.Monitor
	node   string
	kernel chan host.Record
}

func logHost(t *testing.T, node string, gpus int, tell func([]health.Alert)) *logged {
	t.Helper()
	var samples []collectors.Sample
	for i := range gpus {
		id := strconv.Itoa(i)
		samples = append(samples, collectors.Sample{Metric: collectors.Up, Labels: []string{id, "GPU-" + id}, Value: 1},
			collectors.Sample{Metric: links.PCIDevicePresent, Labels: []string{id, "GPU-" +
				id, fmt.Sprintf("0000:%02x:00.0", i), "gpu"}, Value: 1})
	}
	h := &logged{node: node, kernel: make(chan host.Record)}
	h.Monitor = health.NewMonitor(health.Options{
		Samples: func() []collectors.Sample { return slices.Clone(samples) },
		Kernel: func(ctx context.Context, each func(host.Record)) error {
			for {
				select {
				case r := <-h.kernel:
					each(r)
				case <-ctx.Done():
					return nil
				}
			}
		},
		Tell: tell, Boot: "b", Node: node, Log: slog.New(slog.DiscardHandler),
	}, health.Settings{})
	fixture.Running(t, h.Run)
	return h
}
