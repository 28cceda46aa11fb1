package dashboards

import (
	"cmp"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	sdk "github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/prometheus"

	"gpusteward/internal/fixture"
)

// strictly reads a dashboard by Grafana's schema. The SDK's strict decoder returns an empty
// error list, which is not nil, for some valid parts, and drops those parts. It therefore only
// reports errors here, and the other decoder returns the dashboard.
func strictly(text []byte) (*sdk.Dashboard, error) {
	var list cog.BuildErrors
	if err := new(sdk.Dashboard).UnmarshalJSONStrict(text); err != nil && (!errors.As(err, &list) || len(list) > 0) {
		return nil, err
	}
	d := new(sdk.Dashboard)
	if err := json.Unmarshal(text, d); err != nil {
		return nil, err
	}
	return d, d.Validate()
}

// committed reads the dashboards from the committed files.
func committed(t *testing.T) (list []*sdk.Dashboard) {
	t.Helper()
	names, err := filepath.Glob("gpusteward-*.json")
	fixture.Stop(t, err != nil || len(names) < 7, "%q, %v", names, err)
	for _, name := range names {
		text := fixture.Value(os.ReadFile(name))(t)
		d, err := strictly(text)
		fixture.Stop(t, err != nil, "%s: %v", name, err)
		fixture.Equal(t, strings.TrimSuffix(name, ".json"), *d.Uid, "%s has the uid", name)
		list = append(list, d)
	}
	return list
}

// panelsOf returns all panels of a dashboard, including those of collapsed rows.
func panelsOf(d *sdk.Dashboard) (list []*sdk.Panel) {
	for _, p := range d.Panels {
		if p.Panel != nil {
			list = append(list, p.Panel)
			continue
		}
		for i := range p.RowPanel.Panels {
			list = append(list, &p.RowPanel.Panels[i])
		}
	}
	return list
}

// An asked is a query of a panel, a variable or an annotation.
type asked struct {
	dashboard, place string
	expr             string // for a variable, the series of label_values
	label            string // for a variable, the label of label_values
	instant          bool
	datasource       string
	legend           string
}

func (a asked) String() string { return a.dashboard + ", " + a.place + ": " + cmp.Or(a.expr, a.label) }

// queriesOf returns all queries of a dashboard.
func queriesOf(t *testing.T, d *sdk.Dashboard) (list []asked) {
	t.Helper()
	for _, p := range panelsOf(d) {
		for _, target := range p.Targets {
			q, ok := target.(*prometheus.Dataquery)
			if !ok {
				t.Fatalf("%s, %s: a query of type %T", *d.Uid, *p.Title, target)
			}
			a := asked{
				dashboard: *d.Uid, place: *p.Title, expr: q.Expr,
				instant: q.Instant != nil && *q.Instant, datasource: *q.Datasource.Uid,
			}
			if q.LegendFormat != nil {
				a.legend = *q.LegendFormat
			}
			list = append(list, a)
		}
	}
	for _, v := range d.Templating.List {
		if v.Type == sdk.VariableTypeQuery {
			text, _ := v.Query.Map["query"].(string)
			inner, ok := strings.CutPrefix(text, "label_values(")
			at := strings.LastIndex(inner, ", ")
			if !ok || at < 0 {
				t.Fatalf("%s, variable %s: %q", *d.Uid, v.Name, text)
			}
			list = append(list, asked{
				dashboard: *d.Uid, place: "variable " + v.Name, expr: inner[:at],
				label: strings.TrimSuffix(inner[at+2:], ")"), instant: true, datasource: *v.Datasource.Uid,
			})
		}
	}
	for _, a := range d.Annotations.List {
		list = append(list, asked{
			dashboard: *d.Uid, place: "annotation " + a.Name, expr: *a.Expr,
			datasource: *a.Datasource.Uid, legend: *a.TitleFormat + *a.TextFormat,
		})
	}
	return list
}
