package exporter

import (
	_ "embed" // the table
	"fmt"
	"slices"
	"strings"

	"github.com/prometheus/alertmanager/pkg/labels"

	"gpusteward/collectors"
)

// minimalTable has the series of the minimal profile, a row each: a metric,
// matchers of its labels, and how. alerts derives it from the rules.
//
//go:embed minimal.tsv
var minimalTable string

// minimalProfile is the table by the names of metrics.
var minimalProfile = readProfile(minimalTable)

type profile map[string][]needed

// needed are series that are shown.
type needed struct {
	labels labels.Matchers
	zeros  string // those of them that are 0: all, one of each GPU, or found
}

// rowsOf returns the rows of a table without its comments, which begin with #.
func rowsOf(table string) (all [][]string) {
	for line := range strings.Lines(table) {
		if !strings.HasPrefix(line, "#") {
			all = append(all, strings.Split(strings.TrimSuffix(line, "\n"), "\t"))
		}
	}
	return all
}

// readProfile panics at a bad row: the table is a part of the program.
func readProfile(table string) profile {
	p := profile{}
	for _, cells := range rowsOf(table) {
		m, err := labels.ParseMatchers(cells[1])
		if err != nil {
			panic(fmt.Sprintf("exporter: minimal.tsv: %q: %v", cells, err))
		}
		p[cells[0]] = append(p[cells[0]], needed{m, cells[2]})
	}
	return p
}

// matches reports whether s is one of the series.
func (n needed) matches(s collectors.Sample) bool {
	return !slices.ContainsFunc(n.labels, func(m *labels.Matcher) bool {
		value := ""
		if at := slices.Index(s.Metric.Labels, m.Name); at >= 0 {
			value = s.Labels[at]
		}
		return !m.Matches(value)
	})
}

// Minimal returns the samples of the minimal profile.
func Minimal(samples []collectors.Sample) []collectors.Sample { return minimalProfile.of(samples) }

// of returns the samples that the profile shows.
func (p profile) of(samples []collectors.Sample) (shown []collectors.Sample) {
	type group struct {
		metric *collectors.Metric
		gpu    string
		row    int // of the metric; found: all of those
	}
	const found = -1
	first := map[group]int{} // index of the sample with the least labels
	told := map[group]bool{} // another row shows that the metric was read
	show := make([]bool, len(samples))
	for i, s := range samples {
		rows := p[s.Metric.Name]
		if rows == nil {
			continue
		}
		all := group{metric: s.Metric, row: found}
		if len(s.Metric.Labels) > 0 && s.Metric.Labels[0] == "gpu" {
			all.gpu = s.Labels[0]
		}
		for row, n := range rows {
			if !n.matches(s) {
				continue
			}
			show[i] = show[i] || s.Value != 0 || n.zeros == "all"
			g := all
			if n.zeros != "found" {
				told[all] = true
				g.row = row
			}
			if f, has := first[g]; !has || slices.Compare(s.Labels, samples[f].Labels) < 0 {
				first[g] = i
			}
		}
	}
	for g, i := range first {
		if g.row != found || !told[g] {
			show[i] = true
		}
	}
	for i, s := range samples {
		if show[i] {
			shown = append(shown, s)
		}
	}
	return shown
}
