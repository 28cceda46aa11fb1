package exporter

import (
	"cmp"
	"fmt"
	"os"
	"strings"
	"testing"

	"gpusteward/internal/fixture"
)

// A migration is a row of docs/migration.tsv: names of another exporter, and
// the PromQL expression for the same value here.
type migration struct{ of, names, ours, differs string }

// migrations returns the rows of docs/migration.tsv after those of
// /metrics/dcgm (dcgm-default and dcgm-added), which come from dcgmRows unless
// the file has them.
func migrations(t *testing.T) (all []migration) {
	t.Helper()
	text := fixture.Value(os.ReadFile("../docs/migration.tsv"))(t)
	said := map[string]migration{}
	for line := range strings.Lines(string(text)) {
		c := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		fixture.Need(t, len(c), 4, "docs/migration.tsv: %q has … columns", line)
		switch m := (migration{c[0], c[1], c[2], c[3]}); m.of {
		case "of":
		case "dcgm-default", "dcgm-added":
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
		m, of := said[r.name], "dcgm-default"
		delete(said, r.name)
		if i >= len(dcgmDefault) {
			of = "dcgm-added"
		}
		if m.of != "" && m.of != of {
			t.Errorf("docs/migration.tsv: %s is %s, not %s", r.name, of, m.of)
		}
		served = append(served, migration{of, r.name, cmp.Or(m.ours, r.expr()), cmp.Or(m.differs, r.unit())})
	}
	for name := range said {
		t.Errorf("docs/migration.tsv: /metrics/dcgm has no %s", name)
	}
	return append(served, all...)
}

// expr returns the PromQL expression that a row applies to our series.
func (r dcgmRow) expr() string {
	var match, sum []string
	for i, v := range r.match {
		switch label := r.metric.Labels[2+i]; {
		case v == "":
			sum = append(sum, label)
		case strings.Contains(v, "|"):
			sum = append(sum, label)
			match = append(match, fmt.Sprintf("%s=~%q", label, v))
		default:
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

var scales = map[float64]string{1: "", 1e-6: " / 1e6", 100: " * 100", 1000: " * 1000", perMiB: " / 2^20",
	1. / 1024: " / 1024", 1e-3: " / 1000", 1e9: " * 1e9"}

// unit returns the unit of our series if it is different.
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

// TestReferenceOfMigration compares the tables of docs/migration.md with
// docs/migration.tsv and /metrics/dcgm, or writes them under -update.
func TestReferenceOfMigration(t *testing.T) {
	t.Parallel()
	const path = "../docs/migration.md"
	text := fixture.Value(os.ReadFile(path))(t)
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
	if *fixture.Update {
		fixture.Must(t, os.WriteFile(path, []byte(page), 0o644))
		return
	}
	fixture.Equal(t, page, string(text), "%s is not what docs/migration.tsv and /metrics/dcgm say; make generate", path)
}
