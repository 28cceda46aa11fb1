// Package config reads the configuration file, the files of tenants and the
// scenarios of simulated hosts. It is the only package that reads YAML, and it
// hands each subsystem its own part.
//
//	text -> decodeStrict -> Config -> validate -> Reads, Table, Options of subsystems
//
// Each section is a type with the keys as tags, its defaults and its validate
// (config.go, enforcer.go, health.go). The terms of a quota have no fields: they
// come from the rows of package quota (terms.go). Tenants also come from the
// files of directories that others write (tenantfiles.go). A File and
// TenantFiles are read again while the agent runs.
//
// Invariants:
//
//   - An unknown or repeated key is an error. Each error names the file, the line
//     and the key, and says what to write (strict.go).
//   - A bad file never replaces a good one.
//   - A tenant file that others could have written is refused, and sizes are bounded.
//   - Keys of older files are still read, or say what replaced them.
//
// Begin with Config and load in this file, and decodeStrict in strict.go.
package config

import (
	"fmt"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"gpusteward/collectors"
	"gpusteward/collectors/host"
	"gpusteward/health/incident"
	"gpusteward/internal/input"
	"gpusteward/internal/quota"
)

// DefaultFile is the configuration file unless --config.file names another.
const DefaultFile = "/etc/gpusteward/gpusteward.yml"

// Longest is the maximum size of a configuration or a scenario, in bytes: YAML
// takes about ten times as much memory.
const Longest = 1 << 20

// Config is the configuration file. deploy/gpusteward.yml explains each key,
// and a test compares it with this type.
type Config struct {
	Collectors Collectors `yaml:"collectors"`
	Metrics    Metrics    `yaml:"metrics"`
	Workloads  Workloads  `yaml:"workloads"`
	Health     Health     `yaml:"health"`
	Enforcer   Enforcer   `yaml:"enforcer"`
	Web        Web        `yaml:"web"`
	Tracing    Tracing    `yaml:"tracing"`
}

// Load reads and checks a file. Errors name the file, the line and the key.
func Load(path string) (Config, error) { return load("", path) }

// load is Load on a host with that root directory.
func load(root, path string) (Config, error) {
	c := defaults(root)
	text, err := host.ReadFile(path, Longest)
	if err != nil {
		return c, fmt.Errorf("read configuration: %w", host.Explain(err, host.Reads))
	}
	var tree yaml.Node
	all := input.Each(decodeStrict(path, text, &c, &tree))
	if tree.Kind == 0 && len(all) > 0 {
		return c, all // it is no YAML
	}
	if tree.Kind != 0 && tree.Content[0].Kind == yaml.SequenceNode {
		return c, fmt.Errorf("%w; the files of enforcer.tenants_dirs are checked with the configuration", all)
	}
	if c.Workloads.Kubelet == kubeletSocket {
		c.Workloads.Kubelet = defaults(root).Workloads.Kubelet
	}
	decoded := all
	if nodeOf(&tree, "enforcer.tenants").Content != nil &&
		len(nodeOf(&tree, "enforcer.tenants").Content) != len(c.Enforcer.Tenants) {
		c.Enforcer.Tenants = nil // without those of a wrong form the others have other numbers
	}
	for _, err := range input.Each(c.validate()) {
		key, _, _ := strings.Cut(err.Error(), ":")
		place := fmt.Sprintf("%s:%d: ", path, lineOf(&tree, key))
		said := func(err error) bool { return strings.HasPrefix(err.Error(), place+key+":") } // it has the wrong type
		if !slices.ContainsFunc(decoded, said) {
			all.Below(place, err)
		}
	}
	return c, all.Err()
}

// Defaults returns the configuration of an empty file.
func Defaults() Config { return defaults("") }

// defaults are the Defaults on a host with that root directory.
func defaults(root string) Config {
	on := func(path string) string { return filepath.Join(root, path) }
	d := collectors.DefaultConfig()
	c := Config{
		Collectors: Collectors{Fast: d.Fast, Medium: d.Medium, Slow: d.Slow},
		Metrics:    Metrics{Profile: defaultProfile},
		Workloads: Workloads{Docker: on("/run/docker.sock"), Podman: on("/run/podman/podman.sock"),
			PodLogs: on("/var/log/containers"), Kubelet: on("/run/gpusteward/kubelet/allocations.json"),
			HAMi: on("/usr/local/vgpu")},
		Enforcer: defaultEnforcer(on),
		Web:      Web{Fleet: Fleet{Selector: `job="gpusteward"`}},
	}
	if on("/") != "/" { // localhost is another host
		c.Enforcer.NCCL = ""
	}
	return c
}

// kubeletSocket is what older files name instead of the file of allocations.
const kubeletSocket = "/var/lib/kubelet/pod-resources/kubelet.sock"

// validate returns the errors, each with its key.
func (c Config) validate() error {
	var wrong input.Errors
	wrong.Below("", c.Reads().Validate())
	wrong.If(!slices.Contains(profiles, c.Metrics.Profile), "metrics.profile: there is no profile %q%s",
		c.Metrics.Profile, input.Instead(c.Metrics.Profile, profiles))
	w := c.Workloads
	for _, of := range []struct{ key, path string }{{"docker", w.Docker}, {"podman", w.Podman}, {"pod_logs", w.PodLogs},
		{"kubelet", w.Kubelet}, {"hami", w.HAMi}} {
		wrong.If(of.path != "" && !filepath.IsAbs(of.path), "workloads.%s: %q is not an absolute path; \"\" disables it",
			of.key, of.path)
	}
	wrong.Below("", c.Health.validate())
	wrong.Below("", c.Enforcer.validate())
	wrong.Below("", c.Web.validate())
	sample := float64(c.Tracing.Sample)
	wrong.If(!(sample >= 0 && sample <= 1), "tracing.sample: %v is not a part from 0 to 1 or from 0 %% to 100 %%%s",
		quota.Part(sample), quota.Meant(sample))
	return wrong.Err()
}

// Collectors says what to read, and how often.
type Collectors struct {
	Fast         time.Duration `yaml:"fast"`
	Medium       time.Duration `yaml:"medium"`
	Slow         time.Duration `yaml:"slow"`
	Enable       []string      `yaml:"enable"`
	Disable      []string      `yaml:"disable"`
	PerLink      bool          `yaml:"per_link"`
	PerProcess   bool          `yaml:"per_process"`
	ExpectedGPUs count         `yaml:"expected_gpus"`
}

// Reads returns the configuration of the collectors.
func (c Config) Reads() collectors.Config {
	r := c.Collectors
	reads := collectors.Config{Fast: r.Fast, Medium: r.Medium, Slow: r.Slow, Enable: r.Enable, Disable: r.Disable,
		PerLink: r.PerLink, PerProcess: r.PerProcess, Devices: int(r.ExpectedGPUs)}
	if c.Metrics.Profile == allProfile {
		reads.XIDs = incident.AlertableXIDs()
	}
	return reads
}

// Metrics says which series /metrics has.
type Metrics struct {
	Profile string `yaml:"profile"`
}

// The profiles of /metrics.
const (
	MinimalProfile = "minimal" // what the rules need
	defaultProfile = "default" // what the driver answers, and what happened
	allProfile     = "all"     // also counters of what did not happen
)

var profiles = []string{MinimalProfile, defaultProfile, allProfile}

// Workloads says where to look up the names and the allocations of workloads.
// An empty path disables a source.
type Workloads struct {
	Docker  string `yaml:"docker"`
	Podman  string `yaml:"podman"`
	PodLogs string `yaml:"pod_logs"`
	Kubelet string `yaml:"kubelet"`
	HAMi    string `yaml:"hami"`
}

// Tracing says which requests become spans.
type Tracing struct {
	Sample part `yaml:"sample"`
}

// HostPlaceholder stands for the host's name in web.external_url and health.labels.
const HostPlaceholder = "{host}"

// External returns the agent's URL on a host; "" if it is not known.
func (w Web) External(host string) string {
	return strings.TrimSuffix(strings.ReplaceAll(w.ExternalURL, HostPlaceholder, host), "/")
}

// Web is about the HTTP server.
type Web struct {
	ExternalURL string `yaml:"external_url"`
	GrafanaURL  string `yaml:"grafana_url"`
	Fleet       Fleet  `yaml:"fleet"`
	MaxScrapes  *count `yaml:"max_scrapes,omitempty"` // of older files, without effect
}

// Fleet says which Prometheus scrapes this host and others, for the page of all hosts.
type Fleet struct {
	URL        string `yaml:"url"`
	Selector   string `yaml:"selector"`
	HTTPConfig string `yaml:"http_config"` // file
}

// matchers of PromQL, with or without braces; there may be none.
var matchers = func() *regexp.Regexp {
	const one = "[a-zA-Z_][a-zA-Z0-9_]*\\s*(=|!=|=~|!~)\\s*(\"(\\\\.|[^\"\\\\])*\"|'(\\\\.|[^'\\\\])*'|`[^`]*`)"
	const all = "(" + one + "(\\s*,\\s*" + one + ")*\\s*,?)?"
	return regexp.MustCompile("^\\s*(" + all + "|\\{\\s*" + all + "\\s*\\})\\s*$")
}()

func (w Web) validate() error {
	var wrong input.Errors
	for _, of := range []struct{ key, is, of, example string }{
		{"external_url", w.ExternalURL, "this agent", "http://node17.example.com:9836"},
		{"grafana_url", w.GrafanaURL, "a Grafana", "https://grafana.example.com"},
		{"fleet.url", w.Fleet.URL, "a Prometheus", "http://prometheus.example.com:9090"},
	} {
		u, err := url.Parse(strings.ReplaceAll(of.is, HostPlaceholder, "host"))
		wrong.If(of.is != "" && (err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil ||
			u.Fragment != ""), "web.%s: %q is not the http or https URL of %s, without a password and a fragment, such "+
			"as %s; \"\" means none", of.key, of.is, of.of, of.example)
	}
	if before, _, more := strings.Cut(w.Fleet.URL, "/api/v1"); more {
		wrong.If(true, "web.fleet.url: %q is an address of the API, which is found below: write %s", w.Fleet.URL, before)
	}
	wrong.If(!matchers.MatchString(w.Fleet.Selector), "web.fleet.selector: %q are not matchers of PromQL, such as "+
		"job=\"gpusteward\",cluster=~\"a|b\"", w.Fleet.Selector)
	if w.Fleet.HTTPConfig != "" {
		_, err := HTTPClient(w.Fleet.HTTPConfig)
		wrong.If(err != nil, "web.fleet.http_config: %v", err)
	}
	return wrong.Err()
}

// A count is a whole number. The YAML decoder would truncate 1.5 to 1.
type count int

// UnmarshalYAML decodes a number without a fraction, also one in quotes.
func (c *count) UnmarshalYAML(n *yaml.Node) error {
	if number, err := strconv.Atoi(n.Value); err == nil && n.ShortTag() == "!!str" {
		*c = count(number)
		return nil
	}
	if n.ShortTag() == "!!float" {
		return &yaml.TypeError{Errors: []string{fmt.Sprintf("line %d: cannot unmarshal !!float `%s` into int",
			n.Line, n.Value)}}
	}
	return n.Decode((*int)(c))
}
