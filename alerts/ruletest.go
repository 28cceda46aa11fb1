package alerts

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"gpusteward/health"
)

// A pace is the interval of a test's samples and of its rule evaluations.
type pace time.Duration

const (
	seconds = pace(10 * time.Second)
	hours   = pace(10 * time.Minute) // for rules that wait for hours
)

// paceFor returns the pace of a test of duration d.
func paceFor(d time.Duration) pace {
	if d >= time.Hour {
		return hours
	}
	return seconds
}

// steps calls f for each step of a test.
func (p pace) steps(until time.Duration, f func(at time.Duration)) {
	for at := time.Duration(0); at <= until; at += time.Duration(p) {
		f(at)
	}
}

// moment is the time at which the condition begins.
func (p pace) moment() time.Duration { return 6 * time.Duration(p) }

// A ruleTest is a promtool test: series, and the alerts that they should fire.
type ruleTest struct {
	name   string
	pace   pace
	series []series
	alerts []expectation
}

// A series is an input series of a test.
type series struct {
	name   string // with labels
	values []float64
}

// An expectation lists the firing instances of an alert at a time.
type expectation struct {
	at     time.Duration
	alert  string
	firing []firing
}

// A firing is one alert as Prometheus sends it.
type firing struct{ labels, annotations [][2]string }

// humanize writes v as the template function of Prometheus does.
func humanize(v float64) string {
	return prefixed(v, 1000, []string{"k", "M", "G", "T", "P", "E", "Z", "Y"})
}

// prefixed writes v with the prefix of a power of base.
func prefixed(v, base float64, prefixes []string) string {
	prefix := ""
	if abs := math.Abs(v); abs >= 1 {
		for _, p := range prefixes {
			if math.Abs(v) < base {
				break
			}
			prefix, v = p, v/base
		}
	} else if abs > 0 && base == 1000 {
		for _, p := range []string{"m", "u", "n", "p", "f", "a", "z", "y"} {
			if math.Abs(v) >= 1 {
				break
			}
			prefix, v = p, v*1000
		}
	}
	return fmt.Sprintf("%.4g%s", v, prefix)
}

// filled is what Prometheus makes of the template of a value.
func filled(q health.Quantity, v float64) string {
	switch q.Unit {
	case "percent":
		return fmt.Sprintf("%.4g%%", v*100)
	case "bytes":
		return prefixed(v, 1024, []string{"ki", "Mi", "Gi", "Ti"}) + "B"
	case "time":
		seconds := int64(v)
		switch d, h, m, s := seconds/86400, seconds/3600%24, seconds/60%60, seconds%60; {
		case d > 0:
			return fmt.Sprintf("%dd %dh %dm %ds", d, h, m, s)
		case h > 0:
			return fmt.Sprintf("%dh %dm %ds", h, m, s)
		case m > 0:
			return fmt.Sprintf("%dm %ds", m, s)
		}
		return fmt.Sprintf("%.4gs", v)
	case "apart":
		return health.Beside(-v, fmt.Sprintf("%.4g%%", 100*math.Abs(v)))
	case "margin":
		degrees := health.Quantity{Unit: "count", One: "degree", Many: "degrees"}
		return health.Beside(v, filled(degrees, math.Abs(v))+" Celsius")
	case "recovery":
		return q.Of(v)
	case "count":
		if v == 1 {
			return humanize(v) + " " + q.One
		}
		return humanize(v) + " " + q.Many
	}
	return humanize(v)
}

// write writes the test for promtool.
func (t ruleTest) write(b *strings.Builder) {
	fmt.Fprintf(b, "  - name: %q\n    interval: %s\n    input_series:\n",
		t.name, health.PromDuration(time.Duration(t.pace)))
	for _, s := range t.series {
		fmt.Fprintf(b, "      - series: '%s'\n        values: '%s'\n", s.name, runs(s.values))
	}
	b.WriteString("    alert_rule_test:\n")
	for _, e := range t.alerts {
		fmt.Fprintf(b, "      - eval_time: %s\n        alertname: %s\n", health.PromDuration(e.at), e.alert)
		if len(e.firing) == 0 {
			b.WriteString("        exp_alerts: []\n")
			continue
		}
		b.WriteString("        exp_alerts:\n")
		for _, f := range e.firing {
			lead := "          - "
			for _, part := range []struct {
				name   string
				values [][2]string
			}{{"exp_labels", f.labels}, {"exp_annotations", f.annotations}} {
				fmt.Fprintf(b, "%s%s:\n", lead, part.name)
				lead = "            "
				for _, v := range part.values {
					fmt.Fprintf(b, "              %s: %q\n", v[0], v[1])
				}
			}
		}
	}
}

// runs writes values in promtool's notation: "1+0x5 stale _x2" is six samples of 1, a staleness
// marker and two missing samples.
func runs(values []float64) string {
	var all []string
	for len(values) > 0 {
		v, n := values[0], 1
		for n < len(values) && (values[n] == v || math.IsNaN(v) && math.IsNaN(values[n])) {
			n++
		}
		switch {
		case math.IsNaN(v) && all == nil:
			all = append(all, fmt.Sprintf("_x%d", n))
		case math.IsNaN(v):
			all = append(all, "stale", fmt.Sprintf("_x%d", n-1))
		default:
			all = append(all, fmt.Sprintf("%s+0x%d", strconv.FormatFloat(v, 'g', -1, 64), n-1))
		}
		values = values[n:]
	}
	return strings.Join(all, " ")
}
