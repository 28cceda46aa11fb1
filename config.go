package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.yaml.in/yaml/v3"

	"gpusteward/collectors"
	"gpusteward/collectors/gpu/sim"
)

const defaultConfigFile = "/etc/gpusteward/gpusteward.yml"

// Config is the configuration file. Each key is explained in
// deploy/gpusteward.yml, which a test holds against this type.
type Config struct {
	Collectors CollectorsConfig `yaml:"collectors"`
	Web        WebConfig        `yaml:"web"`
}

// CollectorsConfig says what is read, and how often.
type CollectorsConfig struct {
	Fast         time.Duration `yaml:"fast"`
	Medium       time.Duration `yaml:"medium"`
	Slow         time.Duration `yaml:"slow"`
	Enable       []string      `yaml:"enable"`
	Disable      []string      `yaml:"disable"`
	PerLink      bool          `yaml:"per_link"`
	ExpectedGPUs count         `yaml:"expected_gpus"`
}

// WebConfig bounds the HTTP server. It takes effect at the next start.
type WebConfig struct {
	MaxScrapes count `yaml:"max_scrapes"`
}

// A count is a whole number; YAML's decoder alone would cut 1.5 down to 1.
type count int

// UnmarshalYAML decodes a number without a fraction.
func (c *count) UnmarshalYAML(n *yaml.Node) error {
	if n.ShortTag() == "!!float" {
		return &yaml.TypeError{Errors: []string{fmt.Sprintf("line %d: cannot unmarshal !!float `%s` into int", n.Line, n.Value)}}
	}
	return n.Decode((*int)(c))
}

func defaultConfig() Config {
	d := collectors.DefaultConfig()
	return Config{CollectorsConfig{Fast: d.Fast, Medium: d.Medium, Slow: d.Slow}, WebConfig{MaxScrapes: 8}}
}

func (c CollectorsConfig) config() collectors.Config {
	return collectors.Config{Fast: c.Fast, Medium: c.Medium, Slow: c.Slow, Enable: c.Enable, Disable: c.Disable,
		PerLink: c.PerLink, Devices: int(c.ExpectedGPUs), XIDs: alertableXIDs}
}

// alertableXIDs are the codes whose counters exist from the start.
var alertableXIDs = []int{13, 31, 43, 45, 48, 62, 63, 64, 74, 79, 92, 94, 95, 119, 120, 140, 154}

func (c Config) validate() error {
	if err := c.Collectors.config().Validate(); err != nil {
		return err
	}
	if c.Web.MaxScrapes < 1 || c.Web.MaxScrapes > 1000 {
		return fmt.Errorf("web.max_scrapes: %d is not between 1 and 1000", c.Web.MaxScrapes)
	}
	return nil
}

// loadConfig reads and checks a file. Errors name the file, the line and the
// key.
func loadConfig(path string) (Config, error) {
	c := defaultConfig()
	text, err := os.ReadFile(path)
	if err != nil {
		return c, fmt.Errorf("read configuration: %w", err)
	}
	var root yaml.Node
	if err := decodeStrict(path, text, &c, &root); err != nil {
		return c, err
	}
	if err := c.validate(); err != nil {
		key, _, _ := strings.Cut(err.Error(), ":")
		return c, fmt.Errorf("%s:%d: %w", path, lineOf(&root, key), err)
	}
	return c, nil
}

// loadScenario reads a scenario of the simulated host, by name or from a file.
func loadScenario(name string) (sim.Scenario, error) {
	var s sim.Scenario
	text, err := sim.Source(name)
	if err != nil {
		if !strings.ContainsAny(name, "./") {
			return s, fmt.Errorf("--demo: %w", err)
		}
		if text, err = os.ReadFile(name); err != nil {
			return s, fmt.Errorf("--demo: %w", err)
		}
	}
	return s, decodeStrict(name, text, &s, new(yaml.Node))
}

var (
	atLine       = regexp.MustCompile(`(?s)^(?:yaml: )?line (\d+): (.*)`)
	unknownField = regexp.MustCompile(`^field (\S+) not found in type (\S+)`)
	wrongType    = regexp.MustCompile("(?s)^cannot unmarshal !!(\\w+)(?: `(.*)`)? into (\\S+)$")
	twice        = regexp.MustCompile(`^mapping key "(.*)" already defined`)
)

// decodeStrict decodes the one document of text into v, and as a tree into
// root; a key that v does not have is an error.
func decodeStrict(path string, text []byte, v any, root *yaml.Node) error {
	err := yaml.Unmarshal(text, root)
	if err == nil {
		decoder := yaml.NewDecoder(bytes.NewReader(text))
		decoder.KnownFields(true)
		if err = decoder.Decode(v); err == nil {
			var second yaml.Node
			if err = decoder.Decode(&second); err == nil {
				return fmt.Errorf("%s:%d: a second document begins here, and only one is read", path, second.Line)
			}
		}
	}
	if err == nil || errors.Is(err, io.EOF) { // an empty file is all defaults
		return nil
	}
	problems := []string{err.Error()}
	var typeError *yaml.TypeError
	if errors.As(err, &typeError) {
		problems = typeError.Errors
	}
	var all []error
	for _, p := range problems {
		all = append(all, explain(path, p, reflect.TypeOf(v), root))
	}
	return errors.Join(all...)
}

// explain turns what the decoder says of a file into the file, the line, the
// key and what should be there.
func explain(path, problem string, t reflect.Type, root *yaml.Node) error {
	line, what, match := 0, strings.TrimPrefix(problem, "yaml: "), func(key, value *yaml.Node) bool { return false }
	if m := atLine.FindStringSubmatch(problem); m != nil {
		line, _ = strconv.Atoi(m[1])
		what = m[2]
	}
	if m := unknownField.FindStringSubmatch(what); m != nil {
		what = fmt.Sprintf("unknown key %q; known here: %s", m[1], strings.Join(knownKeys(t, m[2]), ", "))
	} else if m := twice.FindStringSubmatch(what); m != nil {
		match = func(key, _ *yaml.Node) bool { return key != nil && key.Line == line && key.Value == m[1] }
	} else if m := wrongType.FindStringSubmatch(what); m != nil {
		tag, start := "!!"+m[1], strings.TrimSuffix(m[2], "...")
		what = fmt.Sprintf("%q is not %s", m[2], wanted(m[3]))
		if m[2] == "" {
			what = fmt.Sprintf("want %s, not a %s", wanted(m[3]), map[string]string{"seq": "list", "map": "mapping"}[m[1]])
		}
		match = func(_, value *yaml.Node) bool {
			return value.Line == line && value.ShortTag() == tag && strings.HasPrefix(value.Value, start)
		}
	} else if line == 0 { // from an UnmarshalText, which is not told where it is
		match = func(_, value *yaml.Node) bool {
			return value.Kind == yaml.ScalarNode && strings.HasPrefix(what, strconv.Quote(value.Value)+" ")
		}
	}
	if key, at := find(root, "", match); at > 0 {
		line = at
		if key != "" {
			what = key + ": " + what
		}
	}
	if line == 0 {
		return fmt.Errorf("%s: %s", path, what)
	}
	return fmt.Errorf("%s:%d: %s", path, line, what)
}

// wanted describes a Go type to whoever writes YAML.
func wanted(t string) string {
	switch {
	case strings.HasSuffix(t, "Duration"):
		return "a duration such as 10s or 1m"
	case strings.HasPrefix(t, "[]"):
		return "a list"
	case strings.Contains(t, "int"):
		return "a whole number that fits"
	case strings.HasPrefix(t, "float"):
		return "a number"
	case t == "bool":
		return "true or false"
	case t == "string":
		return "text"
	}
	return "a mapping of keys to values"
}

// knownKeys lists the YAML keys of the type called name within t.
func knownKeys(t reflect.Type, name string) (keys []string) {
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice:
		return knownKeys(t.Elem(), name)
	case reflect.Struct:
		for i := range t.NumField() {
			if t.String() == name {
				key, _, _ := strings.Cut(t.Field(i).Tag.Get("yaml"), ",")
				keys = append(keys, key)
			} else if found := knownKeys(t.Field(i).Type, name); found != nil {
				return found
			}
		}
	}
	return keys
}

// find returns the dotted key and the line of the first key and value, or
// element of a list (its key is nil), that match; 0 where none does.
func find(n *yaml.Node, path string, match func(key, value *yaml.Node) bool) (string, int) {
	below := func(path string, key, value *yaml.Node) (string, int) {
		if key != nil && match(key, value) {
			return path, key.Line
		}
		if key == nil && match(nil, value) {
			return path, value.Line
		}
		return find(value, path, match)
	}
	switch n.Kind {
	case yaml.DocumentNode:
		return below("", nil, n.Content[0])
	case yaml.SequenceNode:
		for i, value := range n.Content {
			if key, line := below(fmt.Sprintf("%s[%d]", path, i), nil, value); line > 0 {
				return key, line
			}
		}
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			if key, line := below(strings.TrimPrefix(path+"."+n.Content[i].Value, "."), n.Content[i], n.Content[i+1]); line > 0 {
				return key, line
			}
		}
	}
	return "", 0
}

// lineOf returns the line of a dotted key, or of as much of it as there is.
func lineOf(n *yaml.Node, key string) int {
	if n.Kind == yaml.DocumentNode && len(n.Content) > 0 {
		return lineOf(n.Content[0], key)
	}
	first, rest, _ := strings.Cut(key, ".")
	if n.Kind == yaml.MappingNode {
		for i := 0; i+1 < len(n.Content); i += 2 {
			if n.Content[i].Value == first {
				if rest == "" {
					return n.Content[i].Line
				}
				return lineOf(n.Content[i+1], rest)
			}
		}
	}
	return max(n.Line, 1)
}

// A configFile is the file in force. A bad file never replaces a good one.
type configFile struct {
	path     string
	optional bool // it may be absent: then everything is at its default
	log      *slog.Logger

	mu   sync.Mutex
	good bool      // the last read
	when time.Time // of the last good read
	now  Config    // the last good one
}

func (f *configFile) load() (Config, error) {
	c, err := loadConfig(f.path)
	if f.optional && errors.Is(err, fs.ErrNotExist) {
		c, err = defaultConfig(), nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.good = err == nil; f.good {
		f.when, f.now = time.Now(), c
	}
	return c, err
}

// fast returns the interval of the fast tier in force.
func (f *configFile) fast() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.now.Collectors.Fast
}

// origin says where the configuration comes from.
func (f *configFile) origin() string {
	if _, err := os.Stat(f.path); err != nil {
		return "defaults (no " + f.path + ")"
	}
	return f.path
}

// reloadOn reads the file again at every signal, until ctx ends.
func (f *configFile) reloadOn(ctx context.Context, signals <-chan os.Signal, apply func(Config)) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-signals:
			c, err := f.load()
			if err != nil {
				f.log.Error("configuration not reloaded, the one before stays", "err", err)
				continue
			}
			apply(c)
			f.log.Info("configuration reloaded", "config", f.origin())
		}
	}
}

// samples says how the last read went.
func (f *configFile) samples() []collectors.Sample {
	f.mu.Lock()
	defer f.mu.Unlock()
	return []collectors.Sample{
		{Metric: collectors.ConfigReloadSuccess, Value: collectors.Bool(f.good)},
		{Metric: collectors.ConfigReloadTime, Value: float64(f.when.UnixMilli()) / 1e3},
	}
}
