//go:build servers

package integration

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"gpusteward/internal/fixture"
)

// installed skips a test, and says so, if a server that it needs is not installed.
func installed(t *testing.T, programs ...string) {
	t.Helper()
	for _, name := range programs {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("NOT TESTED: %v; make tools installs it", err)
		}
	}
}

// startServer starts a server that ends with the test, waits until it is ready, and returns its URL.
func startServer(t *testing.T, program string, args ...string) string {
	t.Helper()
	address, log := fixture.FreeAddress(t), new(transcript)
	cmd := exec.Command(program, append(args, "--web.listen-address="+address, "--log.level=warn")...)
	cmd.Stdout, cmd.Stderr = log, log
	fixture.Must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("%s:\n%.4000s", program, log)
		}
	})
	eventually(t, program+" is ready", func() bool {
		r, err := http.Get("http://" + address + "/-/ready")
		if err == nil {
			r.Body.Close()
		}
		return err == nil && r.StatusCode == http.StatusOK
	})
	return "http://" + address
}

// scale is the factor by which rules are hurried: they wait for minutes.
const scale = 20

var (
	waits     = regexp.MustCompile(`(?m)^( *(?:for|keep_firing_for|interval): )(\w+)$`)
	ranges    = regexp.MustCompile(`\[(\d\w*)(?::(\w+))?\]`)
	promUnits = regexp.MustCompile(`(\d+)([dhms])`)
)

// asksFor returns a Prometheus's answer to a query, by the values of a label.
// If several series have a value, the last one counts.
func asksFor(t *testing.T, prometheus, query, label string) map[string]float64 {
	t.Helper()
	var answer struct {
		Error string
		Data  struct {
			Result []struct {
				Metric map[string]string
				Value  [2]any
			}
		}
	}
	if err := json.Unmarshal([]byte(fixture.Get(t, prometheus+"/api/v1/query?query="+url.QueryEscape(query))),
		&answer); err != nil || answer.Error != "" {
		t.Fatalf("%s: %v%s", query, err, answer.Error)
	}
	all := map[string]float64{}
	for _, r := range answer.Data.Result {
		v, err := strconv.ParseFloat(fmt.Sprint(r.Value[1]), 64)
		fixture.Stop(t, err != nil, "%s: %v", query, err)
		all[r.Metric[label]] = v
	}
	return all
}

// shipped returns a configuration with some of its texts replaced.
func shipped(t *testing.T, path string, texts map[string]string) string {
	t.Helper()
	config := content(t, path)
	for from, to := range texts {
		fixture.Contains(t, config, from, "%s", path)
		config = strings.ReplaceAll(config, from, to)
	}
	return config
}

// startOverFleet starts a Prometheus with the shipped configuration for HTTP
// discovery, which finds the hosts of a fleet.
func startOverFleet(t *testing.T, fleet string, args ...string) string {
	t.Helper()
	rules := fixture.Value(filepath.Abs("alerts"))(t)
	config := shipped(t, "deploy/prometheus/http_sd.yml", map[string]string{"http://localhost:9836": fleet,
		"/usr/share/gpusteward/alerts": rules})
	dir := t.TempDir()
	fixture.Rewrite(t, filepath.Join(dir, "prometheus.yml"), config)
	return startServer(t, "prometheus", append(args, "--config.file="+filepath.Join(dir, "prometheus.yml"),
		"--storage.tsdb.path="+filepath.Join(dir, "data"))...)
}

// hurried returns rules with every duration divided by scale: the time that an expression must hold, the
// range that it covers, and the interval of evaluation. Expressions and texts are as shipped.
func hurried(t *testing.T, rules string) string {
	t.Helper()
	shorter := func(text string) string {
		if text == "" {
			return ""
		}
		sum := time.Duration(0)
		for _, part := range promUnits.FindAllStringSubmatch(text, -1) {
			unit := map[string]time.Duration{"d": 24 * time.Hour, "h": time.Hour, "m": time.Minute,
				"s": time.Second}[part[2]]
			n := 0
			fmt.Sscan(part[1], &n)
			sum += time.Duration(n) * unit
		}
		fixture.Stop(t, promUnits.ReplaceAllString(text, "") != "" || sum == 0, "%q is no duration", text)
		return fmt.Sprintf("%dms", (sum / scale).Milliseconds())
	}
	rules = waits.ReplaceAllStringFunc(rules, func(line string) string {
		m := waits.FindStringSubmatch(line)
		return m[1] + shorter(m[2])
	})
	return ranges.ReplaceAllStringFunc(rules, func(r string) string {
		m := ranges.FindStringSubmatch(r)
		if m[2] == "" {
			return "[" + shorter(m[1]) + "]"
		}
		return "[" + shorter(m[1]) + ":" + shorter(m[2]) + "]"
	})
}

// hostName returns the agent's name of this host.
func hostName() string {
	name, _ := os.Hostname()
	return cmp.Or(os.Getenv("NODE_NAME"), name)
}

// startPrometheus starts a Prometheus that scrapes an agent every second and evaluates the shipped rules for
// the alerts that are on by default, hurried. It adds the lines of scrape to the agent's job.
func startPrometheus(t *testing.T, alertmanager, agent string, rules bool, scrape ...string) string {
	t.Helper()
	dir := t.TempDir()
	var b strings.Builder
	am, _ := url.Parse(alertmanager)
	at, _ := url.Parse(agent)
	fmt.Fprintf(&b, "global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}\n"+
		"alerting: {alertmanagers: [{static_configs: [{targets: [%q]}]}]}\n", am.Host)
	if rules {
		b.WriteString("rule_files: [gpusteward.rules.yml, fleet.rules.yml]\n")
		for _, name := range []string{"gpusteward.rules.yml", "fleet.rules.yml"} {
			text := content(t, filepath.Join("alerts", name))
			fixture.Rewrite(t, filepath.Join(dir, name), hurried(t, text))
		}
	}
	fmt.Fprintf(&b, "scrape_configs:\n- job_name: gpusteward\n  static_configs: [{targets: [%q], "+
		"labels: {instance: %q}}]\n", at.Host, hostName())
	for _, line := range scrape {
		b.WriteString("  " + line + "\n")
	}
	fixture.Rewrite(t, filepath.Join(dir, "prometheus.yml"), b.String())
	return startServer(t, "prometheus", "--config.file="+filepath.Join(dir, "prometheus.yml"),
		"--storage.tsdb.path="+filepath.Join(dir, "data"))
}

// A message is a message of Alertmanager to a webhook.
type message struct {
	Receiver    string
	GroupLabels map[string]string
	Alerts      []arrived
}

// An arrived alert is one in a message.
type arrived struct {
	Status              string
	Labels, Annotations map[string]string
}

// A receiver receives Alertmanager's messages.
type receiver struct {
	mu       sync.Mutex
	messages []message
}

// startReceiver starts a webhook, and an Alertmanager with the shipped
// configuration that sends to it. It waits a second for more alerts of a group.
func startReceiver(t *testing.T) (r *receiver, alertmanager string) {
	t.Helper()
	r = new(receiver)
	hook := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, q *http.Request) {
		var m message
		err := json.NewDecoder(q.Body).Decode(&m)
		fixture.If(t, err != nil, "%v", err)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.messages = append(r.messages, m)
	}))
	t.Cleanup(hook.Close)
	config := shipped(t, "deploy/alertmanager.yml", map[string]string{"http://127.0.0.1:5001": hook.URL,
		"group_wait: 30s": "group_wait: 1s", "group_wait: 5s": "group_wait: 1s", "group_interval: 5m": "group_interval: 1s"})
	dir := t.TempDir()
	fixture.Rewrite(t, filepath.Join(dir, "alertmanager.yml"), config)
	alertmanager = startServer(t, "prometheus-alertmanager", "--config.file="+filepath.Join(dir, "alertmanager.yml"),
		"--storage.path="+filepath.Join(dir, "data"), "--cluster.listen-address=")
	return r, alertmanager
}

// all returns the arrived alerts.
func (r *receiver) all() []message {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.messages)
}

// last returns the last message about alerts of a name, by GPU and tenant.
func (r *receiver) last(name string) map[string]arrived {
	all := map[string]arrived{}
	for _, m := range r.all() {
		for _, a := range m.Alerts {
			if a.Labels["alertname"] == name {
				all[strings.TrimSpace(a.Labels["gpu"]+" "+a.Labels["tenant"])] = a
			}
		}
	}
	return all
}

// A known alert is one that Alertmanager has.
type known struct {
	Labels, Annotations map[string]string
	Status              struct {
		State                   string
		InhibitedBy, SilencedBy []string
	}
	Fingerprint, GeneratorURL string
}

// alertsAt returns the firing alerts of an Alertmanager.
func alertsAt(t *testing.T, alertmanager string) (all []known) {
	t.Helper()
	fixture.Must(t, json.Unmarshal([]byte(fixture.Get(t, alertmanager+"/api/v2/alerts")), &all))
	return all
}
