package diag

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"text/tabwriter"

	"gpusteward/health"
	"gpusteward/health/incident"
)

// A Report is the outcome of a test: a judgement like that of gpusteward check, and the results.
type Report struct {
	health.Judgement
	Level   int      `json:"level"`
	Seconds float64  `json:"seconds"`
	Results []Result `json:"results"`
}

// Report returns r in a format of health.Formats, and the exit status of
// health's Judgement.
func (r *Report) Report(format string, least incident.Severity) (text string, status int) {
	text, status = r.Judgement.Report(format, least)
	switch format {
	case "json":
		var b bytes.Buffer
		e := json.NewEncoder(&b)
		e.SetIndent("", "  ")
		_ = e.Encode(r) // numbers that are none are not measured
		return b.String(), status
	case "text":
		return text + r.table(), status
	}
	return text, status
}

// table returns the results, one a line.
func (r *Report) table() string {
	if len(r.Results) == 0 {
		return ""
	}
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "\nGPU\tTEST\tMEASURED\tAT LEAST\tVERDICT\t\n")
	for _, one := range r.Results {
		gpu := one.GPU
		if one.Peer != "" {
			gpu += " to " + one.Peer
		}
		least := ""
		if one.Least > 0 {
			least = amount(one.Least, one.Unit)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", gpu, one.Test, amount(one.Value, one.Unit), least, one.Verdict,
			one.Detail)
	}
	_ = w.Flush()
	fmt.Fprintf(&b, "\nlevel %d, %.1f s\n", r.Level, r.Seconds)
	return b.String()
}

// amount returns a value with its unit for people. It is empty for 0, except for counts.
func amount(v float64, unit string) string {
	switch unit {
	case "B/s":
		v, unit = v/1e9, "GB/s"
	case "Hz":
		v, unit = v/1e6, "MHz"
	case "operations/s":
		v, unit = v/1e12, "T/s"
	case "wrong words", "XIDs", "lanes", "W":
		if v == 0 && unit != "wrong words" && unit != "XIDs" {
			return ""
		}
		return fmt.Sprintf("%.0f %s", v, unit)
	}
	if v == 0 {
		return ""
	}
	return fmt.Sprintf("%.1f %s", v, unit)
}
