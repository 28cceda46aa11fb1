package dashboards

import (
	"bytes"
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"
	sdk "github.com/grafana/grafana-foundation-sdk/go/dashboard"

	"gpusteward/collectors"
	_ "gpusteward/collectors/all"
	"gpusteward/collectors/device"
	"gpusteward/collectors/faults"
	"gpusteward/collectors/links"
	"gpusteward/internal/fixture"
)

// targetLabels lists the labels that every series gets from its target.
var targetLabels = []string{"cluster", "job", "instance"}

// units lists Grafana's ids of the units that panels may have.
var units = []string{"none", "short", "percentunit", "bytes", "binBps", "watt", "joule", "celsius", "hertz", "s", "cps", "flops",
	"reqps", "dateTimeFromNow"}

// known returns all metrics by name.
func known() map[string]*collectors.Metric {
	all := map[string]*collectors.Metric{}
	for _, m := range append(collectors.Metrics(), foreign...) {
		all[m.Name] = m
	}
	return all
}

var (
	selector  = regexp.MustCompile(`([a-zA-Z_:][a-zA-Z0-9_:]*)\{([^}]*)\}`)
	matcher   = regexp.MustCompile(`([a-z_]+)(=~|!=|!~|=)"([^"]*)"`)
	grouping  = regexp.MustCompile(`\b(?:by|on|group_left) \(([^)]*)\)`)
	window    = regexp.MustCompile(`\b(rate|increase)\([^\[]*\[([^\]]*)\]\)`)
	anyRange  = regexp.MustCompile(`\[[^\]]*\]`)
	template  = regexp.MustCompile(`\{\{([^}]*)\}\}`)
	fieldLink = regexp.MustCompile(`__field\.labels\.([a-z_]+)`)
	linkURL   = regexp.MustCompile(`"url":("(?:[^"\\]|\\.)*")`)
	used      = regexp.MustCompile(`\$\{?([a-z]+)\b`)
)

// TestLint checks the conventions of each dashboard.
func TestLint(t *testing.T) {
	t.Parallel()
	titles := map[string]bool{}
	for _, d := range committed(t) {
		if !strings.HasPrefix(*d.Uid, "gpusteward-") || titles[*d.Title] || *d.Description == "" ||
			*d.Refresh != "10s" || !slices.Contains(d.Tags, tag) || d.Id != nil {
			t.Errorf("%s: bad uid, title, description, refresh, tag or id", *d.Uid)
		}
		titles[*d.Title] = true
		lintVariables(t, d)
		lintLayout(t, d)
		lintPanels(t, d)
		for _, a := range queriesOf(t, d) {
			fixture.Equal(t, a.datasource, "${datasource}", "%v: queries", a)
			if strings.HasPrefix(a.place, "variable ") && !strings.Contains(a.expr, "{") {
				a.expr += "{}" // the variable cluster has no selector
			}
			lintExpr(t, a)
		}
	}
}

// lintVariables checks that each variable is used and that each used variable exists.
func lintVariables(t *testing.T, d *sdk.Dashboard) {
	t.Helper()
	var have []string
	for _, v := range d.Templating.List {
		have = append(have, v.Name)
		if v.Label == nil || v.Type == sdk.VariableTypeQuery &&
			(v.Datasource == nil || *v.Datasource.Uid != "${datasource}") {
			t.Errorf("%s, variable %s: no label, or not from the chosen data source", *d.Uid, v.Name)
		}
		if v.IncludeAll != nil && *v.IncludeAll && v.Name == "cluster" &&
			(v.AllValue == nil || *v.AllValue != ".*") {
			t.Errorf("%s: All of cluster excludes targets without that label", *d.Uid)
		}
	}
	if want := []string{"datasource", "cluster", "job", "instance"}; !slices.Equal(have[:len(want)], want) {
		t.Errorf("%s: variables %q", *d.Uid, have)
	}
	in := map[string]bool{"datasource": true}
	for _, a := range queriesOf(t, d) {
		for _, m := range used.FindAllStringSubmatch(a.expr, -1) {
			if in[m[1]] = true; !slices.Contains(have, m[1]) {
				t.Errorf("%v: no variable %s", a, m[1])
			}
		}
	}
	for _, name := range have {
		if !in[name] {
			t.Errorf("%s: no query uses the variable %s", *d.Uid, name)
		}
	}
}

// lintLayout checks that panels are within the grid and do not overlap, that ids and titles are
// unique, and that a row of numbers comes first.
func lintLayout(t *testing.T, d *sdk.Dashboard) {
	t.Helper()
	type box struct{ x, y, w, h uint32 }
	var boxes []box
	ids, titles := map[uint32]bool{}, map[string]bool{}
	take := func(id uint32, title string, g *sdk.GridPos, within string) {
		if id == 0 || ids[id] || title == "" || titles[title] && within == "" {
			t.Errorf("%s, %s: id %d or the title is not unique", *d.Uid, title, id)
		}
		ids[id], titles[title] = true, true
		b := box{g.X, g.Y, g.W, g.H}
		if b.w == 0 || b.h == 0 || b.x+b.w > columnsWide {
			t.Errorf("%s, %s: %+v is outside the grid", *d.Uid, title, b)
		}
		for _, o := range boxes {
			if within == "" && b.x < o.x+o.w && o.x < b.x+b.w && b.y < o.y+o.h && o.y < b.y+b.h {
				t.Errorf("%s, %s: %+v overlaps %+v", *d.Uid, title, b, o)
			}
		}
		if within == "" {
			boxes = append(boxes, b)
		}
	}
	for i, p := range d.Panels {
		switch {
		case p.RowPanel != nil:
			take(p.RowPanel.Id, "row "+*p.RowPanel.Title, p.RowPanel.GridPos, "")
			if p.RowPanel.Collapsed != (len(p.RowPanel.Panels) > 0) {
				t.Errorf("%s, %s: a row has panels exactly if it is collapsed", *d.Uid, *p.RowPanel.Title)
			}
			for _, q := range p.RowPanel.Panels {
				take(*q.Id, *q.Title, q.GridPos, *p.RowPanel.Title)
			}
		case i == 1 && p.Panel.Type != "stat":
			t.Errorf("%s does not begin with a row of numbers", *d.Uid)
			fallthrough
		default:
			take(*p.Panel.Id, *p.Panel.Title, p.Panel.GridPos, "")
		}
	}
	if d.Panels[0].RowPanel == nil {
		t.Errorf("%s does not begin with a row", *d.Uid)
	}
}

// lintPanels checks that the description of a panel is a sentence, that overrides have units, and
// that links lead to a dashboard. TestPublicRules checks the panel's own unit and its queries.
func lintPanels(t *testing.T, d *sdk.Dashboard) {
	t.Helper()
	for _, p := range panelsOf(d) {
		if len(*p.Description) < 15 || !strings.HasSuffix(*p.Description, ".") {
			t.Errorf("%s, %s: bad description", *d.Uid, *p.Title)
		}
		for _, o := range p.FieldConfig.Overrides {
			for _, property := range o.Properties {
				if property.Id == "unit" && !slices.Contains(units, property.Value.(string)) {
					t.Errorf("%s, %s: unit %v", *d.Uid, *p.Title, property.Value)
				}
			}
		}
		const column = 1200 / columnsWide // pixels of a small screen
		if n := shownColumns(p); p.Type == "table" && n*narrowest > int(p.GridPos.W)*column {
			t.Errorf("%s, %s: %d columns are cut off on a screen of 1200 pixels", *d.Uid, *p.Title, n)
		}
		text := fixture.Value(json.Marshal(p))(t)
		for _, quoted := range linkURL.FindAllSubmatch(text, -1) {
			var url string
			fixture.Must(t, json.Unmarshal(quoted[1], &url))
			goal, _, _ := strings.Cut(strings.TrimPrefix(url, "/d/"), "?")
			exists := slices.ContainsFunc(all(), func(o dashboard) bool { return uid(o.name) == goal })
			if !strings.Contains(url, "datasource:queryparam") || !strings.Contains(url, "__url_time_range") ||
				!exists {
				t.Errorf("%s, %s: bad link %s", *d.Uid, *p.Title, url)
			}
			for _, l := range fieldLink.FindAllStringSubmatch(url, -1) {
				for _, a := range queriesOf(t, d) {
					if a.place == *p.Title && !slices.Contains(kept(a.expr), l[1]) && l[1] != "gpu" {
						t.Errorf("%v: its link needs the label %s", a, l[1])
					}
				}
			}
		}
	}
	for _, l := range d.Links {
		if !l.KeepTime || !l.IncludeVars {
			t.Errorf("%s: the link to %s loses the time range or the variables", *d.Uid, l.Title)
		}
	}
}

// shownColumns returns the number of columns of a table.
func shownColumns(p *sdk.Panel) (n int) {
	for _, tr := range p.Transformations {
		if o, ok := tr.Options.(map[string]any); ok && tr.Id == "organize" {
			hidden, _ := o["excludeByName"].(map[string]any)
			for name := range o["indexByName"].(map[string]any) {
				if hidden[name] != true {
					n++
				}
			}
		}
	}
	return n
}

// lintExpr checks that metrics and labels exist, that each selector has the variables, and that
// rates use Grafana's interval.
func lintExpr(t *testing.T, a asked) {
	t.Helper()
	metrics := known()
	labels := slices.Clone(targetLabels)
	found := selector.FindAllStringSubmatch(a.expr, -1)
	fixture.If(t, len(found) == 0, "%v: no selector", a)
	for _, s := range found {
		m := metrics[s[1]]
		if m == nil {
			t.Errorf("%v: there is no metric %s", a, s[1])
			continue
		}
		mine := append(slices.Clone(targetLabels), m.Labels...)
		labels = append(labels, m.Labels...)
		for _, l := range matcher.FindAllStringSubmatch(s[2], -1) {
			if !slices.Contains(mine, l[1]) {
				t.Errorf("%v: %s has no label %s", a, m, l[1])
			}
			if variable := strings.HasPrefix(l[3], "$"); variable && (l[2] != "=~" || l[3] != "$"+l[1]) {
				t.Errorf("%v: %s should be matched as %s=~\"$%[2]s\"", a, l[1], l[1])
			}
		}
		if strings.HasPrefix(a.place, "variable ") {
			continue
		}
		fixture.If(t, !strings.HasPrefix(s[2], string(jobs)), "%v: %s does not select the chosen cluster and job", a, m)
	}
	for _, g := range grouping.FindAllStringSubmatch(a.expr, -1) {
		for l := range strings.SplitSeq(g[1], ", ") {
			fixture.If(t, !slices.Contains(labels, l), "%v: none of its metrics has the label %s", a, l)
		}
	}
	for _, l := range template.FindAllStringSubmatch(a.legend, -1) {
		if strings.HasPrefix(a.place, "annotation ") {
			if !slices.Contains(labels, l[1]) && l[1] != "gpu" {
				t.Errorf("%v: its text needs the label %s", a, l[1])
			}
		} else if !slices.Contains(kept(a.expr), l[1]) {
			t.Errorf("%v: its legend needs the label %s", a, l[1])
		}
	}
	windows := window.FindAllStringSubmatch(a.expr, -1)
	fixture.Equal(t, len(windows), len(anyRange.FindAllString(a.expr, -1)),
		"%v: a range outside of rate and increase", a)
	for _, w := range windows {
		m := metrics[selector.FindStringSubmatch(w[0])[1]]
		if w[2] != "$__rate_interval" && (w[1] != "increase" || w[2] != "$__range") ||
			m != nil && m.Type == collectors.GaugeType && !strings.HasSuffix(m.Name, "_total") {
			t.Errorf("%v: a rate of %v over %s", a, m, w[2])
		}
	}
	for _, s := range found {
		if m := metrics[s[1]]; m != nil && strings.HasSuffix(m.Name, "_total") && len(windows) == 0 &&
			!slices.Contains(standing, m.Name) {
			t.Errorf("%v: a counter without a rate", a)
		}
	}
}

// standing lists counters that are shown without a rate, because their totals are small.
var standing = []string{
	faults.ECCErrors.Name, faults.ECCErrorsByLocation.Name, faults.SRAMUncorrected.Name,
	device.MIGECC.Name, links.IBPortDowned.Name,
}

// TestEveryFamilyIsShown checks that each family of the catalogue is on a dashboard, or has a reason not to be.
func TestEveryFamilyIsShown(t *testing.T) {
	t.Parallel()
	shown := map[string]bool{}
	for _, d := range committed(t) {
		for _, a := range queriesOf(t, d) {
			for _, s := range selector.FindAllStringSubmatch(a.expr, -1) {
				shown[s[1]] = true
			}
		}
	}
	reasons := map[string]string{}
	for _, c := range collectors.All() {
		for _, m := range c.Metrics {
			if c.OptIn && !shown[m.Name] {
				reasons[m.Name] = "opt-in"
			}
		}
	}
	for _, row := range fixture.Rows(t, "testdata/unshown.tsv")[1:] {
		name, reason := row[0], row[1]
		fixture.If(t, known()[name] == nil || reasons[name] != "",
			"unshown.tsv: there is no metric %s, or it needs no row", name)
		reasons[name] = reason
	}
	for _, m := range collectors.Metrics() {
		if shown[m.Name] == (reasons[m.Name] != "") {
			t.Errorf("%s: shown: %v; the reason not to show it in testdata/unshown.tsv is %q", m, shown[m.Name], reasons[m.Name])
		}
	}
}

// TestThresholds compares the thresholds of colours with those of the checks.
func TestThresholds(t *testing.T) {
	t.Parallel()
	fixture.EqualSlices(t, rising("orphan_memory"), []step{{0, green}, {500 << 20, yellow}}, "rising")
	fixture.EqualSlices(t, falling("thermal_margin"), []step{{0, red}, {0, green}}, "falling")
	for _, d := range committed(t) {
		for _, p := range panelsOf(d) {
			var last float64
			for i, s := range p.FieldConfig.Defaults.Thresholds.Steps {
				if (s.Value == nil) != (i == 0) || i > 1 && *s.Value <= last {
					t.Errorf("%s, %s: thresholds do not rise", *d.Uid, *p.Title)
				}
				if s.Value != nil {
					last = *s.Value
				}
			}
		}
	}
}

func TestMain(m *testing.M) {
	plugins.RegisterDefaultPlugins()
	os.Exit(m.Run())
}

// generated returns the text of the files.
func generated(t *testing.T) map[string]string {
	t.Helper()
	files := fixture.Value(Files())(t)
	fixture.Stop(t, len(files) < 7, "%d dashboards", len(files))
	return files
}

// TestGolden compares the generated files with the rows, or writes them with -update. make generate does that.
func TestGolden(t *testing.T) { fixture.GoldenFiles(t, "*.json", generated(t)) }

// TestSchema reads the files by Grafana's own schema: no field is unknown, missing or of another
// type, every value is within its bounds, and nothing is lost in a round trip.
func TestSchema(t *testing.T) {
	t.Parallel()
	for name, text := range generated(t) {
		d, err := strictly([]byte(text))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		again := fixture.Value(json.MarshalIndent(d, "", "  "))(t)
		var want, got any
		fixture.Stop(t, json.Unmarshal([]byte(text), &want) != nil || json.Unmarshal(again, &got) != nil,
			"%s: not JSON", name)
		x, _ := json.Marshal(want)
		y, _ := json.Marshal(got)
		fixture.If(t, !bytes.Equal(x, y), "%s: a round trip through Grafana's schema changes it", name)
	}
	// The schema refuses errors.
	text := generated(t)["gpusteward-fleet.json"]
	for old, wrong := range map[string]string{
		`"gridPos"`:           `"gridPosition"`,
		`"templating"`:        `"template"`,
		`"schemaVersion": 42`: `"schemaVersion": "42"`,
		`"legendFormat"`:      `"legend"`,
	} {
		broken := bytes.Replace([]byte(text), []byte(old), []byte(wrong), 1)
		_, err := strictly(broken)
		fixture.If(t, err == nil || string(broken) == text, "%s as %s is accepted", old, wrong)
	}
}
