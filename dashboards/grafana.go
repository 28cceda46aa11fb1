package dashboards

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/grafana/grafana-foundation-sdk/go/common"
	sdk "github.com/grafana/grafana-foundation-sdk/go/dashboard"
)

// tag marks all of these dashboards in Grafana.
const tag = "gpusteward"

// columnsWide is the width of Grafana's grid.
const columnsWide = 24

// ref returns the data source that the reader has chosen.
func ref() *common.DataSourceRef {
	return &common.DataSourceRef{Type: new("prometheus"), Uid: new("${datasource}")}
}

// uid identifies a dashboard in Grafana and in links, independently of its title.
func uid(name string) string { return "gpusteward-" + name }

// model builds Grafana's model of the dashboard.
func (d dashboard) model() *sdk.Dashboard {
	m := sdk.NewDashboard()
	m.Uid, m.Title, m.Description, m.Tags = new(uid(d.name)), new(d.title), new(d.description), []string{tag}
	m.GraphTooltip = new(sdk.DashboardCursorSyncCrosshair)
	m.Time = &sdk.DashboardDashboardTime{From: "now-1h", To: "now"}
	m.Refresh = new("10s")
	m.Templating.List = d.templating()
	m.Annotations.List = d.annotations()
	m.Links = d.links()
	id, y := uint32(0), uint32(0)
	for _, r := range d.rows {
		id++
		head := &sdk.RowPanel{
			Type: "row", Id: id, Title: new(r.title), Collapsed: r.folded, Panels: []sdk.Panel{},
			GridPos: &sdk.GridPos{H: 1, W: columnsWide, Y: y},
		}
		m.Panels = append(m.Panels, sdk.PanelOrRowPanel{RowPanel: head})
		y++
		x, high := uint32(0), uint32(0)
		for _, p := range r.panels {
			id++
			w, h := p.size()
			if x+w > columnsWide {
				x, y, high = 0, y+high, 0
			}
			made := p.model(id, &sdk.GridPos{H: h, W: w, X: x, Y: y})
			if r.folded {
				head.Panels = append(head.Panels, *made)
			} else {
				m.Panels = append(m.Panels, sdk.PanelOrRowPanel{Panel: made})
			}
			x, high = x+w, max(high, h)
		}
		y += high
	}
	return m
}

// size returns the panel's width and height in grid units.
func (p panel) size() (w, h uint32) {
	usual := map[kind][2]uint32{stat: {4, 4}, lines: {12, 8}, areas: {12, 8}, states: {24, 8}, table: {24, 9}}[p.kind]
	return cmp.Or(p.width, usual[0]), cmp.Or(p.height, usual[1])
}

// templating returns the variables: data source, cluster and job, and the dashboard's own.
func (d dashboard) templating() []sdk.VariableModel {
	rows := append([]variable{
		{"cluster", "Cluster", anyHosts.of, "", true},
		{"job", "Job", anyHosts.of, clusters, true},
	}, d.variables...)
	list := []sdk.VariableModel{{
		Type: sdk.VariableTypeDatasource, Name: "datasource",
		Label: new("Data source"), Description: new("The Prometheus that scrapes the agents."),
		Query: &sdk.StringOrMap{String: new("prometheus")}, Refresh: new(sdk.VariableRefreshOnDashboardLoad),
	}}
	for _, v := range rows {
		text := fmt.Sprintf("label_values(%s, %s)", v.where.of(v.of), v.name)
		if v.where == "" {
			text = fmt.Sprintf("label_values(%s, %s)", v.of, v.name)
		}
		m := sdk.VariableModel{
			Type: sdk.VariableTypeQuery, Name: v.name, Label: new(v.label), Datasource: ref(), Definition: new(text),
			Query: &sdk.StringOrMap{Map: map[string]any{
				"qryType": 1, "query": text, "refId": "PrometheusVariableQueryEditor-VariableQuery",
			}},
			Refresh: new(sdk.VariableRefreshOnTimeRangeChanged), Sort: new(sdk.VariableSortNumericalAsc),
			Multi: new(true), IncludeAll: new(v.all), AllValue: allOf(v.name),
		}
		if v.all {
			m.Current = &sdk.VariableOption{
				Selected: new(true),
				Text:     sdk.StringOrArrayOfString{ArrayOfString: []string{"All"}},
				Value:    sdk.StringOrArrayOfString{ArrayOfString: []string{"$__all"}},
			}
		}
		list = append(list, m)
	}
	return list
}

// allOf returns the regular expression of All. Grafana lists the values if there is none.
func allOf(variable string) *string {
	switch variable {
	case "job": // an expression would include the jobs of other programs
		return nil
	case "instance": // each target has one
		return new(".+")
	}
	return new(".*")
}

// annotations returns the annotations: alerts and, if the dashboard has them, XIDs.
func (d dashboard) annotations() []sdk.AnnotationQuery {
	where := jobs
	if slices.ContainsFunc(d.variables, func(v variable) bool { return v.name == "instance" }) {
		where = hosts
	}
	rules := func(severities string) string {
		return where.of(ruleAlerts, `alertstate="firing"`, `severity=~"`+severities+`"`)
	}
	const text = "{{instance}} GPU {{gpu}} {{severity}}"
	list := []sdk.AnnotationQuery{
		annotation("Critical alerts", rules("critical|emergency"), "{{alertname}}", text, red, true),
		annotation("Other alerts", rules("warning|info"), "{{alertname}}", text, orange, true),
		annotation("The agents' own alerts", where.of(alertFiring)+" > 0", "{{alert}}", "{{instance}} {{severity}}",
			purple, false),
	}
	if d.xids {
		q := annotation("XIDs", where.of(xidLast)+" * 1000", "XID {{xid}}", "{{instance}} GPU {{gpu}}", yellow, true)
		q.UseValueForTime = new(true)
		list = append(list, q)
	}
	return list
}

func annotation(name, expr, title, text, color string, enable bool) sdk.AnnotationQuery {
	return sdk.AnnotationQuery{
		Name: name, Datasource: ref(), Enable: enable, IconColor: color, Expr: new(expr),
		TitleFormat: new(title), TextFormat: new(text), Step: new("10s"), TagKeys: new("severity"),
	}
}

// links returns the links to the other dashboards.
func (d dashboard) links() (list []sdk.DashboardLink) {
	for _, other := range all() {
		if other.name != d.name {
			list = append(list, sdk.DashboardLink{
				Title: strings.TrimPrefix(other.title, "GPU Steward / "), Type: sdk.DashboardLinkTypeLink,
				Icon: "dashboard", Tooltip: other.description,
				Url: new("/d/" + uid(other.name)), Tags: []string{}, IncludeVars: true, KeepTime: true,
			})
		}
	}
	return list
}
