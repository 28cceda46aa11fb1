package integration

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"gpusteward/collectors"
	"gpusteward/internal/config"
	"gpusteward/internal/fixture"
)

// documents returns the pages for people, by path.
func documents(t *testing.T) map[string]string {
	t.Helper()
	docs, err := filepath.Glob("docs/*.md")
	if err != nil || len(docs) < 7 {
		t.Fatalf("docs/*.md: %q, %v", docs, err)
	}
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

// TestDocumentsMetrics: each metric that a page names exists, with the labels
// in its selector.
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
		if !some && !strings.HasSuffix(name, "_") {
			_, ok := known[name]
			return ok
		}
		for n := range known {
			if strings.HasPrefix(n, prefix) {
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
			if n++; !exists(name) {
				t.Errorf("%s: there is no metric %s", path, name)
			}
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

// TestDocumentsConfigurations: each piece of our configuration in a page is
// valid.
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

// TestDocumentsCommands: the flags and subcommands of the command lines in
// pages exist.
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
	for _, pattern := range []string{"*.go", "*/*.go", "*/*/*.go", "*/*/*/*.go", "enforcer/hook/src/*.c"} {
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
			if n++; !strings.Contains(said, part) {
				t.Errorf("docs/troubleshooting.md: nothing says %q", part)
			}
		}
	}
	fixture.AtLeast(t, n, 15, "quotes")
}
