package alerts

import (
	"slices"
	"strings"
	"testing"

	_ "gpusteward/collectors/all"
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

func allRules() (all []rule) {
	for _, c := range alerting() {
		all = append(all, checkRules(c)...)
	}
	fleet, _ := ofFleet()
	return slices.Concat(all, fleet, sloRules(), []rule{straggler.rule})
}

// TestEachLevelHasARule fails on a check that has no rule for one of its severities, unless a
// reason is listed.
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
