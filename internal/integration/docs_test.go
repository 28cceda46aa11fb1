package integration

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"gpusteward/collectors"
	_ "gpusteward/collectors/all"
	"gpusteward/internal/bounds"
	"gpusteward/internal/config"
	"gpusteward/internal/fixture"
)

// documents returns the pages for people, by path.
func documents(t *testing.T) map[string]string {
	t.Helper()
	docs, err := filepath.Glob("docs/*.md")
	fixture.Stop(t, err != nil || len(docs) < 7, "docs/*.md: %q, %v", docs, err)
	all := map[string]string{}
	for _, path := range append(docs, "README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "alerts/RUNBOOK.md",
		"collectors/METRICS.md") {
		text := content(t, path)
		all[path] = text
	}
	return all
}

var (
	fence    = regexp.MustCompile("(?ms)^ *```([a-z]*)\n(.*?)^ *```$")
	codeSpan = regexp.MustCompile("`[^`\n]+`")
	link     = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading  = regexp.MustCompile(`(?m)^#+ (.*)$`)
)

// anchors are the anchors of a page, as GitHub makes them.
func anchors(page string) (all []string) {
	for _, h := range heading.FindAllStringSubmatch(fence.ReplaceAllString(page, ""), -1) {
		slug := regexp.MustCompile(`[^a-z0-9 _-]`).ReplaceAllString(strings.ToLower(h[1]), "")
		all = append(all, strings.ReplaceAll(slug, " ", "-"))
	}
	return all
}

// TestDocumentsLink: each link from page to page has a target.
func TestDocumentsLink(t *testing.T) {
	t.Parallel()
	fixture.OneGoroutine(t)
	pages := documents(t)
	n := 0
	for path, text := range pages {
		text = codeSpan.ReplaceAllString(fence.ReplaceAllString(text, ""), "")
		for _, l := range link.FindAllStringSubmatch(text, -1) {
			to, anchor, anchored := strings.Cut(l[1], "#")
			if strings.Contains(to, "://") {
				continue
			}
			n++
			target := path
			if to != "" {
				target = filepath.Join(filepath.Dir(path), to)
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s links to %s: %v", path, l[1], err)
			} else if page, ok := pages[target]; anchored && ok && !slices.Contains(anchors(page), anchor) {
				t.Errorf("%s links to %s: %s has no such heading; it has %q", path, l[1], target, anchors(page))
			}
		}
	}
	fixture.AtLeast(t, n, 40, "links")
}

// TestDocumentsSize: the pages that are meant to be read in one go are short, and the comment of
// each large package explains it.
func TestDocumentsSize(t *testing.T) {
	t.Parallel()
	pages, code, told := documents(t), map[string]int{}, map[string]int{}
	for path, f := range sources(t) {
		code[filepath.Dir(path)] += strings.Count(content(t, path), "\n")
		told[filepath.Dir(path)] += strings.Count(f.Doc.Text(), "\n")
	}
	for dir, n := range code {
		fixture.Equal(t, n > 2000 && told[dir] < 15, false, "%s has %d lines, and %d explain it", dir, n, told[dir])
	}
	fixture.Equal(t, len(strings.Fields(pages["ARCHITECTURE.md"])) > 2000, false, "ARCHITECTURE.md has too many words")
	fixture.Equal(t, strings.Count(pages["docs/jobs.md"], "\n") > 150, false, "docs/jobs.md has too many lines")
}

var ownPath = regexp.MustCompile(`^(?:alerts|collectors|dashboards|deploy|docs|enforcer|exporter|health|` +
	`internal|testdata)/[\w./*-]+$`)

// TestDocumentsPaths: each file and folder that a page names exists.
func TestDocumentsPaths(t *testing.T) {
	t.Parallel()
	n := 0
	for page, text := range documents(t) {
		for _, span := range codeSpan.FindAllString(fence.ReplaceAllString(text, ""), -1) {
			name := strings.Trim(span, "`")
			if !ownPath.MatchString(name) || strings.Contains(name, "NAME") {
				continue
			}
			n++
			if found, err := filepath.Glob(name); err != nil || len(found) == 0 {
				t.Errorf("%s names %s, which is not there: %v", page, name, err)
			}
		}
	}
	fixture.AtLeast(t, n, 70, "paths")
}

var (
	metricName = regexp.MustCompile(`\b(?:nvgpu|gpusteward)_[a-z][a-z0-9_]*\*?`)
	selector   = regexp.MustCompile(`\b((?:nvgpu|gpusteward)_[a-z0-9_]+)\{([^}]*)\}`)
	matcher    = regexp.MustCompile(`([a-z_]+)(?:=~|!=|!~|=)"`)
)

// targets are the labels that Prometheus gives every series.
var targets = []string{"cluster", "job", "instance"}

// TestDocumentsMetrics: each metric that a page names exists, with the labels in its selector.
func TestDocumentsMetrics(t *testing.T) {
	t.Parallel()
	known := map[string][]string{"gpusteward_build_info": {"version", "revision", "goversion"}}
	for _, m := range collectors.Metrics() {
		known[m.Name] = m.Labels
		if m.Type == collectors.HistogramType {
			known[m.Name+"_bucket"] = append(m.Labels[:len(m.Labels):len(m.Labels)], "le")
		}
	}
	exists := func(name string) bool {
		prefix, some := strings.CutSuffix(name, "*")
		some = some || strings.HasSuffix(name, "_")
		for n := range known {
			if n == name || some && strings.HasPrefix(n, prefix) {
				return true
			}
		}
		return false
	}
	var recorded []string // names of recording rules, which contain names of metrics
	for _, file := range []string{"alerts/recording.rules.yml", "alerts/stragglers.rules.yml",
		"alerts/slo.rules.yml", "alerts/objectives.rules.yml"} {
		rules := content(t, file)
		for _, m := range regexp.MustCompile(`record: (\S+)`).FindAllStringSubmatch(rules, -1) {
			recorded = append(recorded, m[1], "")
		}
	}
	n := 0
	for path, text := range documents(t) {
		text = strings.NewReplacer(recorded...).Replace(text)
		for _, name := range metricName.FindAllString(text, -1) {
			n++
			fixture.If(t, !exists(name), "%s: there is no metric %s", path, name)
		}
		for _, s := range selector.FindAllStringSubmatch(text, -1) {
			for _, m := range matcher.FindAllStringSubmatch(s[2], -1) {
				if !slices.Contains(known[s[1]], m[1]) && !slices.Contains(targets, m[1]) {
					t.Errorf("%s: %s has no label %s", path, s[1], m[1])
				}
			}
		}
	}
	fixture.AtLeast(t, n, 500, "names")
}

// TestDocumentsConfigurations: each piece of our configuration in a page is valid.
func TestDocumentsConfigurations(t *testing.T) {
	t.Parallel()
	ours := regexp.MustCompile(`(?m)^(collectors|workloads|health|enforcer|web):`)
	n := 0
	for path, text := range documents(t) {
		for _, b := range fence.FindAllStringSubmatch(text, -1) {
			if b[1] != "yaml" || !ours.MatchString(b[2]) {
				continue
			}
			n++
			if _, err := config.Load(fixture.Config(t, b[2])); err != nil {
				t.Errorf("%s: %v in\n%s", path, err, b[2])
			}
		}
	}
	fixture.AtLeast(t, n, 3, "configurations")
}

var (
	command = regexp.MustCompile("(?m)(?:^ *(?:\\$ )?|`)(?:sudo |systemd-run .*-- )?(?:\\./)?gpusteward((?: " +
		"[^`#\n|]*)?)")
	option = regexp.MustCompile(`--(?:\[no-\])?[a-z][a-z.-]*`)
)

// TestDocumentsCommands: the flags and subcommands of the command lines in pages exist.
func TestDocumentsCommands(t *testing.T) {
	t.Parallel()
	var help bytes.Buffer
	fixture.Need(t, run(context.Background(), []string{"--help"}, &help, &help), 0, "--help ends with")
	flags := map[string]bool{}
	for _, f := range option.FindAllString(help.String(), -1) {
		flags[strings.Replace(f, "[no-]", "", 1)] = true
	}
	n := 0
	for path, text := range documents(t) {
		for _, c := range command.FindAllStringSubmatch(text, -1) {
			n++
			line, _, _ := strings.Cut(c[1]+" ", " -- ")
			for _, f := range option.FindAllString(line, -1) {
				fixture.Equal(t, flags[f], true, "%s: gpusteward%s: there is no flag %s", path, line, f)
			}
			word := strings.Fields(line + " agent")[0]
			if !strings.HasPrefix(word, "-") && regexp.MustCompile(`^[a-z]+$`).MatchString(word) &&
				!strings.Contains(help.String(), "\n"+word+" ") && !strings.Contains(help.String(), "\n"+word+"\n") {
				t.Errorf("%s: gpusteward%s: there is no command %s", path, line, word)
			}
		}
	}
	fixture.AtLeast(t, n, 40, "commands")
}

// TestTroubleshootingQuotes: the messages that docs/troubleshooting.md quotes
// are in the programs' source. Each part of a line between dots counts.
func TestTroubleshootingQuotes(t *testing.T) {
	t.Parallel()
	var source strings.Builder
	for _, pattern := range []string{"*.go", "*/*.go", "*/*/*.go", "*/*/*/*.go", "enforcer/hook/src/*/*.c"} {
		files := fixture.Value(filepath.Glob(pattern))(t)
		for _, name := range files {
			if text, err := os.ReadFile(name); err == nil && !strings.HasSuffix(name, "_test.go") {
				source.Write(text)
			}
		}
	}
	// A literal that is split over lines counts as one.
	said := regexp.MustCompile(`" ?\+\n\s*"`).ReplaceAllString(source.String(), "")
	n := 0
	for line := range strings.Lines(documents(t)["docs/troubleshooting.md"]) {
		quote, ok := strings.CutPrefix(line, "> - `")
		if !ok {
			continue
		}
		for _, part := range strings.Split(strings.TrimSuffix(strings.TrimSpace(quote), "`"), "...") {
			if part = strings.TrimSpace(part); part == "" {
				continue
			}
			n++
			fixture.Contains(t, said, part, "docs/troubleshooting.md: nothing says")
		}
	}
	fixture.AtLeast(t, n, 15, "quotes")
}

// excerpt is a block of CONTRIBUTING.md and its file.
var excerpt = regexp.MustCompile("(?ms)^From `([^`\n]+)`:\n\n```[a-z]*\n(.*?)^```$")

var indentation = regexp.MustCompile(`\s*\n\s*`)

// undented returns the lines of a text without their indentation.
func undented(text string) string { return indentation.ReplaceAllString(strings.TrimSpace(text), "\n") }

// TestContributingExamples compares each excerpt of CONTRIBUTING.md with its
// file, and requires one for each kind of addition.
func TestContributingExamples(t *testing.T) {
	t.Parallel()
	page := documents(t)["CONTRIBUTING.md"]
	var with []string // headings of sections that have excerpts
	for _, section := range strings.Split(page, "\n## ")[1:] {
		title, _, _ := strings.Cut(section, "\n")
		found := excerpt.FindAllStringSubmatch(section, -1)
		blocks := len(fence.FindAllString(section, -1))
		fixture.If(t, blocks != len(found),
			"CONTRIBUTING.md, %s: %d blocks, and %d that say which file they are from", title, blocks, len(found))
		for _, e := range found {
			source, err := os.ReadFile(e[1])
			if err != nil {
				t.Errorf("CONTRIBUTING.md, %s: %v", title, err)
			} else if !strings.Contains("\n"+undented(string(source))+"\n", "\n"+undented(e[2])+"\n") {
				t.Errorf("CONTRIBUTING.md, %s: %s does not have\n%s", title, e[1], e[2])
			}
			with = append(with, title)
		}
	}
	for _, title := range []string{"Add a collector", "Add a check", "Add a panel", "Add a quota term", "Add a command",
		"Add an endpoint", "Wrap a driver call"} {
		fixture.If(t, !slices.Contains(with, title), "CONTRIBUTING.md has no example in a section %q", title)
	}
}

// TestLanes: a file is in the lane of its name. make finds the tests of a lane
// by the name, and Go builds them by the tag.
func TestLanes(t *testing.T) {
	t.Parallel()
	name, tag := regexp.MustCompile(`_(long|nightly|timed|tools)_test\.go$`),
		regexp.MustCompile(`(?m)^//go:build (long|nightly|timed|tools)$`)
	lanes := map[string]int{}
	err := filepath.WalkDir(".", func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		named := append(name.FindStringSubmatch(path), "", "")[1]
		tagged := append(tag.FindStringSubmatch(string(text)), "", "")[1]
		fixture.Equal(t, named != tagged, false, "%s: the name says lane %q, the build tag %q", path, named, tagged)
		lanes[named]++
		return nil
	})
	fixture.Must(t, err)
	for _, lane := range []string{"long", "nightly", "timed", "tools"} {
		fixture.Equal(t, lanes[lane] == 0, false, "lane %s has no file", lane)
	}
}

// TestReferenceOfHealth compares health/METRICS.md with the metrics that health
// adds to those of the collectors, or writes it under -update.
func TestReferenceOfHealth(t *testing.T) {
	t.Parallel()
	read := content(t, "collectors/METRICS.md")
	var b strings.Builder
	b.WriteString("# Metrics of health\n\n`make generate` writes this page from the catalogue; do not edit it. These " +
		"metrics are derived from the readings in\n" +
		"[collectors/METRICS.md](../collectors/METRICS.md). Families whose name begins with `nvgpu_peer`, " +
		"`nvgpu_anomaly` or\n" +
		"`nvgpu_drift`, and forecasts, are absent if there is nothing to compare with or no trend.\n\n" +
		"| metric | type | labels | description |\n|---|---|---|---|\n")
	n := 0
	for _, m := range collectors.Metrics() {
		if !strings.Contains(read, "`"+m.Name+"`") {
			fmt.Fprintf(&b, "| `%s` | %v | %s | %s |\n", m, m.Type, strings.Join(m.Labels, ", "),
				strings.ReplaceAll(m.Help, "|", "\\|"))
			n++
		}
	}
	fixture.AtLeast(t, n, 30, "… metrics of health; are they linked in?")
	fixture.Golden(t, "health/METRICS.md", b.String())
}

// TestReferenceOfBounds compares the table of docs/operations.md and the limits of
// the units with the constants that hold the bounds, or writes them under -update.
func TestReferenceOfBounds(t *testing.T) {
	t.Parallel()
	fixture.OneGoroutine(t)
	all := fixture.Value(bounds.Read("."))(t)
	page := content(t, "docs/operations.md")
	before, rest, _ := strings.Cut(page, "\n## Bounds\n")
	_, rest, _ = strings.Cut(rest, "\n| what | ")
	_, after, is := strings.Cut(rest, "|\n\n")
	fixture.Stop(t, !is, "docs/operations.md has no table of bounds")
	head, _, _ := strings.Cut(page[len(before):], "| what | ")
	fixture.Golden(t, "docs/operations.md", before+head+bounds.Table(all)+"\n"+after)
	for program, path := range map[string]string{"observer": "deploy/systemd/gpusteward.service",
		"broker": "deploy/systemd/gpusteward-broker.service"} {
		unit := content(t, path)
		for _, key := range bounds.Limits {
			fixture.Contains(t, unit, "\n"+key+"=", "%s", path)
			fixture.AtLeast(t, bounds.Limit(all, program, key), 64, "%s of the %s", key, program)
		}
		fixture.Golden(t, path, bounds.Unit(all, program, unit))
	}
}
