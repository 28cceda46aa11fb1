package dashboards

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	sdk "github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"go.yaml.in/yaml/v3"

	"gpusteward/internal/fixture"
)

// A finding is a breach of a rule of Grafana's dashboard-linter.
type finding struct{ rule, dashboard, panel, says string }

// TestPublicRules checks the rules that Grafana's dashboard-linter publishes, by their names. TestLint checks the
// conventions of this directory, and TestQueries that Prometheus accepts each query (target-promql-rule).
func TestPublicRules(t *testing.T) {
	t.Parallel()
	var found []finding
	for _, d := range committed(t) {
		found = append(found, lintTemplates(d)...)
		found = append(found, lintTargets(t, d)...)
	}
	var config struct {
		Exclusions map[string]struct {
			Reason  string
			Entries []struct{ Dashboard, Panel string }
		}
	}
	text := fixture.Value(os.ReadFile(".lint"))(t)
	fixture.Must(t, yaml.Unmarshal(text, &config))
	used := map[string]bool{}
	for _, f := range found {
		rule, listed := config.Exclusions[f.rule]
		matches := func(e struct{ Dashboard, Panel string }) bool {
			return e.Dashboard == f.dashboard && e.Panel == f.panel
		}
		if !listed || len(rule.Entries) > 0 && !slices.ContainsFunc(rule.Entries, matches) {
			t.Errorf("%s, %s, panel %q: %s", f.rule, f.dashboard, f.panel, f.says)
			continue
		}
		used[f.rule] = true
		if len(rule.Entries) > 0 {
			used[f.rule+f.dashboard+f.panel] = true
		}
	}
	for name, rule := range config.Exclusions {
		fixture.If(t, !used[name] || rule.Reason == "", "the exclusion from %s is not used, or has no reason", name)
		for _, e := range rule.Entries {
			fixture.If(t, !used[name+e.Dashboard+e.Panel],
				"the exclusion of %s, %s from %s is not used", e.Dashboard, e.Panel, name)
		}
	}
}

// lintTemplates checks the variables of a dashboard.
func lintTemplates(d *sdk.Dashboard) (found []finding) {
	report := func(rule, format string, args ...any) {
		found = append(found, finding{rule, *d.Title, "", fmt.Sprintf(format, args...)})
	}
	if d.Editable != nil && *d.Editable {
		report("uneditable-dashboard-rule", "it is editable")
	}
	named := map[string]sdk.VariableModel{}
	for _, v := range d.Templating.List {
		named[v.Name] = v
		if v.Type == sdk.VariableTypeDatasource {
			continue
		}
		text, _ := v.Query.Map["query"].(string)
		if !strings.HasPrefix(text, "label_values(") {
			report("template-label-promql-rule", "%s has the query %q", v.Name, text)
		}
		if v.Refresh == nil || *v.Refresh != sdk.VariableRefreshOnTimeRangeChanged {
			report("template-on-time-change-reload-rule", "%s is not reloaded when the time range changes", v.Name)
		}
	}
	if v := named["datasource"]; v.Type != sdk.VariableTypeDatasource || *v.Label != "Data source" ||
		*v.Query.String != "prometheus" {
		report("template-datasource-rule", "no variable datasource with the label Data source")
	}
	for name, label := range map[string]string{"job": "Job", "instance": "Instance"} {
		rule, v := "template-"+name+"-rule", named[name]
		switch {
		case v.Name == "":
			report(rule, "no variable %s", name)
			continue
		case v.Datasource == nil || *v.Datasource.Uid != "${datasource}":
			report(rule, "%s is not from the chosen data source", name)
		case v.Type != sdk.VariableTypeQuery || *v.Label != label:
			report(rule, "%s is no query, or is not labelled %s", name, label)
		case v.Multi == nil || !*v.Multi:
			report(rule, "only one %s can be chosen", name)
		}
		if v.AllValue == nil || *v.AllValue != ".+" {
			report(rule, "allValue of %s is not .+", name)
		}
	}
	return found
}

// lintTargets checks the panels of a dashboard and their queries.
func lintTargets(t *testing.T, d *sdk.Dashboard) (found []finding) {
	t.Helper()
	for _, p := range panelsOf(d) {
		report := func(rule, format string, args ...any) {
			found = append(found, finding{rule, *d.Title, *p.Title, fmt.Sprintf(format, args...)})
		}
		if p.Datasource == nil || *p.Datasource.Uid != "${datasource}" {
			report("panel-datasource-rule", "it does not use the chosen data source")
		}
		if p.Title == nil || *p.Title == "" || p.Description == nil || *p.Description == "" {
			report("panel-title-description-rule", "it has no title or no description")
		}
		if unit := p.FieldConfig.Defaults.Unit; unit == nil || !slices.Contains(units, *unit) {
			report("panel-units-rule", "it has no unit of Grafana's")
		}
		if len(p.Targets) == 0 {
			report("panel-no-targets-rule", "it has no query")
		}
		for _, a := range queriesOf(t, d) {
			if a.place != *p.Title {
				continue
			}
			for _, s := range selector.FindAllStringSubmatch(a.expr, -1) {
				for _, name := range []string{"job", "instance"} {
					if !strings.Contains(s[2], fmt.Sprintf(`%s=~"$%[1]s"`, name)) {
						report("target-"+name+"-rule", "%s does not select the chosen %s", s[1], name)
					}
				}
			}
			for _, w := range window.FindAllStringSubmatch(a.expr, -1) {
				if w[1] == "rate" && w[2] != "$__rate_interval" {
					report("target-rate-interval-rule", "a rate over %s", w[2])
				}
			}
			bare := window.ReplaceAllString(a.expr, "")
			for _, s := range selector.FindAllStringSubmatch(bare, -1) {
				if strings.HasSuffix(s[1], "_total") {
					report("target-counter-agg-rule", "%s without rate or increase", s[1])
				}
			}
		}
	}
	return found
}
