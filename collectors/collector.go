package collectors

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"gpusteward/collectors/gpu"
	"gpusteward/collectors/host"
)

// A Tier says how often a collector reads.
type Tier int

// The tiers.
const (
	Fast   Tier = iota // what moves: every second by default
	Medium             // what is dear or moves slowly: every 10 s
	Slow               // state that changes by hand or by fault: every 60 s
	Static             // once for each time the driver is opened
)

func (t Tier) String() string { return [...]string{"fast", "medium", "slow", "static"}[t] }

// A Read reads one GPU, on that GPU's goroutine.
type Read func(g *gpu.Device, out *Readings)

// A Collector reads one aspect of a GPU, or of the host. One file declares
// one collector and its metrics.
type Collector struct {
	Name    string
	Doc     string // one sentence, for the reference
	Tier    Tier
	Metrics []*Metric // all that it puts
	OptIn   bool      // off unless the configuration enables it: dear, or many series
	First   bool      // reads before the others: its call has the driver refresh what they read

	// One of: Read, for a GPU; Open, for a GPU where something is carried
	// from one read to the next; Host, the same for what belongs to no GPU;
	// Kernel, the same for what needs no driver: it reads on while that is
	// gone, hangs or is drained, on a goroutine of its own.
	Read   Read
	Open   func(g *gpu.Device) Read
	Host   func(l *gpu.Library) func(out *Readings)
	Kernel func(k host.Kernel) func(out *Readings)
}

// ofGPU reports whether c reads a GPU.
func (c *Collector) ofGPU() bool { return c.Read != nil || c.Open != nil }

var registered []*Collector

// Register adds c to the collectors. It is called from package variables.
func Register(c Collector) *Collector {
	registered = append(registered, &c)
	return &c
}

// All returns every collector: those that read first, then by name.
func All() []*Collector {
	return slices.SortedFunc(slices.Values(registered), func(a, b *Collector) int {
		if a.First != b.First {
			return map[bool]int{true: -1, false: 1}[a.First]
		}
		return cmp.Compare(a.Name, b.Name)
	})
}

// Config says which collectors read, and how often.
type Config struct {
	Fast, Medium, Slow time.Duration
	Enable, Disable    []string // collectors by name
	PerLink            bool     // NVLink series for each link instead of their sum
	PerProcess         bool     // series for each process beside those of its workload
	Devices            int      // GPUs that the host should have; 0: as many as were ever seen
	XIDs               []int    // XID codes whose counters exist from the start
	HAMi               string   // HAMi's directory, where its containers' regions are; empty: none are read
	Broker             string   // the broker's socket; empty: the enforcer is not enabled
}

// DefaultConfig returns the tiers that the measured costs suggest.
func DefaultConfig() Config {
	return Config{Fast: time.Second, Medium: 10 * time.Second, Slow: time.Minute}
}

// Validate reports the first key that cannot work.
func (c Config) Validate() error {
	switch {
	case c.Fast < 100*time.Millisecond:
		return fmt.Errorf("collectors.fast: %v is too often; at least 100ms", c.Fast)
	case c.Fast > useDepth-allOfThem:
		return fmt.Errorf("collectors.fast: %v is too seldom; at most %v: the driver forgets what processes did after %v", c.Fast, useDepth-allOfThem, useDepth)
	case c.Medium < c.Fast:
		return fmt.Errorf("collectors.medium: %v is shorter than fast (%v)", c.Medium, c.Fast)
	case c.Slow < c.Medium:
		return fmt.Errorf("collectors.slow: %v is shorter than medium (%v)", c.Slow, c.Medium)
	case c.Slow > time.Hour:
		return fmt.Errorf("collectors.slow: %v is too seldom; at most 1h", c.Slow)
	case c.Devices < 0:
		return fmt.Errorf("collectors.expected_gpus: %d is negative", c.Devices)
	}
	for _, list := range []struct {
		key   string
		names []string
	}{{"enable", c.Enable}, {"disable", c.Disable}} {
		for _, name := range list.names {
			if !slices.ContainsFunc(registered, func(r *Collector) bool { return r.Name == name }) {
				return fmt.Errorf("collectors.%s: no collector is called %q; there are %s", list.key, name, namesOf(All()))
			}
		}
	}
	for _, name := range c.Enable {
		if slices.Contains(c.Disable, name) {
			return fmt.Errorf("collectors.enable: %q is in collectors.disable too", name)
		}
	}
	return nil
}

func namesOf(all []*Collector) string {
	var names []string
	for _, c := range all {
		names = append(names, c.Name)
	}
	return strings.Join(names, ", ")
}

// active returns the collectors that c has read.
func (c Config) active() []*Collector {
	return slices.DeleteFunc(All(), func(r *Collector) bool {
		return slices.Contains(c.Disable, r.Name) || r.OptIn && !slices.Contains(c.Enable, r.Name)
	})
}

// interval returns how long a tier waits between reads; 0 for Static.
func (c Config) interval(t Tier) time.Duration {
	return [...]time.Duration{c.Fast, c.Medium, c.Slow, 0}[t]
}
