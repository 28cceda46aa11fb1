package main

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the table of docs/otlp.md")

// table returns the table of the conventions in Markdown.
func table() string {
	var b strings.Builder
	for _, c := range conventions {
		var match, attributes []string
		for _, k := range slices.Sorted(maps.Keys(c.match)) {
			match = append(match, fmt.Sprintf("%s=%q", k, c.match[k]))
		}
		for _, k := range slices.Sorted(maps.Keys(c.add)) {
			attributes = append(attributes, fmt.Sprintf("`%s=%q`", k, c.add[k]))
		}
		for _, k := range slices.Sorted(maps.Keys(c.rename)) {
			attributes = append(attributes, fmt.Sprintf("`%s` from `%s`", c.rename[k], k))
		}
		series, instrument := c.family, "Gauge"
		if match != nil {
			series += "{" + strings.Join(match, ",") + "}"
		}
		switch {
		case c.updown:
			instrument = "UpDownCounter"
		case strings.HasSuffix(c.family, "_total"):
			instrument = "Counter"
		}
		fmt.Fprintf(&b, "| `%s` | `%s` | `%s` | %s | %s |\n", series, c.name, c.unit, instrument,
			strings.Join(attributes, ", "))
	}
	return b.String()
}

// TestDocumentedConventions compares the table of docs/otlp.md with the
// conventions, or writes it under -update.
func TestDocumentedConventions(t *testing.T) {
	const path, heading = "../../docs/otlp.md", "|---|---|---|---|---|\n"
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, _ := strings.Cut(string(text), heading)
	old, after, _ := strings.Cut(rest, "\n\n")
	if *update {
		page := before + heading + table() + "\n" + after
		if err := os.WriteFile(path, []byte(page), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if old+"\n" != table() {
		t.Errorf("%s has another table than conventions.go (go test -update):\n%s", path, table())
	}
}
