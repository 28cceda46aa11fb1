package alerts

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"gpusteward/health/incident"
	"gpusteward/internal/fixture"
)

// TestServiceLevelsPageNobody holds that alerts about service levels stay below the severities
// that page, because checks page for the faults behind them.
func TestServiceLevelsPageNobody(t *testing.T) {
	t.Parallel()
	for _, r := range sloRules() {
		if r.severity != incident.Warning || r.window == "" || r.check != "" {
			t.Errorf("%s of %s is %v", r.alert, r.window, r.severity)
		}
	}
}

// TestAlertmanagerKnowsRacks compares the shipped configuration of Alertmanager with the rules
// about racks: each alert about a rack silences those of its hosts, whose pages wait for it.
func TestAlertmanagerKnowsRacks(t *testing.T) {
	t.Parallel()
	text := fixture.Value(os.ReadFile("../deploy/alertmanager.yml"))(t)
	type route struct {
		Matchers []string `yaml:"matchers"`
		Wait     string   `yaml:"group_wait"`
		Routes   []route  `yaml:"routes"`
	}
	var shipped struct {
		Route route `yaml:"route"`
		Rules []struct {
			Source []string `yaml:"source_matchers"`
			Target []string `yaml:"target_matchers"`
			Equal  []string `yaml:"equal"`
		} `yaml:"inhibit_rules"`
	}
	fixture.Must(t, yaml.Unmarshal(text, &shipped))
	silenced := map[string]string{}
	for _, r := range shipped.Rules {
		if slices.Equal(r.Equal, []string{"cluster", "rack"}) {
			silenced[strings.Join(r.Source, ",")] += strings.Join(r.Target, ",")
		}
	}
	var hosts []string
	for _, f := range rackFaults {
		hosts = append(hosts, f.hosts...)
		want := fmt.Sprintf(`alertname =~ "%s"`, strings.Join(f.hosts, "|"))
		fixture.Contains(t, silenced[fmt.Sprintf("alertname = %q", f.alert)], want, "%s silences", f.alert)
	}
	fixture.Equal(t, silenced[`alertname = "RackDown"`], `alertname = "GPUStewardDown"`, "RackDown silences")
	waits := 0
	all := slices.Clone(shipped.Route.Routes)
	for _, r := range shipped.Route.Routes {
		all = append(all, r.Routes...)
	}
	for _, r := range all {
		if slices.Contains(r.Matchers, fmt.Sprintf(`alertname =~ "%s"`, strings.Join(hosts, "|"))) && r.Wait == "90s" {
			waits++
		}
	}
	fixture.Equal(t, waits, 2, "… routes wait for the alert about a rack")
}
