package hook

import (
	"debug/elf"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"gpusteward/internal/fixture"
)

// TestFloors compares the sources with the floors of hook.h. No part includes a part of a higher floor or uses what
// is defined there, and no parts do so in a circle.
func TestFloors(t *testing.T) {
	t.Parallel()
	so, _ := here.made(t)
	text := fixture.Value(os.ReadFile("src/base/hook.h"))(t)
	height, listed := map[string]int{}, map[string]string{}
	for i, m := range regexp.MustCompile(`(?m)^ \* (\w+): .*\n((?: \* {3}.*\n)+)`).FindAllSubmatch(text, -1) {
		height[string(m[1])], listed[string(m[1])] = i, string(m[2])
	}
	floor := func(part string) int { return height[filepath.Dir(part)] }
	uses, home, wants := map[string][]string{}, map[string]string{}, map[string][]string{}
	use := func(part, other, how string) {
		uses[part] = append(uses[part], other)
		if floor(other) > floor(part) {
			t.Errorf("%s %s %s, on a higher floor", part, how, other)
		}
	}
	paths := fixture.Value(filepath.Glob("src/*/*.[ch]"))(t)
	fixture.AtLeast(t, len(paths), 70, "… files in src")
	for _, path := range paths {
		part := strings.TrimPrefix(strings.TrimSuffix(path, filepath.Ext(path)), "src/")
		dir, name := filepath.Split(part)
		if !regexp.MustCompile(`\b` + name + `\b`).MatchString(listed[filepath.Clean(dir)]) {
			t.Errorf("hook.h does not list %s on the floor %s", name, dir)
		}
		source := fixture.Value(os.ReadFile(path))(t)
		for _, m := range regexp.MustCompile(`(?m)^#include "(.*)\.h"`).FindAllSubmatch(source, -1) {
			use(part, string(m[1]), "includes")
		}
		if filepath.Ext(path) == ".h" {
			continue
		}
		object := fixture.Value(elf.Open(filepath.Join(filepath.Dir(so), name+".o")))(t)
		defer object.Close()
		symbols := fixture.Value(object.Symbols())(t)
		for _, s := range symbols {
			switch {
			case s.Section == elf.SHN_UNDEF:
				wants[part] = append(wants[part], s.Name)
			case elf.ST_BIND(s.Info) != elf.STB_LOCAL:
				home[s.Name] = part
			}
		}
	}
	fixture.AtLeast(t, len(home), 300, "… symbols")
	for part, names := range wants {
		for _, name := range names {
			if home[name] != "" {
				use(part, home[name], "uses "+name+" of")
			}
		}
	}
	fixture.EqualSlices(t, fixture.Circle(uses), nil, "parts that use each other in a circle")
}

// TestLimits checks that each number of the gate has a unit, a reason, and a test in test_gate.c that holds it.
func TestLimits(t *testing.T) {
	t.Parallel()
	table := string(fixture.Value(os.ReadFile("src/streams/limits.h"))(t))
	tests := string(fixture.Value(os.ReadFile("test/test_gate.c"))(t))
	row := regexp.MustCompile(`#define [A-Z_]+ +\d+ +/\* (?:ns|times|launches): .{20,}\n +\* test: (\w+) \*/`)
	rows := row.FindAllStringSubmatch(table, -1)
	fixture.Equal(t, len(rows), strings.Count(table, "\n#define ")-1, "rows with a unit, a reason and a test")
	for _, r := range rows {
		if r[1] != "none" {
			fixture.Contains(t, tests, "TEST("+r[1]+"),", "test_gate.c lacks a test of limits.h:")
		}
	}
}
