package collectors

import (
	"cmp"
	"slices"
	"time"

	"gpusteward/collectors/gpu"
	"gpusteward/collectors/host"
	"gpusteward/internal/input"
)

// A Tier says how often a collector reads.
type Tier int

// The tiers.
const (
	Fast   Tier = iota // fast-moving values: every second by default
	Medium             // expensive or slow-moving values: every 10 s
	Slow               // state that changes by an operator's action or by a fault: every 60 s
	Static             // once each time the driver is opened
)

func (t Tier) String() string { return [...]string{"fast", "medium", "slow", "static"}[t] }

// A Read reads one GPU, on that GPU's goroutine.
type Read func(g *gpu.Device, out *Readings)

// A Collector reads one aspect of a GPU or of the host. One file declares one
// collector and its metrics.
type Collector struct {
	Name    string
	Doc     string // one sentence, for METRICS.md
	Tier    Tier
	Metrics []*Metric // all metrics that it puts
	OptIn   bool      // off unless the configuration enables it: expensive, or many series
	First   bool      // reads before the others: its call makes the driver refresh the values that they read
	Lists   bool      // lists the processes on the GPU, as Facts

	// Exactly one is set: Read for a GPU; Open for a GPU, with state between
	// reads; Host, the same for readings that belong to no GPU; Kernel, the
	// same for readings without the driver. Kernel runs on its own goroutine
	// and continues while the driver is gone, hangs or is drained.
	Read   Read
	Open   func(g *gpu.Device) Read
	Host   func(l *gpu.Library) func(out *Readings)
	Kernel func(k host.Kernel) func(out *Readings)
}

// ofGPU reports whether c reads a GPU.
func (c *Collector) ofGPU() bool { return c.Read != nil || c.Open != nil }

var registered []*Collector

// Register adds c to the collectors. Package variables call it.
func Register(c Collector) *Collector {
	registered = append(registered, &c)
	return &c
}

// All returns every collector: those that read first, then the others, each by
// name.
func All() []*Collector {
	return slices.SortedFunc(slices.Values(registered), func(a, b *Collector) int {
		if a.First != b.First {
			return map[bool]int{true: -1, false: 1}[a.First]
		}
		return cmp.Compare(a.Name, b.Name)
	})
}

// Config selects the collectors and their intervals.
type Config struct {
	Fast, Medium, Slow time.Duration
	Enable, Disable    []string // collectors by name
	PerLink            bool     // NVLink series per link instead of their sum
	PerProcess         bool     // series per process in addition to those per workload
	Devices            int      // GPUs that the host should have; 0: as many as it has ever had
	XIDs               []int    // XID codes whose counters exist from the start
	HAMi               string   // directory of HAMi with its containers' regions; empty: none are read
	Broker             string   // the broker's socket; empty: the enforcer is disabled
}

// SampleDepth is how long the driver keeps its samples of processes. Two passes
// of the fast tier must not be further apart.
const (
	SampleDepth = 12 * time.Second
	maxFast     = SampleDepth - time.Second
)

// DefaultConfig returns intervals chosen by measured costs.
func DefaultConfig() Config {
	return Config{Fast: time.Second, Medium: 10 * time.Second, Slow: time.Minute}
}

// Validate returns the errors, each with its key.
func (c Config) Validate() error {
	var wrong input.Errors
	wrong.If(c.Fast < 100*time.Millisecond, "collectors.fast: %v is too short; the minimum is 100ms", c.Fast)
	wrong.If(c.Fast > maxFast, "collectors.fast: %v is too long; the maximum is %v, because the driver keeps samples "+
		"of processes for %v", c.Fast, maxFast, SampleDepth)
	wrong.If(c.Medium < c.Fast, "collectors.medium: %v is shorter than fast (%v)", c.Medium, c.Fast)
	wrong.If(c.Slow < c.Medium, "collectors.slow: %v is shorter than medium (%v)", c.Slow, c.Medium)
	wrong.If(c.Slow > time.Hour, "collectors.slow: %v is too long; the maximum is 1h", c.Slow)
	wrong.If(c.Devices < 0, "collectors.expected_gpus: %d is negative", c.Devices)
	known := names(All())
	for i, name := range c.Enable {
		if !wrong.If(!slices.Contains(known, name), "collectors.enable[%d]: there is no collector %q%s", i, name,
			input.Instead(name, known)) {
			wrong.If(slices.Contains(c.Disable, name), "collectors.enable[%d]: %q is also in collectors.disable", i, name)
		}
	}
	for i, name := range c.Disable {
		wrong.If(!slices.Contains(known, name), "collectors.disable[%d]: there is no collector %q%s", i, name,
			input.Instead(name, known))
	}
	return wrong.Err()
}

// names returns the names of collectors.
func names(all []*Collector) (names []string) {
	for _, c := range all {
		names = append(names, c.Name)
	}
	return names
}

// active returns the collectors that c enables.
func (c Config) active() []*Collector {
	return slices.DeleteFunc(All(), func(r *Collector) bool {
		return slices.Contains(c.Disable, r.Name) || r.OptIn && !slices.Contains(c.Enable, r.Name)
	})
}

// interval returns the time between reads of a tier; 0 for Static.
func (c Config) interval(t Tier) time.Duration {
	return [...]time.Duration{c.Fast, c.Medium, c.Slow, 0}[t]
}
