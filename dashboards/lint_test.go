package dashboards

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"

	sdk "github.com/grafana/grafana-foundation-sdk/go/dashboard"

	"gpusteward/collectors"
)

// targetLabels are those that Prometheus gives every series.
var targetLabels = []string{"cluster", "job", "instance"}

// units are the ones that panels may have, by Grafana's ids.
var units = []string{"none", "short", "percentunit", "bytes", "binBps", "watt", "celsius", "hertz", "s", "cps", "reqps", "dateTimeFromNow"}

// known are the metrics that there are, by name.
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

// TestLint holds each dashboard against what makes one good.
func TestLint(t *testing.T) {
	t.Parallel()
	titles := map[string]bool{}
	for _, d := range committed(t) {
		if !strings.HasPrefix(*d.Uid, "gpusteward-") || titles[*d.Title] || *d.Description == "" || *d.Refresh != "10s" || !slices.Contains(d.Tags, tag) || d.Id != nil {
			t.Errorf("%s: uid, title, description, refresh or tag", *d.Uid)
		}
		titles[*d.Title] = true
		lintVariables(t, d)
		lintLayout(t, d)
		lintPanels(t, d)
		for _, a := range queriesOf(t, d) {
			if a.datasource != "${datasource}" {
				t.Errorf("%v: asks %q, not the data source that is chosen", a, a.datasource)
			}
			if strings.HasPrefix(a.place, "variable ") && !strings.Contains(a.expr, "{") {
				a.expr += "{}" // the first one, of all clusters
			}
			lintExpr(t, a)
		}
	}
}

// lintVariables wants each variable used, and each one that is used to be there.
func lintVariables(t *testing.T, d *sdk.Dashboard) {
	t.Helper()
	var have []string
	for _, v := range d.Templating.List {
		have = append(have, v.Name)
		if v.Label == nil || v.Type == sdk.VariableTypeQuery && (v.Datasource == nil || *v.Datasource.Uid != "${datasource}") {
			t.Errorf("%s, variable %s: no label, or not of the data source that is chosen", *d.Uid, v.Name)
		}
		if v.IncludeAll != nil && *v.IncludeAll && v.Name == "cluster" && (v.AllValue == nil || *v.AllValue != ".*") {
			t.Errorf("%s: All of cluster is not everything: targets without that label are lost", *d.Uid)
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

// lintLayout wants panels beside one another, within the grid, with ids and
// titles of their own, numbers on top.
func lintLayout(t *testing.T, d *sdk.Dashboard) {
	t.Helper()
	type box struct{ x, y, w, h uint32 }
	var boxes []box
	ids, titles := map[uint32]bool{}, map[string]bool{}
	take := func(id uint32, title string, g *sdk.GridPos, within string) {
		if id == 0 || ids[id] || title == "" || titles[title] && within == "" {
			t.Errorf("%s, %s: id %d or title is not its own", *d.Uid, title, id)
		}
		ids[id], titles[title] = true, true
		b := box{g.X, g.Y, g.W, g.H}
		if b.w == 0 || b.h == 0 || b.x+b.w > columnsWide {
			t.Errorf("%s, %s: %+v is not within the grid", *d.Uid, title, b)
		}
		for _, o := range boxes {
			if within == "" && b.x < o.x+o.w && o.x < b.x+b.w && b.y < o.y+o.h && o.y < b.y+b.h {
				t.Errorf("%s, %s: %+v lies over %+v", *d.Uid, title, b, o)
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
				t.Errorf("%s, %s: a row has panels exactly when it is closed", *d.Uid, *p.RowPanel.Title)
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

// lintPanels wants a description and a unit on every panel, and links that know
// where they go.
func lintPanels(t *testing.T, d *sdk.Dashboard) {
	t.Helper()
	for _, p := range panelsOf(d) {
		config := p.FieldConfig.Defaults
		if len(*p.Description) < 15 || !strings.HasSuffix(*p.Description, ".") || config.Unit == nil || !slices.Contains(units, *config.Unit) ||
			*p.Datasource.Uid != "${datasource}" || len(p.Targets) == 0 {
			t.Errorf("%s, %s: description, unit, data source or queries", *d.Uid, *p.Title)
		}
		for _, o := range p.FieldConfig.Overrides {
			for _, property := range o.Properties {
				if property.Id == "unit" && !slices.Contains(units, property.Value.(string)) {
					t.Errorf("%s, %s: unit %v", *d.Uid, *p.Title, property.Value)
				}
			}
		}
		text, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		for _, quoted := range linkURL.FindAllSubmatch(text, -1) {
			var url string
			if err := json.Unmarshal(quoted[1], &url); err != nil {
				t.Fatal(err)
			}
			goal, _, _ := strings.Cut(strings.TrimPrefix(url, "/d/"), "?")
			if !strings.Contains(url, "datasource:queryparam") || !strings.Contains(url, "__url_time_range") || !slices.ContainsFunc(all(), func(o dashboard) bool { return uid(o.name) == goal }) {
				t.Errorf("%s, %s: link %s", *d.Uid, *p.Title, url)
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
			t.Errorf("%s: the link to %s loses time or variables", *d.Uid, l.Title)
		}
	}
}

// lintExpr wants metrics and labels that there are, with the variables on each
// selector, and rates over Grafana's interval.
func lintExpr(t *testing.T, a asked) {
	t.Helper()
	metrics := known()
	labels := slices.Clone(targetLabels)
	found := selector.FindAllStringSubmatch(a.expr, -1)
	if len(found) == 0 {
		t.Errorf("%v: no selector", a)
	}
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
		if !strings.HasPrefix(s[2], string(jobs)) {
			t.Errorf("%v: %s is not of the chosen cluster and job", a, m)
		}
	}
	for _, g := range grouping.FindAllStringSubmatch(a.expr, -1) {
		for l := range strings.SplitSeq(g[1], ", ") {
			if !slices.Contains(labels, l) {
				t.Errorf("%v: no metric of it has the label %s", a, l)
			}
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
	if len(windows) != len(anyRange.FindAllString(a.expr, -1)) {
		t.Errorf("%v: a range that is no rate's", a)
	}
	for _, w := range windows {
		m := metrics[selector.FindStringSubmatch(w[0])[1]]
		if w[2] != "$__rate_interval" && (w[1] != "increase" || w[2] != "$__range") || m != nil && !strings.HasSuffix(m.Name, "_total") {
			t.Errorf("%v: a rate of %v over %s", a, m, w[2])
		}
	}
	for _, s := range found {
		if m := metrics[s[1]]; m != nil && strings.HasSuffix(m.Name, "_total") && len(windows) == 0 && !slices.Contains(standing, m.Name) {
			t.Errorf("%v: a counter as it stands", a)
		}
	}
}

// standing are counters that are shown as they stand: so few that the count
// says more than a rate.
var standing = []string{collectors.ECCErrors.Name, collectors.ECCErrorsByLocation.Name, collectors.SRAMUncorrected.Name, collectors.MIGECC.Name, collectors.IBPortDowned.Name}

// TestEveryFamilyIsShown wants each family of the catalogue on some dashboard,
// or a reason.
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
	for _, m := range collectors.Metrics() {
		if shown[m.Name] == (unshown[m.Name] != "") {
			t.Errorf("%s: shown %v, reason not to be %q", m, shown[m.Name], unshown[m.Name])
		}
	}
	for name := range unshown {
		if known()[name] == nil {
			t.Errorf("unshown: there is no metric %s", name)
		}
	}
}

// TestThresholdsAreTheChecks holds the colours of numbers against the checks.
func TestThresholdsAreTheChecks(t *testing.T) {
	t.Parallel()
	if got, want := rising("orphan_memory"), []step{{0, green}, {500 << 20, yellow}}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if got, want := falling("thermal_margin"), []step{{0, red}, {0, green}}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
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
