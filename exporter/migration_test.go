package exporter

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"

	"gpusteward/collectors"
)

// A migration is a row of docs/migration.tsv: names of another exporter, and
// what says the same here in its unit, as PromQL.
type migration struct{ of, names, ours, differs string }

// migrations returns the rows of docs/migration.tsv, with those of /metrics/dcgm
// before them: what these are is said by dcgmRows, unless the file does.
func migrations(t *testing.T) (all []migration) {
	t.Helper()
	text, err := os.ReadFile("../docs/migration.tsv")
	if err != nil {
		t.Fatal(err)
	}
	said := map[string]migration{}
	for line := range strings.Lines(string(text)) {
		c := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(c) != 4 {
			t.Fatalf("docs/migration.tsv: %q has %d columns, want 4", line, len(c))
		}
		switch m := (migration{c[0], c[1], c[2], c[3]}); m.of {
		case "of":
		case "dcgm-default":
			said[m.names] = m
		default:
			all = append(all, m)
		}
	}
	var served []migration
	for i, r := range dcgmRows {
		if i > 0 && dcgmRows[i-1].name == r.name {
			continue
		}
		m := said[r.name]
		delete(said, r.name)
		served = append(served, migration{"dcgm-default", r.name, cmp.Or(m.ours, r.expr()), cmp.Or(m.differs, r.unit())})
	}
	for name := range said {
		t.Errorf("docs/migration.tsv: /metrics/dcgm has no %s", name)
	}
	return append(served, all...)
}

// expr is what a row makes of our series, as PromQL.
func (r dcgmRow) expr() string {
	var match, sum []string
	for i, v := range r.match {
		if label := r.metric.Labels[2+i]; v == "" {
			sum = append(sum, label)
		} else {
			match = append(match, fmt.Sprintf("%s=%q", label, v))
		}
	}
	e := r.metric.Name
	if match != nil {
		e += "{" + strings.Join(match, ",") + "}"
	}
	if sum != nil {
		e = fmt.Sprintf("sum without (%s) (%s)", strings.Join(sum, ", "), e)
	}
	return e + scales[r.scale]
}

var scales = map[float64]string{1: "", 1e-6: " / 1e6", 100: " * 100", 1000: " * 1000", perMiB: " / 2^20", 1. / 1024: " / 1024"}

// unit says what ours counts in, where that is something else.
func (r dcgmRow) unit() string {
	name := strings.TrimSuffix(r.metric.Name, "_total")
	switch unit := name[strings.LastIndexByte(name, '_')+1:]; {
	case r.scale == 1:
		return ""
	case unit == "ratio":
		return "0 to 1"
	default:
		return unit
	}
}

// TestReferenceOfMigration holds the tables of docs/migration.md against
// docs/migration.tsv and what /metrics/dcgm serves, or writes them under
// -update.
func TestReferenceOfMigration(t *testing.T) {
	t.Parallel()
	const path = "../docs/migration.md"
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	tables := map[string]string{}
	for _, m := range migrations(t) {
		names := "`" + strings.ReplaceAll(m.names, " ", "`<br>`") + "`"
		ours := ""
		if m.ours != "" {
			ours = "`" + strings.ReplaceAll(m.ours, "|", `\|`) + "`"
		}
		tables[m.of] += fmt.Sprintf("| %s | %s | %s |\n", names, ours, strings.ReplaceAll(m.differs, "|", `\|`))
	}
	page := string(text)
	for of, rows := range tables {
		begin, end := "<!-- "+of+": written by make generate -->\n", "<!-- end -->"
		before, rest, ok := strings.Cut(page, begin)
		_, after, ended := strings.Cut(rest, end)
		if !ok || !ended {
			t.Fatalf("%s has no %q with its %q", path, begin, end)
		}
		page = before + begin + "| theirs | ours, in their unit | what differs |\n|---|---|---|\n" + rows + end + after
	}
	if *update {
		if err := os.WriteFile(path, []byte(page), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if page != string(text) {
		t.Errorf("%s is not what docs/migration.tsv and /metrics/dcgm say; make generate", path)
	}
}

// TestMigrationOfDCGM has Prometheus compute what the page says of each of
// dcgm-exporter's names from /metrics, and compare it with /metrics/dcgm.
func TestMigrationOfDCGM(t *testing.T) {
	t.Parallel()
	var s samples
	s.host(2, 2)
	s.h100("0")
	s.h100("1")
	var b strings.Builder
	b.WriteString("evaluation_interval: 1m\ntests:\n  - interval: 1m\n    input_series:\n")
	input := func(name string, labels []*dto.LabelPair, v float64) {
		var pairs []string
		for _, l := range labels {
			pairs = append(pairs, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
		}
		fmt.Fprintf(&b, "      - {series: '%s{%s}', values: '%v'}\n", name, strings.Join(pairs, ","), v)
	}
	served := server(t, func(o *Options) { o.Samples = func() []collectors.Sample { return s } })
	for _, path := range []string{"/metrics", "/metrics/dcgm"} {
		for name, f := range parse(t, request(served, "GET", path).Body) {
			if strings.HasPrefix(name, "nvgpu_") || strings.HasPrefix(name, "DCGM_") {
				for _, m := range f.GetMetric() {
					input(name, m.Label, m.GetGauge().GetValue()+m.GetCounter().GetValue())
				}
			}
		}
	}
	b.WriteString("    promql_expr_test:\n")
	n := 0
	for _, m := range migrations(t) {
		if m.of != "dcgm-default" || m.names == "DCGM_FI_DEV_XID_ERRORS" { // no expression makes a value of a label
			continue
		}
		n++
		// Theirs is a whole number where units are converted.
		fmt.Fprintf(&b, "      - expr: 'min by (gpu) (abs((%s) - on (gpu) %s) <= bool 0.5)'\n        eval_time: 0s\n        exp_samples:\n", m.ours, m.names)
		for _, gpu := range []string{"0", "1"} {
			fmt.Fprintf(&b, "          - {labels: '{gpu=%q}', value: 1}\n", gpu)
		}
	}
	if n != 27 {
		t.Errorf("%d of dcgm-exporter's 28 names compared, want all but one", n)
	}
	file := filepath.Join(t.TempDir(), "migration.test.yml")
	if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("promtool", "test", "rules", file).CombinedOutput(); err != nil {
		t.Errorf("promtool (make tools installs it): %v\n%s", err, out)
	}
}
