package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"gpusteward/collectors"
)

const reference = "deploy/gpusteward.yml"

// check runs "gpusteward config check FILE".
func check(t *testing.T, path string) (status int, out, errors string) {
	t.Helper()
	var o, e bytes.Buffer
	status = run(context.Background(), []string{"config", "check", path}, &o, &e)
	return status, o.String(), e.String()
}

func TestConfigCheckAcceptsAGoodFile(t *testing.T) {
	t.Parallel()
	for _, path := range []string{reference, "testdata/config/quick.yml", write(t, ""), write(t, "# nothing\n"), write(t, "collectors:\n")} {
		if status, out, errors := check(t, path); status != 0 || out != path+" is good.\n" || errors != "" {
			t.Errorf("%s: status %d, %q, %q", path, status, out, errors)
		}
	}
}

func TestConfigCheckRefusesWithFileLineAndKey(t *testing.T) {
	t.Parallel()
	paths, err := filepath.Glob("testdata/config/invalid/*.yml")
	if err != nil || len(paths) < 20 {
		t.Fatalf("%d files, %v", len(paths), err)
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".yml"), func(t *testing.T) {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			first, _, _ := strings.Cut(string(text), "\n")
			want, ok := strings.CutPrefix(first, "# want: ")
			if !ok {
				t.Fatalf("%s does not begin with what its error says, as # want: ...", path)
			}
			status, out, errors := check(t, path)
			if status != 1 || out != "" || !strings.HasPrefix(errors, path+":") || !strings.Contains(errors, want) {
				t.Errorf("status %d, stdout %q, stderr\n%swant 1, nothing, and %s: with %s", status, out, errors, path, want)
			}
			for _, inside := range []string{"main.", "time.Duration", "!!", "yaml: "} {
				if strings.Contains(errors, inside) {
					t.Errorf("the message speaks of %q, which is no business of who writes YAML:\n%s", inside, errors)
				}
			}
		})
	}
}

func TestConfigCheckReportsEveryWrongType(t *testing.T) {
	t.Parallel()
	_, _, errors := check(t, "testdata/config/invalid/every_problem.yml")
	for _, want := range []string{":3: collectors.per_link:", ":5: web.max_scrapes:"} {
		if !strings.Contains(errors, want) {
			t.Errorf("the message lacks %s\n%s", want, errors)
		}
	}
}

func TestConfigCheckReportsEachPartThatCannotWork(t *testing.T) {
	t.Parallel()
	_, _, errors := check(t, write(t, "collectors: {fast: 1h}\nworkloads: {docker: a, podman: b}\nhealth: {page: [x]}\nenforcer: {fail: y}\nweb: {max_scrapes: 0}\n"))
	at := 0
	for _, want := range []string{":1: collectors.fast:", ":2: workloads.docker:", ":2: workloads.podman:", ":3: health.page[0]:", ":4: enforcer.fail:", ":5: web.max_scrapes:"} {
		i := strings.Index(errors, want)
		if i < at {
			t.Errorf("the message lacks %s, or it stands elsewhere\n%s", want, errors)
		}
		at = i
	}
}

func TestReferenceConfigIsTheDefaults(t *testing.T) {
	t.Parallel()
	c, err := loadConfig(reference)
	if err != nil {
		t.Fatal(err)
	}
	text := func(c Config) string {
		b, err := yaml.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	if got, want := text(c), text(defaultConfig()); got != want {
		t.Errorf("%s:\n%s\nthe defaults:\n%s", reference, got, want)
	}
}

func TestReferenceConfigExplainsEveryKey(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile(reference)
	if err != nil {
		t.Fatal(err)
	}
	var root yaml.Node
	if err := yaml.Unmarshal(source, &root); err != nil {
		t.Fatal(err)
	}
	explained(t, reflect.TypeFor[Config](), root.Content[0], "")
}

// explained checks that a mapping has every key of a type, each under a
// comment; and where it is a setting, with its unit, default and cost.
func explained(t *testing.T, typ reflect.Type, n *yaml.Node, path string) {
	t.Helper()
	nodes := map[string][2]*yaml.Node{}
	for i := 0; i < len(n.Content); i += 2 {
		nodes[n.Content[i].Value] = [2]*yaml.Node{n.Content[i], n.Content[i+1]}
	}
	for i := range typ.NumField() {
		name, _, _ := strings.Cut(typ.Field(i).Tag.Get("yaml"), ",")
		node, ok := nodes[name]
		switch {
		case !ok:
			t.Errorf("%s lacks the key %s%s: add it with its default", reference, path, name)
			continue
		case node[0].HeadComment == "":
			t.Errorf("%s: %s%s has no comment above it", reference, path, name)
		}
		if typ.Field(i).Type.Kind() == reflect.Struct {
			explained(t, typ.Field(i).Type, node[1], path+name+".")
			continue
		}
		values := []string{node[1].Value}
		if len(node[1].Content) > 0 {
			values = nil
		}
		for _, element := range node[1].Content {
			values = append(values, element.Value)
		}
		value := cmp.Or(strings.Join(values, ", "), "none")
		for _, want := range []string{"Unit: ", "Default: " + value + ".", "Cost: "} {
			if !strings.Contains(strings.ReplaceAll(node[0].HeadComment, "\n# ", " "), want) {
				t.Errorf("%s: the comment of %s%s does not say %q", reference, path, name, want)
			}
		}
	}
}

func TestReferenceConfigNamesEveryCollectorThatIsOff(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile(reference)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range collectors.All() {
		if c.OptIn && !bytes.Contains(source, []byte(c.Name)) {
			t.Errorf("%s does not name %s where it explains enable", reference, c.Name)
		}
	}
}

// TestOlderFilesAreTaken has a file set what has no effect any more: that is
// said, and the file is in force.
func TestOlderFilesAreTaken(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{"web: {max_scrapes: 1}\n": false, "web: {max_scrapes: 8}\n": true, "": false} {
		var log strings.Builder
		conf := &configFile{path: write(t, text), log: slog.New(slog.NewTextHandler(&log, nil))}
		if _, err := conf.load(); err != nil || strings.Contains(log.String(), "web.max_scrapes has no effect any more: remove it") != want {
			t.Errorf("%q: %v, logged %q", text, err, log.String())
		}
	}
}

// write returns the path of a new file with that text.
func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "gpusteward.yml")
	rewrite(t, path, text)
	return path
}

func rewrite(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// FuzzConfig holds that any text is either a configuration that works or an
// error that names the file, and never a panic.
func FuzzConfig(f *testing.F) {
	for _, path := range []string{reference, "testdata/config/invalid/every_problem.yml", "testdata/config/invalid/two_documents.yml"} {
		text, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Add([]byte("a: &a [*a]"))
	f.Add([]byte("collectors: &c {fast: 1s, <<: *c}"))
	f.Fuzz(func(t *testing.T, text []byte) {
		path := filepath.Join(t.TempDir(), "f.yml")
		rewrite(t, path, string(text))
		c, err := loadConfig(path)
		if err == nil {
			err = errors.Join(c.validate()...)
		} else if strings.HasPrefix(err.Error(), path+":") {
			return
		}
		if err != nil {
			t.Errorf("%q: %v", text, err)
		}
	})
}

func TestAConfigurationIsNoLongerThanItMayBe(t *testing.T) {
	t.Parallel()
	long := write(t, strings.Repeat("# a comment\n", 1<<20))
	for _, args := range [][]string{{"config", "check", long}, {"--demo=" + long}} {
		var out, errs bytes.Buffer
		if status := run(t.Context(), append(args, ownDirectories(t, nil)...), &out, &errs); status == 0 || !strings.Contains(errs.String(), "it has more than 1048576 bytes") {
			t.Errorf("%s: exit status %d: %s", args[0], status, &errs)
		}
	}
}
