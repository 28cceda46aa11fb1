package exporter

import (
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"gpusteward/collectors"
	"gpusteward/health"
	"gpusteward/internal/fixture"
)

const (
	openMetrics = "application/openmetrics-text;version=1.0.0"
	protobuf    = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited"
)

// traced are counters of incidents: one without a past, one that an event
// raised, one that none did.
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
	t.Parallel()
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
		if raised != (e != nil) || raised && (e.GetLabel()[0].GetValue() != "k3x-1" ||
			!e.GetTimestamp().AsTime().Equal(noon)) {
			t.Errorf("%v has the exemplar %v", m.Label, e)
		}
	}
}

// TestOpenMetricsHasUnits reads OpenMetrics by its rules: the unit of a family
// follows its type, ends its name, and is there if the name has one.
func TestOpenMetricsHasUnits(t *testing.T) {
	t.Parallel()
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
	if len(units) < 30 || strings.Contains(request(s, http.MethodGet, "/metrics").Body.String(), "# UNIT") {
		t.Errorf("%d families have units", len(units))
	}
}
