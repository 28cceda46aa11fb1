package alerts

import (
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"gpusteward/collectors"
	_ "gpusteward/collectors/all"
	"gpusteward/collectors/device"
	"gpusteward/health"
	"gpusteward/internal/fixture"
)

// TestLevelTests checks the expectations of level tests, which come from the agent's engine: no
// alert of the level's severity just before the wait has elapsed, and one for the first entity
// alone just after. promtool shows whether Prometheus agrees.
func TestLevelTests(t *testing.T) {
	t.Parallel()
	for _, c := range alerting() {
		for i, l := range c.Levels {
			test := levelTest(c, i)
			fixture.AtLeast(t, len(test.series), 2, "%s: series", test.name)
			for n, e := range test.alerts {
				var mine []firing
				for _, f := range e.firing {
					if slices.Contains(f.labels, [2]string{"severity", l.Severity.String()}) {
						mine = append(mine, f)
					}
				}
				switch {
				case n == 0 && len(mine) != 0:
					t.Errorf("%s: the engine alerts too early, at %v: %v", test.name, e.at, mine)
				case n == 1 && (len(mine) != 1 ||
					!slices.Contains(mine[0].labels, [2]string{"instance", "host-0:9836"})):
					t.Errorf("%s: at %v the engine alerts for %v, want the first entity", test.name, e.at, mine)
				case n == 1:
					sick := entity(l.When.Signal, 0)
					if !slices.Contains(mine[0].labels, [2]string{"gpu", sick.GPU}) && sick.GPU != "" {
						t.Errorf("%s: the engine alerts for %v, want GPU %s", test.name, mine[0].labels, sick.GPU)
					}
				}
			}
		}
	}
}

// standard lists metrics that rules may use and that come from Prometheus itself.
var standard = []string{"up", "ALERTS"}

// notNames matches the parts of a PromQL expression that are not names of metrics.
var notNames = regexp.MustCompile(`"[^"]*"|\{[^}]*\}|\[[^]]*\]|\b[0-9][0-9.e+-]*|` +
	`\boffset \w+|\b(by|without|ignoring|on|group_left|group_right) \([^)]*\)|\b[a-z_]+ ?\(|` +
	`\b(and|or|unless|by|without|ignoring|on|count|sum|group|bool|max|min|quantile)\b`)

// metricsOf returns the names of metrics in an expression.
func metricsOf(expr string) []string {
	for range 3 { // a replacement may leave another match
		expr = notNames.ReplaceAllString(expr, " ")
	}
	return regexp.MustCompile(`[a-zA-Z_:][a-zA-Z0-9_:]*`).FindAllString(expr, -1)
}

func allRules() (all []rule) {
	for _, c := range alerting() {
		all = append(all, checkRules(c)...)
	}
	fleet, _ := ofFleet()
	return slices.Concat(all, fleet, sloRules(), []rule{straggler.rule})
}

func TestMetricsExist(t *testing.T) {
	t.Parallel()
	known := slices.Clone(standard)
	for _, m := range collectors.Metrics() {
		known = append(known, m.Name)
	}
	all := allRules()
	for _, r := range recordings {
		all = append(all, rule{alert: r.name(), expr: r.query()})
	}
	known = append(known, sloGood, sloTotal, sloObjective)
	for _, s := range serviceLevels {
		all = append(all, rule{alert: s.slo, expr: s.good}, rule{alert: s.slo, expr: s.total})
	}
	for _, d := range slices.Concat(derivations, sloDerivations()) {
		known = append(known, d.name)
		all = append(all, rule{alert: d.name, expr: d.expr})
	}
	for _, r := range all {
		names := metricsOf(r.expr)
		fixture.If(t, len(names) == 0, "%s: no metric found in %s", r.alert, r.expr)
		for _, n := range names {
			if !slices.Contains(known, n) {
				t.Errorf("%s: %q is not a metric: %s", r.alert, n, r.expr)
			}
		}
	}
}

func TestMetricsOf(t *testing.T) {
	t.Parallel()
	for expr, want := range map[string]string{
		`up{job="x"} == 0`: "up",
		`round(sum without (a, b) (increase(m_total{a="b"}[5m]))) > 600`:                               "m_total",
		`1 - sum by (job) (a) / sum by (job) (b unless on (job) c == 1) > 0.05`:                        "a b c",
		`count by (xid) (max by (job) (t) > time() - 3600) >= 3`:                                       "t",
		"(x - y) > 0 and ignoring (gpu, uuid) (z{a=\"(up)\"} == 1)\nor\nabsent(typo_of_a{b=~\"c|d\"})": "x y z typo_of_a",
		`x and on (job) (y offset 1m)`:                                                                 "x y",
	} {
		fixture.Equal(t, strings.Join(metricsOf(expr), " "), want, "%s", expr)
	}
}

// TestEachLevelHasARule fails on a check that has no rule for one of its severities, unless a reason is listed.
func TestEachLevelHasARule(t *testing.T) {
	t.Parallel()
	without := map[string]string{} // reasons by check
	for _, c := range health.Checks() {
		rules := checkRules(c)
		for _, l := range c.Levels {
			has := slices.ContainsFunc(rules, func(r rule) bool { return r.severity == l.Severity && r.expr != "" })
			if !has && without[c.ID] == "" {
				t.Errorf("%s: no rule for %s", c.ID, l.Severity)
			}
		}
		if (len(rules) == 0 || c.Alert == "") != (without[c.ID] != "") {
			t.Errorf("%s: %d rules, and the reason for none is %q", c.ID, len(rules), without[c.ID])
		}
		for _, l := range c.Levels {
			same := slices.Equal(l.When.Signal.Labels(), c.Levels[0].When.Signal.Labels())
			if strings.Contains(c.Detail, "{entity}") && !same {
				t.Errorf("%s: its detail names the entity, but its levels have different ones", c.ID)
			}
		}
	}
}

// TestLevelsWithDifferentWaits tests the rule of levels with different waits: it has no "for",
// and each level counts its own samples.
func TestLevelsWithDifferentWaits(t *testing.T) {
	t.Parallel()
	at := health.Value(device.TemperatureMargin).AtMost(0)
	slow := health.Level{When: at, For: health.Persistence{K: 6, N: 6}}
	for _, c := range []struct {
		levels []health.Level
		expr   string
		wait   time.Duration
	}{
		{[]health.Level{{When: at}}, "nvgpu_temperature_margin_celsius <= 0", 0},
		{[]health.Level{slow, slow},
			"nvgpu_temperature_margin_celsius <= 0\nor\nnvgpu_temperature_margin_celsius <= 0", 50 * time.Second},
		{[]health.Level{{When: at}, slow},
			"nvgpu_temperature_margin_celsius <= 0\nor\nnvgpu_temperature_margin_celsius and " +
				"(count_over_time((nvgpu_temperature_margin_celsius <= 0)[1m:10s]) >= 6)", 0},
	} {
		expr, wait := either(c.levels)
		fixture.If(t, expr != c.expr || wait != c.wait, "%s for %v, want %s for %v", expr, wait, c.expr, c.wait)
	}
}

func TestLongRangesAreSlow(t *testing.T) {
	t.Parallel()
	for expr, long := range map[string]bool{
		"rate(x[5m])": false, "increase(x[1h])": true, "increase(x[7d])": true, "rate(x[120m])": true,
		"max_over_time(x[1d:10m])": false, "count_over_time((x > 0)[30m:1m])": false,
	} {
		fixture.Equal(t, longRange.MatchString(expr), long, "%s looks back far", expr)
	}
}

func TestHumanize(t *testing.T) {
	t.Parallel()
	for v, want := range map[float64]string{
		0: "0", 1: "1", 999: "999", 3599: "3.599k", 524288001: "524.3M",
		.27: "270m", 1.1e-12: "1.1p", -1: "-1", -1500: "-1.5k",
	} {
		fixture.Equal(t, humanize(v), want, "%v", v)
	}
}
