package alerts

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/faults"
	"gpusteward/health"
	"gpusteward/health/derived"
	"gpusteward/health/incident"
)

// A host is a Prometheus target in a test.
type host struct {
	name     string
	examples []health.Example
}

// levelTest returns the test of a level of a check: it is silent until its wait has elapsed, and
// on entities that lack a part of the condition. The expected alerts are those that the agent's
// own engine raises for the same series.
func levelTest(c *health.Check, index int) ruleTest {
	l := c.Levels[index]
	t := ruleTest{name: fmt.Sprintf("%s, level %d: %s", c.ID, index+1, l.Severity), pace: paceFor(l.Delay())}
	fires := t.pace.moment() + l.Delay()
	times := []time.Duration{fires - time.Duration(t.pace), fires}
	want := make([]expectation, len(times))
	for i, at := range times {
		want[i] = expectation{at: at, alert: c.Alert}
	}
	for _, h := range hosts(l.When) {
		for _, x := range h.examples {
			t.series = append(t.series, h.series(x, t.pace, fires))
		}
		for i, alerts := range h.judged(c, t.pace, times) {
			want[i].firing = append(want[i].firing, h.firing(c, alerts)...)
		}
	}
	t.alerts = want
	return t
}

// xidTest tests a description that lists XIDs: those of the GPU within five minutes, and no others.
func xidTest(c *health.Check) ruleTest {
	const where = `instance="host-0:9836",job="` + job + `"`
	t := ruleTest{name: c.ID + ", which XIDs", pace: seconds}
	at, recent := t.pace.moment(), c.Levels[0].When.Example(entity(c.Levels[0].When.Signal, 0))
	h := host{name: "host-0:9836"}
	for _, x := range recent {
		t.series = append(t.series, h.series(x, t.pace, at))
	}
	for labels, when := range map[string]float64{
		`gpu="0",uuid="GPU-00000000",xid="48"`: 50,
		`gpu="0",uuid="GPU-00000000",xid="63"`: 55,
		`gpu="0",uuid="GPU-00000000",xid="13"`: longAgo,
		`gpu="1",uuid="GPU-00000001",xid="79"`: 55,
	} {
		line := series{name: fmt.Sprintf("%s{%s,%s}", faults.XIDLast, labels, where)}
		t.pace.steps(at, func(time.Duration) { line.values = append(line.values, when) })
		t.series = append(t.series, line)
	}
	slices.SortFunc(t.series, func(a, b series) int { return strings.Compare(a.name, b.name) })
	h.examples = recent
	fires := h.firing(c, h.judged(c, t.pace, []time.Duration{at})[0])
	for i := range fires {
		for n, a := range fires[i].annotations {
			if a[0] == "description" {
				fires[i].annotations[n][1] = strings.ReplaceAll(a[1], "an XID", "XID 48, 63")
			}
		}
	}
	t.alerts = []expectation{{at: at, alert: c.Alert, firing: fires}}
	return t
}

// hosts returns the hosts of a test. The first entity has the fault, and each other entity lacks
// a part of it. All are on one host unless a part of the condition concerns a whole host.
func hosts(c health.Condition) (all []host) {
	others := 0
	sets := slices.Concat([][]health.Example{c.Example(entity(c.Signal, 0))}, c.Counterexamples(func() incident.Entity {
		others++
		return entity(c.Signal, others)
	}))
	for n, examples := range sets {
		if n == 0 || ofHost(c) {
			all = append(all, host{name: fmt.Sprintf("host-%d:9836", n)})
		}
		last := &all[len(all)-1]
		last.examples = append(last.examples, examples...)
	}
	return all
}

// ofHost reports whether a part of the condition concerns a whole host.
func ofHost(c health.Condition) bool {
	return !slices.Contains(c.Signal.Labels(), "gpu") || slices.ContainsFunc(c.While, ofHost)
}

// entity returns the nth entity of a test.
func entity(s *health.Signal, n int) (e incident.Entity) {
	for _, label := range s.Labels() {
		switch label {
		case "gpu":
			e.GPU = strconv.Itoa(n)
		case "uuid":
			e.UUID = fmt.Sprintf("GPU-%08d", n)
		case "link":
			e.Link = "7"
		case "tenant":
			e.Tenant = fmt.Sprintf("team-%d", n)
		case "workload":
			e.Workload = fmt.Sprintf("train-%d", n)
		default:
			e.Device = fmt.Sprintf("mlx5_%d", n)
		}
	}
	return e
}

func (h host) series(x health.Example, p pace, until time.Duration) series {
	s := series{name: x.Metric.Name}
	var labels []string
	for i, name := range x.Metric.Labels {
		if x.Labels[i] != "" {
			labels = append(labels, fmt.Sprintf("%s=%q", name, x.Labels[i]))
		}
	}
	labels = append(labels, fmt.Sprintf("instance=%q", h.name), fmt.Sprintf("job=%q", job))
	s.name += "{" + strings.Join(labels, ",") + "}"
	p.steps(until, func(at time.Duration) { s.values = append(s.values, x.At(at-p.moment())) })
	return s
}

// judged returns the alerts that the agent's engine would send at the given times.
func (h host) judged(c *health.Check, p pace, times []time.Duration) (all [][]health.Alert) {
	start := time.Unix(0, 0).UTC()
	engine := health.NewEngine([]*health.Check{c}, start)
	engine.Tune(health.Settings{EnableAlerts: []string{c.ID}}, start)
	p.steps(times[len(times)-1], func(at time.Duration) {
		var samples []collectors.Sample
		for _, x := range h.examples {
			if v := x.At(at - p.moment()); !math.IsNaN(v) {
				samples = append(samples, collectors.Sample{Metric: x.Metric, Labels: x.Labels, Value: v})
			}
		}
		slices.SortStableFunc(samples, func(a, b collectors.Sample) int {
			return strings.Compare(a.Metric.Name, b.Metric.Name)
		})
		engine.Eval(derived.NewSnapshot(samples), nil, start.Add(at))
		if slices.Contains(times, at) {
			all = append(all, engine.Alerts(map[string]string{"instance": h.name, "job": job}))
		}
	})
	return all
}

// firing converts the engine's alerts to those of the Prometheus rules, which have the same labels
// except for source. If several levels of a severity hold, the rule has the value of the first.
func (h host) firing(c *health.Check, alerts []health.Alert) (all []firing) {
	seen := map[string]bool{}
	for _, a := range alerts {
		labels := maps.Clone(a.Labels)
		delete(labels, "alertname")
		delete(labels, "source")
		f := firing{labels: sorted(labels)}
		if key := fmt.Sprint(f.labels); seen[key] {
			continue
		} else {
			seen[key] = true
		}
		value, _ := strconv.ParseFloat(a.Annotations["value"], 64)
		for _, r := range checkRules(c) {
			if r.severity.String() == labels["severity"] {
				levels := slices.DeleteFunc(slices.Clone(c.Levels), func(l health.Level) bool {
					return l.Severity != r.severity
				})
				label := func(name string) string { return labels[name] }
				r.description = description(c, levels, func(q health.Quantity) string { return filled(q, value) }, "an XID",
					restOfExample(levels[0]), label)
				r.action = action(c, levels, label)
				for name, v := range labels {
					r.summary = strings.ReplaceAll(r.summary, ofLabel(name), v)
				}
				f.annotations = r.annotations()
			}
		}
		all = append(all, f)
	}
	return all
}

// restOfExample is what rest's template makes of an example's labels.
func restOfExample(l health.Level) (text string) {
	m, labels := l.When.Signal.Rest()
	for _, name := range labels {
		text += ", " + name + " " + l.When.Signal.Example(incident.Entity{}, 0, 1)[0].Labels[slices.Index(m.Labels, name)]
	}
	return text
}

func sorted(m map[string]string) (all [][2]string) {
	for _, k := range slices.Sorted(maps.Keys(m)) {
		all = append(all, [2]string{k, m[k]})
	}
	return all
}
