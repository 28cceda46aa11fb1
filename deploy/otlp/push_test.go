package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	collector "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	metrics "go.opentelemetry.io/proto/otlp/metrics/v1"
	"google.golang.org/protobuf/proto"
)

// newAgent returns the URL of an agent of simulated GPUs, and the number of its
// answers. Its series are those that the collectors' tests compare.
func newAgent(t *testing.T) (url string, answers *atomic.Int64) {
	t.Helper()
	text, err := os.ReadFile("../../collectors/testdata/models.prom")
	if err != nil {
		t.Fatal(err)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	var body bytes.Buffer
	encoder := expfmt.NewEncoder(&body, expfmt.FmtProtoDelim)
	for _, f := range families {
		for suffix := range ucum {
			if strings.HasSuffix(strings.TrimSuffix(f.GetName(), "_total"), "_"+suffix) {
				f.Unit = &suffix
			}
		}
		for _, m := range f.Metric { // the file has no types
			if v := m.Untyped.GetValue(); strings.HasSuffix(f.GetName(), "_total") {
				f.Type, m.Counter, m.Untyped = dto.MetricType_COUNTER.Enum(), &dto.Counter{Value: &v}, nil
			} else {
				f.Type, m.Gauge, m.Untyped = dto.MetricType_GAUGE.Enum(), &dto.Gauge{Value: &v}, nil
			}
		}
		if err := encoder.Encode(f); err != nil {
			t.Fatal(err)
		}
	}
	answers = new(atomic.Int64)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answers.Add(1)
		w.Header().Set("Content-Type", string(expfmt.FmtProtoDelim))
		w.Write(body.Bytes())
	}))
	t.Cleanup(s.Close)
	return s.URL, answers
}

// A receiver of OTLP decodes what it gets, and answers as answer says.
type receiver struct {
	answer  func(n int) int // status of the n-th request; nil: 200
	mu      sync.Mutex
	got     []*collector.ExportMetricsServiceRequest
	arrived chan struct{}
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	var body io.Reader = q.Body
	if q.Header.Get("Content-Encoding") == "gzip" {
		body, _ = gzip.NewReader(q.Body)
	}
	text, err := io.ReadAll(body)
	all := new(collector.ExportMetricsServiceRequest)
	if err := errors.Join(err, proto.Unmarshal(text, all)); err != nil || q.URL.Path != "/v1/metrics" {
		http.Error(w, "not OTLP", http.StatusBadRequest)
		return
	}
	r.mu.Lock()
	r.got = append(r.got, all)
	n := len(r.got)
	r.mu.Unlock()
	if r.answer != nil {
		w.WriteHeader(r.answer(n))
	}
	select {
	case r.arrived <- struct{}{}:
	default:
	}
}

// push runs the program until the test ends: it pushes to h every interval.
func push(t *testing.T, url string, h http.Handler, interval string) (log *bytes.Buffer, stop func()) {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", s.URL)
	t.Setenv("OTEL_METRIC_EXPORT_INTERVAL", interval)
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
	ctx, cancel := context.WithCancel(context.Background())
	ended, log := make(chan error, 1), new(bytes.Buffer)
	go func() {
		ended <- run(ctx, url, slog.New(slog.NewTextHandler(log, nil)), otlpmetrichttp.RetryConfig{Enabled: true,
			InitialInterval: time.Millisecond, MaxInterval: time.Millisecond, MaxElapsedTime: time.Minute})
	}()
	return log, func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// wait waits until a request has arrived.
func (r *receiver) wait(t *testing.T) {
	t.Helper()
	select {
	case <-r.arrived:
	case <-time.After(time.Minute):
		t.Fatal("nothing arrives")
	}
}

func attributes(p *metrics.NumberDataPoint) map[string]string {
	all := map[string]string{}
	for _, a := range p.Attributes {
		all[a.Key] = a.Value.GetStringValue()
	}
	return all
}

func TestPush(t *testing.T) {
	url, _ := newAgent(t)
	r := &receiver{arrived: make(chan struct{}, 1)}
	_, stop := push(t, url, r, "20")
	r.wait(t)
	stop()
	resource := map[string]string{}
	for _, a := range r.got[0].ResourceMetrics[0].Resource.Attributes {
		resource[a.Key] = a.Value.GetStringValue()
	}
	if resource["service.name"] != "gpusteward" || resource["host.name"] == "" ||
		resource["deployment.environment.name"] != "test" {
		t.Errorf("the resource is %v", resource)
	}
	got := map[string]*metrics.Metric{}
	for _, m := range r.got[0].ResourceMetrics[0].ScopeMetrics[0].Metrics {
		if got[m.Name] != nil {
			t.Errorf("%s is there twice", m.Name)
		}
		got[m.Name] = m
	}
	const uuid = "GPU-bf2ffa56-7c62-4cd8-b17c-bd73eadb5819" // of GPU 0, an H100
	for _, c := range []struct {
		name, unit, kind string
		attributes       map[string]string
	}{
		{"hw.gpu.utilization", "1", "gauge", map[string]string{"hw.gpu.task": "general"}},
		{"hw.gpu.utilization", "1", "gauge", map[string]string{"hw.gpu.task": "decoder"}},
		{"hw.gpu.memory.usage", "By", "updown", nil},
		{"hw.gpu.memory.limit", "By", "updown", nil},
		{"hw.gpu.io", "By", "counter", map[string]string{"network.io.direction": "receive"}},
		{"hw.energy", "J", "counter", nil},
		{"hw.power", "W", "gauge", nil},
		{"hw.temperature", "Cel", "gauge", map[string]string{"hw.sensor_location": "memory"}},
		{"hw.errors", "{error}", "counter", map[string]string{"error.type": "uncorrected"}},
		{"nvgpu_clock_hertz", "Hz", "gauge", map[string]string{"clock": "sm", "uuid": uuid}},
		{"nvgpu_utilization_ratio", "1", "gauge", map[string]string{"engine": "memory"}},
		{"nvgpu_memory_bytes", "By", "gauge", map[string]string{"state": "free"}},
	} {
		m := got[c.name]
		if m.GetUnit() != c.unit {
			t.Errorf("%s has the unit %q, want %q", c.name, m.GetUnit(), c.unit)
		}
		points, kind := m.GetGauge().GetDataPoints(), "gauge"
		if s := m.GetSum(); s != nil {
			points, kind = s.DataPoints, map[bool]string{true: "counter", false: "updown"}[s.IsMonotonic]
		}
		want := map[string]string{"gpu": "0"}
		if strings.HasPrefix(c.name, "hw.") {
			want = map[string]string{"gpu": "0", "hw.id": uuid, "hw.type": "gpu", "hw.vendor": "NVIDIA",
				"hw.model": "NVIDIA H100 80GB HBM3"}
		}
		for k, v := range c.attributes {
			want[k] = v
		}
		n := 0
		for _, p := range points {
			if has := attributes(p); contains(has, want) {
				n++
				if strings.HasPrefix(c.name, "hw.") && len(has) != len(want) {
					t.Errorf("%s has the attributes %v, want %v", c.name, has, want)
				}
			}
		}
		if kind != c.kind || n != 1 {
			t.Errorf("%s, a %s, has %d points with %v, want a %s with one", c.name, kind, n, want, c.kind)
		}
	}
	for _, c := range conventions {
		if got[c.name] == nil {
			t.Errorf("%s is not pushed", c.name)
		}
	}
}

func contains(has, want map[string]string) bool {
	for k, v := range want {
		if has[k] != v {
			return false
		}
	}
	return true
}

// TestPushIsRetried has a receiver that is busy twice: the same batch arrives again.
func TestPushIsRetried(t *testing.T) {
	url, answers := newAgent(t)
	r := &receiver{arrived: make(chan struct{}, 1), answer: func(n int) int {
		return map[bool]int{true: http.StatusServiceUnavailable, false: http.StatusOK}[n <= 2]
	}}
	_, stop := push(t, url, r, "60000") // the only batch is that of the end
	stop()
	if len(r.got) != 3 || answers.Load() != 1 || !proto.Equal(r.got[0], r.got[2]) {
		t.Errorf("the receiver got %d batches, of %d answers of the agent", len(r.got), answers.Load())
	}
}

// TestDeadReceiver has a receiver that never answers: the agent is read on, one batch at a time, and nothing piles up.
func TestDeadReceiver(t *testing.T) {
	url, answers := newAgent(t)
	t.Setenv("OTEL_METRIC_EXPORT_TIMEOUT", "20")
	hang := make(chan struct{})
	var open, most atomic.Int64
	log, stop := push(t, url, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		most.Store(max(most.Load(), open.Add(1)))
		defer open.Add(-1)
		io.Copy(io.Discard, r.Body)
		select {
		case <-hang:
		case <-r.Context().Done():
		}
	}), "20")
	use := func() (bytes, goroutines int) {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int(m.HeapAlloc), runtime.NumGoroutine()
	}
	reads := func(n int64) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); answers.Load() < n; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("the agent was read %d times", answers.Load())
			}
		}
	}
	reads(10)
	bytes, goroutines := use()
	reads(60)
	if more, still := use(); more > bytes+8<<20 || still > goroutines+20 {
		t.Errorf("%d bytes and %d goroutines became %d and %d", bytes, goroutines, more, still)
	}
	if most.Load() > 2 { // one whose end the server has not seen yet
		t.Errorf("%d pushes at once", most.Load())
	}
	close(hang)
	stop()
	if n := strings.Count(log.String(), "push failed"); n != 1 {
		t.Errorf("%d lines in the log:\n%s", n, log)
	}
}

// TestAgentIsNotThere pushes nothing if there is nothing to push.
func TestAgentIsNotThere(t *testing.T) {
	for what, agent := range map[string]http.HandlerFunc{
		"404":         http.NotFound,
		"not metrics": func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hello") },
		"cut": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", string(expfmt.FmtProtoDelim))
			w.Write([]byte{200, 1, 10})
		},
	} {
		s := httptest.NewServer(agent)
		r := &receiver{arrived: make(chan struct{}, 1)}
		log, stop := push(t, s.URL, r, "60000")
		stop()
		s.Close()
		if len(r.got) != 0 || !strings.Contains(log.String(), "read "+s.URL) {
			t.Errorf("%s: %d pushes, and the log has\n%s", what, len(r.got), log)
		}
	}
}

func TestCommandLine(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "")
	t.Setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "")
	if err := checked(nil); err == nil || !strings.Contains(err.Error(), "OTEL_EXPORTER_OTLP_ENDPOINT") {
		t.Errorf("without a receiver: %v", err)
	}
	for _, one := range []string{"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", tracesEndpoint} {
		t.Setenv(one, "http://127.0.0.1:1/v1/x")
		if err := checked(nil); err != nil {
			t.Error(err)
		}
		t.Setenv(one, "")
	}
	if err := checked([]string{"http://127.0.0.1"}); err == nil {
		t.Error("an argument is not refused")
	}
}

var update = flag.Bool("update", false, "write the table of docs/otlp.md")

// table returns the table of the conventions in Markdown.
func table() string {
	var b strings.Builder
	for _, c := range conventions {
		var match, attributes []string
		for _, k := range slices.Sorted(maps.Keys(c.match)) {
			match = append(match, fmt.Sprintf("%s=%q", k, c.match[k]))
		}
		for _, k := range slices.Sorted(maps.Keys(c.add)) {
			attributes = append(attributes, fmt.Sprintf("`%s=%q`", k, c.add[k]))
		}
		for _, k := range slices.Sorted(maps.Keys(c.rename)) {
			attributes = append(attributes, fmt.Sprintf("`%s` from `%s`", c.rename[k], k))
		}
		series, instrument := c.family, "Gauge"
		if match != nil {
			series += "{" + strings.Join(match, ",") + "}"
		}
		switch {
		case c.updown:
			instrument = "UpDownCounter"
		case strings.HasSuffix(c.family, "_total"):
			instrument = "Counter"
		}
		fmt.Fprintf(&b, "| `%s` | `%s` | `%s` | %s | %s |\n", series, c.name, c.unit, instrument,
			strings.Join(attributes, ", "))
	}
	return b.String()
}

// TestDocumentedConventions compares the table of docs/otlp.md with the conventions, or writes it under -update.
func TestDocumentedConventions(t *testing.T) {
	const path, heading = "../../docs/otlp.md", "|---|---|---|---|---|\n"
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, _ := strings.Cut(string(text), heading)
	old, after, _ := strings.Cut(rest, "\n\n")
	if *update {
		page := before + heading + table() + "\n" + after
		if err := os.WriteFile(path, []byte(page), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if old+"\n" != table() {
		t.Errorf("%s has another table than conventions.go (go test -update):\n%s", path, table())
	}
}
