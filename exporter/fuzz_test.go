package exporter

import (
	"bytes"
	"net/http"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"gpusteward/collectors"
	"gpusteward/collectors/device"
)

// FuzzLabelValue: with any name of a driver or a process, the scrape can be
// read, and reads the same. Labels are valid UTF-8 by the time that they are
// samples: collectors.Readings ensures that (TestLabelsAreFitForExposition
// there), and so does this test.
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
		if len(f.GetMetric()) != 1 || !has(f.Metric[0], sample) {
			t.Errorf("label %q is read as %v", v, f)
		}
		if _, err := promlint.New(bytes.NewReader(text)).Lint(); err != nil {
			t.Errorf("label %q: %v", v, err)
		}
		open := request(s, http.MethodGet, "/metrics", "Accept",
			"application/openmetrics-text;version=1.0.0").Body.String()
		// a line with the unit, and one at the end
		if !strings.HasSuffix(open, "\n# EOF\n") || strings.Count(open, "\n") != strings.Count(string(text), "\n")+2 {
			t.Errorf("label %q breaks a line of OpenMetrics:\n%s", v, open)
		}
	})
}
