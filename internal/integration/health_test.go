package integration

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"gpusteward/health"
	"gpusteward/internal/fixture"
)

// falls is a host with a kernel that reports a GPU off the bus, although the GPU is well.
const falls = "faults: [{at: 2s, kind: kernel_line, gpu: 3, line: 'NVRM: Xid (PCI:{pci}): 79, pid=1, name=a, GPU has " +
	"fallen off the bus.'}]"

// fakeAlertmanager keeps the alerts that are posted to it.
type fakeAlertmanager struct {
	*httptest.Server
	mu     sync.Mutex
	firing map[string]map[string]string // labels by alertname
}

func newFakeAlertmanager(t *testing.T) *fakeAlertmanager {
	f := &fakeAlertmanager{firing: map[string]map[string]string{}}
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var alerts []struct {
			Labels map[string]string
			EndsAt time.Time
		}
		if err := json.NewDecoder(r.Body).Decode(&alerts); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, a := range alerts {
			if delete(f.firing, a.Labels["alertname"]); a.EndsAt.After(time.Now()) {
				f.firing[a.Labels["alertname"]] = a.Labels
			}
		}
	}))
	t.Cleanup(f.Close)
	return f
}

// fires returns the labels of an alert; nil if it does not fire.
func (f *fakeAlertmanager) fires(name string) map[string]string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.firing[name]
}

// TestFaultIsReportedAndAcknowledged follows a fault through the whole agent, to an Alertmanager, the
// journal, the metrics and the status, until an operator acknowledges it.
func TestFaultIsReportedAndAcknowledged(t *testing.T) {
	t.Parallel()
	am := newFakeAlertmanager(t)
	config := fixture.Config(t, fmt.Sprintf("health:\n  alertmanagers: [%s]\n  labels: {cluster: a}\n", am.URL))
	runtime := "--runtime.dir=" + t.TempDir()
	a := start(t, "--demo="+fixture.Config(t, healthy+falls), "--config.file="+config, runtime).ready()
	order := func(args ...string) (int, string) {
		status, out, errs := gpusteward(t, append(args, runtime)...)
		return status, out + errs
	}
	eventually(t, "the alert is there", func() bool { return am.fires("GPULost") != nil })
	l := am.fires("GPULost")
	fixture.If(t, l["gpu"] != "3" || l["cluster"] != "a" || l["severity"] != "emergency" || l["source"] != "gpusteward" ||
		l["node"] == "" || l["instance"] != l["node"]+":0" || l["job"] != "gpusteward" || l["class"] != "hardware-fault",
		"its labels are %v", l)
	eventually(t, "the metrics say so", func() bool {
		s := a.scrape()
		return slices.Contains(s.family("nvgpu_health_check_failing", `check="gpu_lost"`, `gpu="3"`), 1) &&
			slices.Contains(s.family("nvgpu_alert_firing", `alert="GPULost"`), 1) &&
			slices.Contains(s.family("nvgpu_health_status", `gpu="3"`), 2) &&
			slices.Contains(s.family("nvgpu_health_status", `gpu="2"`), 0)
	})
	if _, out := order("status"); !strings.Contains(out, "Emergency, for ") ||
		!strings.Contains(out, "fallen off the bus") {
		t.Errorf("status does not show it:\n%s", out)
	}
	if _, text := a.get("/api/v1/events?kind=incident&gpu=3"); !strings.Contains(text, `"code":79`) ||
		!strings.Contains(text, `"injected":true`) {
		t.Errorf("the journal has no incident of it: %s", text)
	}
	for want, args := range map[string][]string{`there is no check "gpu_last"`: {"gpu_last", "3"},
		`entity "GPU3"`: {"gpu_lost", "GPU3"}, "acknowledge one of gpu_lost gpu=3": {"gpu_lost", "5"}} {
		if status, out := order(append([]string{"ack"}, args...)...); status == 0 || !strings.Contains(out, want) {
			t.Errorf("ack %v: status %d, %s; want an error with %s", args, status, out, want)
		}
	}
	if status, out := order("ack", "GPULost", "3"); status != 0 || !strings.Contains(out, "gpu_lost of gpu=3 is acknowledged") {
		t.Errorf("the ack: status %d, %s", status, out)
	}
	eventually(t, "the alert is resolved", func() bool { return am.fires("GPULost") == nil })
	if status, text := a.get("/api/v1/events?check=gpu_lots"); status != http.StatusBadRequest || !strings.Contains(text, "did you mean gpu_lost?") {
		t.Errorf("events of a check that is not there: %d %s", status, text)
	}
	if _, text := a.get("/api/v1/events?kind=ack&check=GPULost"); !strings.Contains(text, "Acknowledged by uid ") {
		t.Errorf("the journal does not say who acknowledged it: %s", text)
	}
	var v health.Verdict
	if _, text := a.get("/api/v1/health"); json.Unmarshal([]byte(text), &v) != nil ||
		slices.ContainsFunc(v.Findings, func(f health.Finding) bool { return f.Check == "gpu_lost" }) {
		t.Errorf("after the ack: %s", text)
	}
	if status, out := order("ack", "gpu_lost", "3"); status == 0 || !strings.Contains(out, "nothing to acknowledge") {
		t.Errorf("another ack: status %d, %s", status, out)
	}
}
