package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"go.yaml.in/yaml/v3"

	"gpusteward/collectors"
	"gpusteward/collectors/host"
	"gpusteward/health"
)

const defaultConfigFile = "/etc/gpusteward/gpusteward.yml"

// longestConfig bounds what is read as configuration, or as a scenario, in
// bytes: YAML takes some ten times as much memory.
const longestConfig = 1 << 20

// Config is the configuration file. Each key is explained in
// deploy/gpusteward.yml, which a test holds against this type.
type Config struct {
	Collectors CollectorsConfig `yaml:"collectors"`
	Workloads  WorkloadsConfig  `yaml:"workloads"`
	Health     HealthConfig     `yaml:"health"`
	Enforcer   EnforcerConfig   `yaml:"enforcer"`
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
	PerProcess   bool          `yaml:"per_process"`
	ExpectedGPUs count         `yaml:"expected_gpus"`
}

// WorkloadsConfig says who is asked what a workload is called, and what it was
// given. An empty path asks nobody.
type WorkloadsConfig struct {
	Docker  string `yaml:"docker"`
	Podman  string `yaml:"podman"`
	PodLogs string `yaml:"pod_logs"`
	Kubelet string `yaml:"kubelet"`
	HAMi    string `yaml:"hami"`
}

// WebConfig is what older files say of the HTTP server: nothing comes of it.
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
	return Config{
		Collectors: CollectorsConfig{Fast: d.Fast, Medium: d.Medium, Slow: d.Slow},
		Workloads: WorkloadsConfig{Docker: "/run/docker.sock", Podman: "/run/podman/podman.sock", PodLogs: "/var/log/containers",
			Kubelet: "/var/lib/kubelet/pod-resources/kubelet.sock", HAMi: "/usr/local/vgpu"},
		Enforcer: defaultEnforcerConfig(),
		Web:      WebConfig{MaxScrapes: 1},
	}
}

// config returns what the collectors need.
func (c CollectorsConfig) config() collectors.Config {
	return collectors.Config{Fast: c.Fast, Medium: c.Medium, Slow: c.Slow, Enable: c.Enable, Disable: c.Disable,
		PerLink: c.PerLink, PerProcess: c.PerProcess, Devices: int(c.ExpectedGPUs), XIDs: health.AlertableXIDs()}
}

// validate returns what cannot work: the first of each part.
func (c Config) validate() (all []error) {
	all = append(all, c.Collectors.config().Validate())
	w := c.Workloads
	for _, of := range []struct{ key, path string }{{"docker", w.Docker}, {"podman", w.Podman}, {"pod_logs", w.PodLogs}, {"kubelet", w.Kubelet}, {"hami", w.HAMi}} {
		if of.path != "" && !filepath.IsAbs(of.path) {
			all = append(all, fmt.Errorf("workloads.%s: %q is not an absolute path; \"\" is none", of.key, of.path))
		}
	}
	all = append(all, c.Health.validate(), c.Enforcer.validate())
	if c.Web.MaxScrapes < 1 || c.Web.MaxScrapes > 1000 {
		all = append(all, fmt.Errorf("web.max_scrapes: %d is not between 1 and 1000", c.Web.MaxScrapes))
	}
	return slices.DeleteFunc(all, func(err error) bool { return err == nil })
}

// loadConfig reads and checks a file. Errors name the file, the line and the
// key.
func loadConfig(path string) (Config, error) {
	c := defaultConfig()
	text, err := host.ReadFile(path, longestConfig)
	if err != nil {
		return c, fmt.Errorf("read configuration: %w", host.Explain(err, host.Reads))
	}
	var root yaml.Node
	if err := decodeStrict(path, text, &c, &root); err != nil {
		return c, err
	}
	all := c.validate()
	for i, err := range all {
		key, _, _ := strings.Cut(err.Error(), ":")
		all[i] = fmt.Errorf("%s:%d: %w", path, lineOf(&root, strings.NewReplacer("[", ".", "]", "").Replace(key)), err)
	}
	return c, errors.Join(all...)
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
	if err == nil && c.Web != defaultConfig().Web {
		f.log.Warn("web.max_scrapes has no effect any more: remove it from the configuration", "config", f.path)
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
