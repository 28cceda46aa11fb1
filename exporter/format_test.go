package exporter

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"gpusteward/collectors"
	_ "gpusteward/collectors/all"
	"gpusteward/collectors/device"
	"gpusteward/health"
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

// fixed returns a server with constant scrapes of a simulated host and of the agent itself, and the host's samples.
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
		fixture.If(t, !slices.IsSorted(names) || len(slices.Compact(slices.Clone(names))) != len(names),
			"%s: the families are not sorted, or one is split: %v", scenario, names)
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
					t.Fatalf("%s: %s has the labels %v, want %v", scenario, sample.Metric, names, labelsOf[sample.Metric])
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
		fixture.If(t, !bytes.Equal(text, plain.Body.Bytes()),
			"%q: gzip decodes to %d bytes, without it there are %d, or they differ", accept, len(text), plain.Body.Len())
		fixture.AtMost(t, size, len(text)/5, "%q: %d bytes were compressed to", accept, len(text))
	}
}

// FuzzLabelValue: with any name of a driver or a process, the scrape can be read, and reads the same. Labels are valid
// UTF-8 by the time that they are samples: collectors.Readings ensures that (TestLabelsAreFitForExposition there), and
// so does this test.
func FuzzLabelValue(f *testing.F) {
	for _, v := range []string{"", "NVIDIA H100 80GB HBM3", `a"b\c`, "line\nbreak\r\t\x00", `\n`, "{}=,#", "# EOF",
		"\u2028é世界\ufeff", "\xff\xc0"} {
		f.Add(v)
	}
	var sample collectors.Sample
	s := server(f, func(o *Options) {
		o.Samples = func() []collectors.Sample { return []collectors.Sample{sample} }
	})
	f.Fuzz(func(t *testing.T, v string) {
		v = strings.ToValidUTF8(v, "")
		sample = collectors.Sample{Metric: device.MemoryBytes, Labels: []string{"0", v, "used"}, Value: 1}
		text := request(s, http.MethodGet, "/metrics").Body.Bytes()
		f := parse(t, bytes.NewReader(text))[device.MemoryBytes.Name]
		fixture.If(t, len(f.GetMetric()) != 1 || !has(f.Metric[0], sample), "label %q is read as %v", v, f)
		_, err := promlint.New(bytes.NewReader(text)).Lint()
		fixture.If(t, err != nil, "label %q: %v", v, err)
		f = parse(t, request(s, http.MethodGet, "/metrics/dcgm").Body)["DCGM_FI_DEV_FB_USED"]
		fixture.If(t, len(f.GetMetric()) != 1, "label %q is read as %v at /metrics/dcgm", v, f)
		open := request(s, http.MethodGet, "/metrics", "Accept", "application/openmetrics-text;version=1.0.0").Body.String()
		// a line with the unit, and one at the end
		if !strings.HasSuffix(open, "\n# EOF\n") || strings.Count(open, "\n") != strings.Count(string(text), "\n")+2 {
			t.Errorf("label %q breaks a line of OpenMetrics:\n%s", v, open)
		}
	})
}

const (
	openMetrics = "application/openmetrics-text;version=1.0.0"
	protobuf    = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited"
)

// traced are counters of incidents: one without a past, one that an event raised, one that none did.
func traced(event string) []collectors.Sample {
	sample := func(class string, v float64, o *collectors.Origin) collectors.Sample {
		return collectors.Sample{Metric: health.IncidentsTotal, Labels: []string{"0", "GPU-0", class}, Value: v, Origin: o}
	}
	began := noon.Add(-time.Hour)
	return []collectors.Sample{sample("application-fault", 5, nil),
		sample("hardware-fault", 2, &collectors.Origin{Since: began, Event: event, At: noon}),
		sample("driver-crash", 0, &collectors.Origin{Since: began})}
}

func TestIncidentsHaveExemplars(t *testing.T) {
	samples := traced("k3x-1")
	s := server(t, func(o *Options) { o.Samples = func() []collectors.Sample { return samples } })
	read := func(format string) string {
		return request(s, http.MethodGet, "/metrics", "Accept", format).Body.String()
	}
	const series = `{class="hardware-fault",gpu="0",uuid="GPU-0"}`
	for _, want := range []string{
		`nvgpu_incidents_total` + series + ` 2.0 # {event_id="k3x-1"} 1.0 1.7723664e+09` + "\n",
		`nvgpu_incidents_created` + series + " 1.7723628e+09\n",
		`nvgpu_incidents_total{class="application-fault",gpu="0",uuid="GPU-0"} 5.0` + "\n",
	} {
		fixture.Contains(t, read(openMetrics), want, "the text")
	}
	fixture.Equal(t, strings.Count(read(openMetrics), "nvgpu_incidents_created{"), 2, "counters began")
	if text := read("text/plain"); strings.Contains(text, "event_id") || strings.Contains(text, "_created{class") {
		t.Errorf("the text format has exemplars:\n%s", text)
	}
	// Another gathering in the same memory has no exemplar of the first.
	for range 2 {
		read(protobuf)
		fixture.Equal(t, strings.Count(read(openMetrics), "event_id"), 1, "an exemplar is elsewhere")
		samples = traced("k3x-1")
		slices.Reverse(samples)
	}
	incidents := decoded(t, request(s, http.MethodGet, "/metrics", "Accept", protobuf))["nvgpu_incidents_total"]
	fixture.Equal(t, len(incidents.GetMetric()) == 0, false, "protobuf has no incidents")
	for _, m := range incidents.GetMetric() {
		e, raised := m.GetCounter().GetExemplar(), m.GetCounter().GetValue() == 2
		fixture.If(t, raised != (e != nil) || raised && (e.GetLabel()[0].GetValue() != "k3x-1" ||
			!e.GetTimestamp().AsTime().Equal(noon)), "%v has the exemplar %v", m.Label, e)
	}
}

// TestSuddenCountersBeginAtZero: increase() finds what happened first, and the sample, which the page shows, has
// it at once. The metric is declared after this package is initialized.
func TestSuddenCountersBeginAtZero(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		late := &collectors.Metric{Name: "nvgpu_late_total", Type: collectors.CounterType, Labels: []string{"b", "a"}, Sudden: true}
		samples := []collectors.Sample{{Metric: late, Labels: []string{"2", "1"}, Value: 3,
			Origin: &collectors.Origin{Since: time.Now()}}}
		v := &gatherer{samples: func() []collectors.Sample { return samples }}
		for _, want := range []float64{0, 3} {
			families, done, err := v.Gather()
			fixture.Must(t, err)
			m := families[0].Metric[0]
			if c := m.GetCounter(); c.GetValue() != want || !c.GetCreatedTimestamp().AsTime().Equal(samples[0].Origin.Since) ||
				families[0].GetName() != late.Name || m.Label[0].GetName() != "a" || m.Label[1].GetValue() != "2" {
				t.Errorf("%v, want %v", families[0], want)
			}
			done()
			time.Sleep(suddenZero)
		}
		fixture.Equal(t, samples[0].Value, 3, "the sample")
	})
}

// TestOpenMetricsHasUnits reads OpenMetrics by its rules: the unit of a family
// follows its type, ends its name, and is there if the name has one.
func TestOpenMetricsHasUnits(t *testing.T) {
	s, _ := fixed(t, "h100")
	text := request(s, http.MethodGet, "/metrics", "Accept", openMetrics).Body.String()
	comment := regexp.MustCompile(`^# (HELP|TYPE|UNIT) ([a-zA-Z_:][a-zA-Z0-9_:]*) (.*)$`)
	units, types := map[string]string{}, map[string]string{}
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if !strings.HasPrefix(line, "#") || line == "# EOF" {
			continue
		}
		m := comment.FindStringSubmatch(line)
		fixture.Need(t, m == nil, false, "%q is not a comment of OpenMetrics", line)
		switch m[1] {
		case "TYPE":
			types[m[2]] = m[3]
		case "UNIT":
			if types[m[2]] == "" || units[m[2]] != "" || !strings.HasSuffix(m[2], "_"+m[3]) {
				t.Errorf("%q is the unit of a family of type %q", line, types[m[2]])
			}
			units[m[2]] = m[3]
		}
	}
	for name, want := range map[string]string{"nvgpu_power_watts": "watts", "nvgpu_memory_bytes": "bytes",
		"nvgpu_energy_joules": "joules", "nvgpu_row_remap_failure": "",
		"nvgpu_utilization_ratio": "ratio", "nvgpu_temperature_celsius": "celsius", "nvgpu_clock_hertz": "hertz",
		"nvgpu_events": "", "nvgpu_info": ""} {
		if types[name] == "" || units[name] != want {
			t.Errorf("%s, a %q, has the unit %q, want %q", name, types[name], units[name], want)
		}
	}
	fixture.If(t, len(units) < 30 || strings.Contains(request(s, http.MethodGet, "/metrics").Body.String(), "# UNIT"),
		"%d families have units", len(units))
}

// durations is a histogram with values next to each other and far apart.
var durations = collectors.Histogram{Buckets: map[int]uint64{-100: 1, -24: 4, -23: 2, -21: 3, 0: 5, 1: 6, 8: 7, 200: 8},
	Count: 36, Sum: 1000}

// serveDurations returns a server with one histogram.
func serveDurations(t *testing.T) *Server {
	m := &collectors.Metric{Name: "nvgpu_durations_seconds", Help: "Durations.", Type: collectors.HistogramType,
		Labels: []string{"gpu"}}
	return server(t, func(o *Options) {
		o.Samples = func() []collectors.Sample {
			return []collectors.Sample{{Metric: m, Labels: []string{"0"}, Value: 36, Histogram: &durations}}
		}
	})
}

// TestProtobufHasNativeBuckets decodes the spans again.
func TestProtobufHasNativeBuckets(t *testing.T) {
	w := request(serveDurations(t), http.MethodGet, "/metrics", "Accept", protobuf)
	family := decoded(t, w)["nvgpu_durations_seconds"]
	fixture.Need(t, family.GetType(), dto.MetricType_HISTOGRAM, "the histogram is missing")
	h := family.Metric[0].Histogram
	got, i, n, deltas := map[int]uint64{}, 0, int64(0), h.PositiveDelta
	for _, span := range h.PositiveSpan {
		i += int(span.GetOffset())
		for range span.GetLength() {
			n += deltas[0]
			if deltas = deltas[1:]; n > 0 {
				got[i] = uint64(n)
			}
			i++
		}
	}
	fixture.If(t, len(deltas) > 0 || h.GetSchema() != 3 || h.GetZeroThreshold() == 0 || h.GetSampleCount() != 36 ||
		h.GetSampleSum() != 1000 || len(h.PositiveSpan) != 5, "%v", h)
	for i, n := range durations.Buckets {
		if got[i] != n || len(got) != len(durations.Buckets) {
			t.Errorf("bucket %d has %d of %d values: %v", i, got[i], n, got)
		}
	}
	fixture.Equal(t, len(h.Bucket), 18, "classic buckets")
}

// TestTextHasClassicBuckets checks cumulative counts, which are exact at powers of two.
func TestTextHasClassicBuckets(t *testing.T) {
	s := serveDurations(t)
	for _, accept := range []string{"text/plain", openMetrics} {
		text := request(s, http.MethodGet, "/metrics", "Accept", accept).Body.String()
		for _, line := range []string{
			`nvgpu_durations_seconds_bucket{gpu="0",le="0.0009765625"} 1`,
			`nvgpu_durations_seconds_bucket{gpu="0",le="0.125"} 5`,
			`nvgpu_durations_seconds_bucket{gpu="0",le="0.25"} 10`,
			`nvgpu_durations_seconds_bucket{gpu="0",le="0.5"} 10`,
			`nvgpu_durations_seconds_bucket{gpu="0",le="1`, // OpenMetrics: 1.0
			`nvgpu_durations_seconds_bucket{gpu="0",le="+Inf"} 36`,
			`nvgpu_durations_seconds_count{gpu="0"} 36`,
		} {
			fixture.Contains(t, text, "\n"+line, "%s", accept)
		}
	}
	families := parse(t, request(s, http.MethodGet, "/metrics").Body)
	buckets := families["nvgpu_durations_seconds"].Metric[0].GetHistogram().GetBucket()
	for exponent, want := range map[int]uint64{-10: 1, -3: 5, -2: 10, 0: 15, 1: 28, 7: 28} {
		at := slices.IndexFunc(buckets, func(b *dto.Bucket) bool { return b.GetUpperBound() == math.Ldexp(1, exponent) })
		fixture.If(t, at < 0 || buckets[at].GetCumulativeCount() != want,
			"2^%d: bucket %d, want %d values: %v", exponent, at, want, buckets)
	}
}

func TestEmptyHistogram(t *testing.T) {
	h := histogram(&collectors.Histogram{})
	fixture.If(t, h.GetSampleCount() != 0 || len(h.PositiveSpan) != 0 || len(h.Bucket) == 0, "%v", h)
}
