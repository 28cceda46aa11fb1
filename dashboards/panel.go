package dashboards

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/grafana/grafana-foundation-sdk/go/common"
	sdk "github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/prometheus"
	statpanel "github.com/grafana/grafana-foundation-sdk/go/stat"
	"github.com/grafana/grafana-foundation-sdk/go/statetimeline"
	tablepanel "github.com/grafana/grafana-foundation-sdk/go/table"
	"github.com/grafana/grafana-foundation-sdk/go/timeseries"
)

// model builds a link of a series or a cell. The link passes on the data source, the time range
// and the labels.
func (l link) model(label func(name string) string) sdk.DashboardLink {
	url := "/d/" + uid(l.to) + "?${datasource:queryparam}&${cluster:queryparam}"
	for _, name := range l.labels {
		if v := label(name); v != "" {
			url += "&var-" + name + "=" + v
		} else {
			url += "&${" + name + ":queryparam}" // the reader's choice
		}
	}
	return sdk.DashboardLink{
		Title: l.title, Type: sdk.DashboardLinkTypeLink, Url: new(url + "&${__url_time_range}"), Tags: []string{},
	}
}

// series returns the reference to a label in a link of the panel's series, or "" if the series
// lack the label.
func (p panel) series(label string) string {
	if slices.Contains(kept(p.queries[0].expr), label) {
		return "${__field.labels." + label + "}"
	}
	return ""
}

// kept returns the labels that an expression keeps: those of its outermost by.
func kept(expr string) []string {
	_, rest, _ := strings.Cut(expr, " by (")
	labels, _, _ := strings.Cut(rest, ")")
	return strings.Split(labels, ", ")
}

// model builds Grafana's model of the panel.
func (p panel) model(id uint32, where *sdk.GridPos) *sdk.Panel {
	m := &sdk.Panel{
		Type: string(p.kind), Id: &id, Title: new(p.title), Description: new(p.description), Datasource: ref(),
		GridPos:     where,
		FieldConfig: &sdk.FieldConfigSource{Overrides: []sdk.DashboardFieldConfigSourceOverrides{}},
	}
	defaults := &m.FieldConfig.Defaults
	defaults.Unit, defaults.Min, defaults.Max = new(p.unit), p.least, p.most
	if p.kind == stat && p.unit == "short" {
		defaults.Decimals = new(0.0) // counts: increase() returns fractions of them
	}
	defaults.Thresholds, defaults.Mappings = thresholds(p.steps), mappings(p.values)
	if p.none != "" {
		defaults.NoValue = new(p.none)
	}
	if p.link != nil {
		defaults.Links = []sdk.DashboardLink{p.link.model(p.series)}
	}
	switch p.kind {
	case stat:
		p.asStat(m)
	case lines, areas:
		p.asLines(m)
	case states:
		p.asStates(m)
	case table:
		p.asTable(m)
		return m
	}
	for i, q := range p.queries {
		t := target(i, q.expr)
		t.LegendFormat, t.Range, t.Instant = new(q.legend), new(p.kind != stat), new(p.kind == stat)
		if p.kind == stat && !strings.Contains(q.expr, "$__range") {
			t.Range, t.Instant = new(true), new(false) // for the sparkline
		}
		m.Targets = append(m.Targets, *t)
	}
	return m
}

func target(i int, expr string) *prometheus.Dataquery {
	return &prometheus.Dataquery{
		Datasource: ref(), Expr: expr, RefId: new(string(rune('A' + i))),
		EditorMode: new(prometheus.QueryEditorModeCode),
	}
}

func (p panel) asStat(m *sdk.Panel) {
	o := statpanel.NewOptions()
	o.ColorMode, o.TextMode = common.BigValueColorModeValue, common.BigValueTextModeValue
	o.ReduceOptions.Calcs = []string{"lastNotNull"}
	if len(p.values) > 0 {
		o.ColorMode, o.GraphMode = common.BigValueColorModeBackgroundSolid, common.BigValueGraphModeNone
	}
	if len(p.queries) > 1 || strings.Contains(p.queries[0].legend, "{{") {
		o.TextMode = common.BigValueTextModeValueAndName
	}
	if strings.HasPrefix(p.unit, "dateTime") {
		o.GraphMode = common.BigValueGraphModeNone
	}
	m.Options = o
	m.FieldConfig.Defaults.Color = &sdk.FieldColor{Mode: sdk.FieldColorModeIdThresholds}
}

func (p panel) asLines(m *sdk.Panel) {
	m.Type = string(lines)
	o := timeseries.NewOptions()
	o.Legend = common.VizLegendOptions{
		DisplayMode: common.LegendDisplayModeTable, Placement: common.LegendPlacementBottom,
		ShowLegend: true, Calcs: []string{"lastNotNull", "max"},
	}
	o.Tooltip = common.VizTooltipOptions{Mode: common.TooltipDisplayModeMulti, Sort: common.SortOrderDescending}
	m.Options = o
	custom := timeseries.NewFieldConfig()
	custom.DrawStyle, custom.LineWidth, custom.FillOpacity = new(common.GraphDrawStyleLine), at(1), at(8)
	custom.ShowPoints = new(common.VisibilityModeNever)
	if p.kind == areas {
		custom.FillOpacity = at(40)
		custom.Stacking = &common.StackingConfig{Mode: new(common.StackingModeNormal), Group: new("A")}
	}
	if len(p.steps) > 1 {
		dashed := common.GraphThresholdsStyleModeDashed
		custom.ThresholdsStyle = &common.GraphThresholdsStyleConfig{Mode: dashed}
	}
	m.FieldConfig.Defaults.Custom = custom
	m.FieldConfig.Defaults.Color = &sdk.FieldColor{Mode: sdk.FieldColorModeIdPaletteClassicByName}
}

func (p panel) asStates(m *sdk.Panel) {
	m.Options = &statetimeline.Options{
		ShowValue: common.VisibilityModeAuto, RowHeight: 0.85, MergeValues: new(true),
		Legend: common.VizLegendOptions{
			DisplayMode: common.LegendDisplayModeList, Placement: common.LegendPlacementBottom,
			ShowLegend: true, Calcs: []string{},
		},
		Tooltip: common.VizTooltipOptions{Mode: common.TooltipDisplayModeSingle, Sort: common.SortOrderNone},
	}
	custom := statetimeline.NewFieldConfig()
	custom.LineWidth, custom.FillOpacity = new(uint32(0)), new(uint32(70))
	m.FieldConfig.Defaults.Custom = custom
	m.FieldConfig.Defaults.Color = &sdk.FieldColor{Mode: sdk.FieldColorModeIdThresholds}
}

// asTable builds a table with one query per column, joined by their labels.
// narrowest is the least width of a table's column, in pixels. Grafana's own, 150, cuts the last
// columns off.
const narrowest = 70

func (p panel) asTable(m *sdk.Panel) {
	o := tablepanel.NewOptions()
	o.Footer = nil // the SDK writes it without the reducer that Grafana's schema requires
	if p.sort != "" {
		o.SortBy = []common.TableSortByFieldState{{DisplayName: p.sort, Desc: new(true)}}
	}
	m.Options = o
	custom := tablepanel.NewFieldConfig()
	custom.Filterable, custom.MinWidth = new(true), at(narrowest)
	m.FieldConfig.Defaults.Custom = custom
	m.FieldConfig.Defaults.Color = &sdk.FieldColor{Mode: sdk.FieldColorModeIdThresholds}
	hidden := map[string]any{"Time": true, "cluster": true, "job": true}
	order, names := map[string]any{}, map[string]any{}
	for i, k := range p.keys {
		order[k.label], names[k.label] = i, k.title
		delete(hidden, k.label)
		m.FieldConfig.Overrides = append(m.FieldConfig.Overrides, override(k.title, k.properties(p.cell)...))
	}
	for i, c := range p.columns {
		t := target(i, c.expr)
		t.Format, t.Instant, t.Range = new(prometheus.PromQueryFormatTable), new(true), new(false)
		m.Targets = append(m.Targets, *t)
		name := "Value"
		if len(p.columns) > 1 {
			name = "Value #" + *t.RefId
		}
		order[name], names[name] = len(p.keys)+i, c.title
		if c.title == "" { // the column only selects the rows
			hidden[name] = true
			continue
		}
		m.FieldConfig.Overrides = append(m.FieldConfig.Overrides, c.override())
	}
	m.Transformations = []sdk.DataTransformerConfig{
		{Id: "merge", Options: map[string]any{}},
		{Id: "organize", Options: map[string]any{
			"excludeByName": hidden, "indexByName": order, "renameByName": names,
		}},
	}
}

// cell returns the reference to a label in a link of a table, by the title of its column, or ""
// if no column has the label.
func (p panel) cell(label string) string {
	for _, k := range p.keys {
		if k.label == label {
			return "${__data.fields[\"" + k.title + "\"]}"
		}
	}
	return ""
}

// widths of columns in pixels, by label; the others share the rest.
var widths = map[string]int{"workload": 230, "image": 380, "uuid": 330, "mig_uuid": 340, "where": 320, "evidence": 320}

// properties size a column, wrap a name that is wider, and link it. Grafana 12 moved the option to
// wrap out of the cell's.
func (k key) properties(cell func(label string) string) []sdk.DynamicConfigValue {
	all := []sdk.DynamicConfigValue{
		{Id: "custom.cellOptions", Value: map[string]any{"type": "auto", "wrapText": true}},
		{Id: "custom.wrapText", Value: true},
	}
	if w := widths[k.label]; w > 0 {
		all = append(all, sdk.DynamicConfigValue{Id: "custom.width", Value: w})
	}
	if k.link != nil {
		all = append(all, sdk.DynamicConfigValue{Id: "links", Value: []sdk.DashboardLink{k.link.model(cell)}})
	}
	return all
}

func (c column) override() sdk.DashboardFieldConfigSourceOverrides {
	properties := []sdk.DynamicConfigValue{{Id: "unit", Value: c.unit}}
	if len(c.steps) > 0 {
		properties = append(properties, sdk.DynamicConfigValue{Id: "thresholds", Value: thresholds(c.steps)})
	}
	if len(c.values) > 0 {
		properties = append(properties, sdk.DynamicConfigValue{Id: "mappings", Value: mappings(c.values)})
	}
	switch {
	case c.gauge:
		properties = append(properties,
			sdk.DynamicConfigValue{Id: "min", Value: 0},
			sdk.DynamicConfigValue{Id: "max", Value: 1},
			sdk.DynamicConfigValue{Id: "custom.cellOptions", Value: map[string]any{"type": "gauge", "mode": "basic"}})
	case len(c.steps) > 0 || len(c.values) > 0:
		text := map[string]any{"type": "color-text"}
		properties = append(properties, sdk.DynamicConfigValue{Id: "custom.cellOptions", Value: text})
	}
	return override(c.title, properties...)
}

// override sets properties of one column.
func override(title string, properties ...sdk.DynamicConfigValue) sdk.DashboardFieldConfigSourceOverrides {
	matcher := sdk.MatcherConfig{Id: "byName", Options: title}
	return sdk.DashboardFieldConfigSourceOverrides{Matcher: matcher, Properties: properties}
}

func thresholds(steps []step) *sdk.ThresholdsConfig {
	if len(steps) == 0 {
		steps = plain
	}
	t := &sdk.ThresholdsConfig{Mode: sdk.ThresholdsModeAbsolute}
	for i, s := range steps {
		made := sdk.Threshold{Color: s.color}
		if i > 0 {
			made.Value = new(s.from)
		}
		t.Steps = append(t.Steps, made)
	}
	return t
}

func mappings(values map[string]value) []sdk.ValueMapping {
	if len(values) == 0 {
		return nil
	}
	options := map[string]sdk.ValueMappingResult{}
	for i, number := range slices.SortedFunc(maps.Keys(values), byNumber) {
		v := values[number]
		options[number] = sdk.ValueMappingResult{Text: new(v.text), Color: new(v.color), Index: new(int32(i))}
	}
	return []sdk.ValueMapping{{ValueMap: &sdk.ValueMap{Type: sdk.MappingTypeValueToText, Options: options}}}
}

func byNumber(a, b string) int {
	x, _ := strconv.Atoi(a)
	y, _ := strconv.Atoi(b)
	return cmp.Compare(x, y)
}
