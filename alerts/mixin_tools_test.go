//go:build tools

package alerts

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"gpusteward/internal/fixture"
)

// A vendored mixin is what mixin.libsonnet exposes.
type vendored struct {
	Alerts, Rules struct{ Groups []map[string]any }
	Dashboards    map[string]any
}

// mixin evaluates mixin.libsonnet with a configuration.
func mixin(t *testing.T, config string) (m vendored) {
	t.Helper()
	cmd := exec.Command("go", "tool", "-modfile=../deploy/tools/go.mod", "jsonnet", "-e", fmt.Sprintf(
		`local m = (import 'mixin.libsonnet') + { _config+:: %s };
		{ Alerts: m.prometheusAlerts, Rules: m.prometheusRules, Dashboards: m.grafanaDashboards }`, config))
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	fixture.Stop(t, err != nil, "%v: %s", err, &said)
	fixture.Must(t, json.Unmarshal(out, &m))
	return m
}

// TestMixin compares the mixin with the files that it imports: all rules, each once, and all
// dashboards. promtool accepts the rules as mixtool would write them.
func TestMixin(t *testing.T) {
	t.Parallel()
	m := mixin(t, "{ judgement: true, stragglers: true }")
	files := fixture.Value(filepath.Glob("*.rules.yml"))(t)
	want := map[string]any{}
	for _, name := range files {
		text := fixture.Value(os.ReadFile(name))(t)
		var file struct{ Groups []map[string]any }
		fixture.Must(t, yaml.Unmarshal(text, &file))
		for _, g := range file.Groups {
			want[g["name"].(string)] = g
		}
	}
	for _, g := range slices.Concat(m.Alerts.Groups, m.Rules.Groups) {
		name := g["name"].(string)
		fixture.If(t, !reflect.DeepEqual(g, want[name]),
			"the group %s differs from the file's, or is there twice", name)
		delete(want, name)
	}
	for name := range want {
		t.Errorf("the mixin lacks the group %s", name)
	}
	for _, part := range []struct{ Groups []map[string]any }{m.Alerts, m.Rules} {
		path := filepath.Join(t.TempDir(), "rules.yml")
		text := fixture.Value(yaml.Marshal(map[string]any{"groups": part.Groups}))(t)
		fixture.Must(t, os.WriteFile(path, text, 0o644))
		out, err := exec.Command("promtool", "check", "rules", path).CombinedOutput()
		fixture.If(t, err != nil, "promtool: %v\n%s", err, out)
	}
	boards, err := filepath.Glob("../dashboards/gpusteward-*.json")
	if err != nil || len(boards) != len(m.Dashboards) {
		t.Errorf("%d dashboards of %d, %v", len(m.Dashboards), len(boards), err)
	}
	for _, path := range boards {
		text := fixture.Value(os.ReadFile(path))(t)
		var board any
		fixture.Must(t, json.Unmarshal(text, &board))
		fixture.If(t, !reflect.DeepEqual(board, m.Dashboards[filepath.Base(path)]), "%s differs in the mixin", path)
	}
}

// TestMixinIsConfigured checks the configuration of the mixin.
func TestMixinIsConfigured(t *testing.T) {
	t.Parallel()
	m := mixin(t, "{ checks: false, objectives: { scrapes: 0.9 } }")
	var names, objectives []string
	for _, g := range m.Alerts.Groups {
		names = append(names, g["name"].(string))
	}
	for _, g := range m.Rules.Groups {
		if g["name"] == "gpusteward-objectives" {
			for _, r := range g["rules"].([]any) {
				objectives = append(objectives, r.(map[string]any)["expr"].(string))
			}
		}
	}
	fixture.Equal(t, strings.Join(names, " "), "fleet gpusteward-slo", "groups")
	fixture.Equal(t, strings.Join(objectives, " "), "vector(0.99) vector(0.99) vector(0.9)", "objectives")
}

// What byAlert reads of a file of rules, and of one of their tests.
type (
	rulesOf struct {
		Groups []struct {
			Name     string
			Interval string           `yaml:",omitempty"`
			Rules    []map[string]any // with alert, or record
		}
	}
	testsOf struct {
		RuleFiles []string         `yaml:"rule_files"`
		Interval  string           `yaml:"evaluation_interval"`
		Tests     []map[string]any // with alert_rule_test
	}
)

// parsed returns the content of a YAML file.
func parsed[T any](t *testing.T, path string) (v T) {
	t.Helper()
	fixture.Must(t, yaml.Unmarshal(fixture.Value(os.ReadFile(path))(t), &v))
	return v
}

// byAlert writes the tests of each alert into a file, and its rule into another, beside what is recorded. It returns the
// tests' files; that of all, if they are of few alerts. promtool evaluates all rules of a file in each of its tests: a
// minute for the largest file.
func byAlert(t *testing.T, path string) (all []string) {
	t.Helper()
	dir, file := t.TempDir(), parsed[testsOf](t, path)
	tests := map[string][]map[string]any{}
	for _, test := range file.Tests {
		looks := map[string][]any{}
		all, _ := test["alert_rule_test"].([]any)
		for _, look := range all {
			name := look.(map[string]any)["alertname"].(string)
			looks[name] = append(looks[name], look)
		}
		for name, some := range looks {
			one := maps.Clone(test)
			one["alert_rule_test"] = some
			tests[name] = append(tests[name], one)
		}
	}
	if len(tests) < 20 {
		return []string{path}
	}
	for name, of := range tests {
		one := testsOf{Interval: file.Interval, Tests: of}
		for i, rules := range file.RuleFiles {
			few := parsed[rulesOf](t, filepath.Join(filepath.Dir(path), rules))
			for g := range few.Groups {
				few.Groups[g].Rules = slices.DeleteFunc(few.Groups[g].Rules, func(r map[string]any) bool {
					return r["alert"] != nil && r["alert"] != name
				})
			}
			one.RuleFiles = append(one.RuleFiles, fmt.Sprintf("%s.%d.rules.yml", name, i))
			fixture.Rewrite(t, filepath.Join(dir, one.RuleFiles[i]), string(fixture.Value(yaml.Marshal(few))(t)))
		}
		all = append(all, filepath.Join(dir, name+".rules.test.yml"))
		fixture.Rewrite(t, all[len(all)-1], string(fixture.Value(yaml.Marshal(one))(t)))
	}
	return all
}

// promtool runs it, and fails with what it says.
func promtool(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command("promtool", args...).CombinedOutput(); err != nil {
		t.Errorf("promtool (make tools installs it): %v\n%.4000s", err, out)
	}
}

// TestPromtool checks the rules and runs their tests with promtool.
func TestPromtool(t *testing.T) {
	t.Parallel()
	for pattern, command := range map[string]string{"*.rules.yml": "check", "*.rules.test.yml": "test"} {
		files, err := filepath.Glob(pattern)
		fixture.Stop(t, err != nil || len(files) < 3, "%s: %q, %v", pattern, files, err)
		for _, name := range files {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				all := []string{name}
				if command == "test" {
					all = byAlert(t, name)
				}
				promtool(t, append([]string{command, "rules"}, all...)...)
			})
		}
	}
}
