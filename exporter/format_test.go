package exporter

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"gpusteward/collectors"
	_ "gpusteward/collectors/all"
	"gpusteward/internal/fixture"
)

// parse reads the text format.
func parse(t testing.TB, text io.Reader) map[string]*dto.MetricFamily {
	t.Helper()
	p := expfmt.NewTextParser(model.UTF8Validation)
	return fixture.Value(p.TextToMetricFamilies(text))(t)
}

// decoded reads protobuf from an answer.
func decoded(t *testing.T, w *httptest.ResponseRecorder) map[string]*dto.MetricFamily {
	t.Helper()
	families := map[string]*dto.MetricFamily{}
	for d := expfmt.NewDecoder(w.Body, expfmt.ResponseFormat(w.Header())); ; {
		f := new(dto.MetricFamily)
		if err := d.Decode(f); errors.Is(err, io.EOF) {
			return families
		} else if err != nil {
			t.Fatal(err)
		}
		families[f.GetName()] = f
	}
}

// values flattens families to one value per series.
func values(families map[string]*dto.MetricFamily) map[string]float64 {
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.Metric {
			key := fmt.Sprint(f.GetName(), " ", f.GetType(), " ", f.GetHelp(), " ", m.Label)
			out[key] = m.GetGauge().GetValue() + m.GetCounter().GetValue() + m.GetSummary().GetSampleSum() +
				m.GetHistogram().GetSampleSum()
		}
	}
	return out
}

// fixed returns a server with constant scrapes of a simulated host and of the
// agent itself, and the host's samples.
func fixed(t *testing.T, scenario string) (*Server, []collectors.Sample) {
	t.Helper()
	h := newHost(t, scenario)
	var samples []collectors.Sample
	fixture.Eventually(t, "the readings of every GPU are fresh", func() bool { // on a busy machine, some are late
		samples = h.Samples()
		up := slices.DeleteFunc(slices.Clone(samples), func(s collectors.Sample) bool { return s.Metric != collectors.Up })
		return len(up) > 0 && !slices.ContainsFunc(up, func(s collectors.Sample) bool { return s.Value == 0 })
	})
	s := server(t, func(o *Options) { o.Samples = func() []collectors.Sample { return samples } })
	own := fixture.Value(s.self.registry.Gather())(t)
	s.self.latest.Store(&own)
	return s, samples
}

// demos differ in the features of their GPUs: links, MIG, vGPUs, none.
var demos = []string{"h100", "mixed", "sixteen"}

func TestTextHoldsEverySampleOnce(t *testing.T) {
	t.Parallel()
	for _, scenario := range demos {
		s, samples := fixed(t, scenario)
		w := request(s, http.MethodGet, "/metrics")
		if kind := w.Header().Get("Content-Type"); !strings.HasPrefix(kind, "text/plain; version=0.0.4") {
			t.Errorf("without an Accept header the answer is %q", kind)
		}
		seen := map[string]bool{}
		var names []string
		for line := range strings.Lines(w.Body.String()) {
			if name, ok := strings.CutPrefix(line, "# TYPE "); ok {
				names = append(names, strings.Fields(name)[0])
			} else if !strings.HasPrefix(line, "#") {
				series := line[:strings.LastIndex(line, " ")]
				fixture.Equal(t, seen[series], false, "%s: %s is there twice", scenario, series)
				seen[series] = true
			}
		}
		if !slices.IsSorted(names) || len(slices.Compact(slices.Clone(names))) != len(names) {
			t.Errorf("%s: the families are not sorted, or one is split: %v", scenario, names)
		}
		families := parse(t, w.Body)
		labelsOf := map[*collectors.Metric][]string{}
		for _, m := range collectors.Metrics() {
			labelsOf[m] = slices.Sorted(slices.Values(m.Labels))
		}
		count := map[string]int{}
		for _, sample := range samples {
			count[sample.Metric.Name]++
			f := families[sample.Metric.Name]
			fixture.Need(t, f == nil, false, "%s: %s is missing", scenario, sample.Metric)
			i := slices.IndexFunc(f.Metric, func(m *dto.Metric) bool { return has(m, sample) })
			fixture.AtLeast(t, i, 0, "%s: %v is missing, or has another value", scenario, sample)
			for _, m := range f.Metric {
				var names []string
				for _, l := range m.Label {
					names = append(names, l.GetName())
				}
				if !slices.Equal(names, labelsOf[sample.Metric]) {
					t.Fatalf("%s: %s has the labels %v, want %v", scenario, sample.Metric, names,
						labelsOf[sample.Metric])
				}
			}
		}
		for name, n := range count {
			fixture.Equal(t, len(families[name].Metric), n, "%s: %s has … series", scenario, name)
		}
		for _, name := range []string{"gpusteward_build_info", "go_goroutines", "process_cpu_seconds_total"} {
			fixture.Equal(t, families[name] == nil, false, "%s: %s is missing", scenario, name)
		}
	}
}

// has reports whether m is the series of s.
func has(m *dto.Metric, s collectors.Sample) bool {
	for i, name := range s.Metric.Labels {
		if !slices.ContainsFunc(m.Label, func(l *dto.LabelPair) bool {
			return l.GetName() == name && l.GetValue() == s.Labels[i]
		}) {
			return false
		}
	}
	switch s.Metric.Type {
	case collectors.CounterType:
		return m.Counter != nil && m.Counter.GetValue() == s.Value
	case collectors.HistogramType:
		return m.Histogram != nil && m.Histogram.GetSampleSum() == s.Histogram.Sum
	}
	return m.Gauge != nil && m.Gauge.GetValue() == s.Value
}

func TestProtobufEqualsText(t *testing.T) {
	t.Parallel()
	s, _ := fixed(t, "mixed")
	text := values(parse(t, request(s, http.MethodGet, "/metrics").Body))
	w := request(s, http.MethodGet, "/metrics", "Accept",
		"application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited;q=0.7,"+
			"text/plain;q=0.3")
	if format := expfmt.ResponseFormat(w.Header()); format.FormatType() != expfmt.TypeProtoDelim {
		t.Fatalf("asked for protobuf, got %q", w.Header().Get("Content-Type"))
	}
	if proto := values(decoded(t, w)); len(text) == 0 || !maps.Equal(proto, text) {
		t.Errorf("protobuf has %d series, text %d, or they differ", len(proto), len(text))
	}
}

func TestOpenMetrics(t *testing.T) {
	t.Parallel()
	s, _ := fixed(t, "mixed")
	lines := func(text string) (series, names []string) {
		for line := range strings.Lines(text) {
			if strings.HasPrefix(line, "#") {
				continue
			}
			// only OpenMetrics says when a counter began
			if name := line[:strings.IndexAny(line, "{ ")]; !strings.HasSuffix(name, "_created") {
				series, names = append(series, line), append(names, name)
			}
		}
		return series, names
	}
	_, want := lines(request(s, http.MethodGet, "/metrics").Body.String())
	for _, version := range []string{"1.0.0", "0.0.1"} {
		w := request(s, http.MethodGet, "/metrics", "Accept", "application/openmetrics-text;version="+version)
		if kind := w.Header().Get("Content-Type"); !strings.HasPrefix(kind,
			"application/openmetrics-text; version="+version) {
			t.Errorf("asked for OpenMetrics %s, got %q", version, kind)
		}
		body := w.Body.String()
		if strings.Count(body, "# EOF") != 1 || !strings.HasSuffix(body, "\n# EOF\n") {
			t.Errorf("OpenMetrics %s ends in %q", version, body[max(0, len(body)-40):])
		}
		if _, got := lines(body); !slices.Equal(got, want) {
			t.Errorf("OpenMetrics %s has %d series, text %d, or their names differ", version, len(got), len(want))
		}
		fixture.Contains(t, body, "# TYPE nvgpu_energy_joules counter\n",
			"OpenMetrics %s does not name a counter's family without _total", version)
	}
}

func TestCompressedAnswer(t *testing.T) {
	t.Parallel()
	s, _ := fixed(t, "sixteen")
	for _, accept := range []string{"", "text/plain", "application/openmetrics-text;version=1.0.0"} {
		plain := request(s, http.MethodGet, "/metrics", "Accept", accept)
		w := request(s, http.MethodGet, "/metrics", "Accept", accept, "Accept-Encoding", "gzip")
		if got := w.Header().Get("Content-Encoding"); got != "gzip" || plain.Header().Get("Content-Encoding") != "" {
			t.Fatalf("Content-Encoding is %q where gzip is accepted, %q where it is not", got,
				plain.Header().Get("Content-Encoding"))
		}
		size := w.Body.Len()
		z := fixture.Value(gzip.NewReader(w.Body))(t)
		text := fixture.Value(io.ReadAll(z))(t)
		if !bytes.Equal(text, plain.Body.Bytes()) {
			t.Errorf("%q: gzip decodes to %d bytes, without it there are %d, or they differ", accept, len(text),
				plain.Body.Len())
		}
		fixture.AtMost(t, size, len(text)/5, "%q: %d bytes were compressed to", accept, len(text))
	}
}

// TestMetricDeclaredLaterIsGathered: packages that declare metrics may
// be initialized after this one.
func TestMetricDeclaredLaterIsGathered(t *testing.T) {
	t.Parallel()
	late := &collectors.Metric{Name: "nvgpu_late_total", Type: collectors.CounterType, Labels: []string{"b", "a"}}
	v := &gatherer{samples: func() []collectors.Sample {
		return []collectors.Sample{{Metric: late, Labels: []string{"2", "1"}, Value: 3}}
	}}
	families, done, err := v.Gather()
	if err != nil || len(families) != 1 {
		t.Fatalf("%v, %v", families, err)
	}
	defer done()
	m := families[0].Metric[0]
	if families[0].GetName() != late.Name || m.GetCounter().GetValue() != 3 || m.Label[0].GetName() != "a" ||
		m.Label[1].GetValue() != "2" {
		t.Errorf("%v", families[0])
	}
}
