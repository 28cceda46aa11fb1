// Package scenarios describes simulated hosts: their GPUs, processes and
// tenants, and faults on a timeline. The files beside it are the scenarios that
// the program has; sim runs them.
package scenarios

import (
	"embed"
	"fmt"
	"slices"
	"strings"
	"time"

	"gpusteward/internal/input"
)

//go:embed *.yml
var files embed.FS

// Scenario is a simulated host as a YAML document: its GPUs, and its faults
// with their times. The keys are the field names in lower case, with
// underscores.
type Scenario struct {
	Name   string  `yaml:"name"`
	Doc    string  `yaml:"doc"`    // one line on its purpose
	Driver string  `yaml:"driver"` // driver version, 580.159.04 by default
	CUDA   string  `yaml:"cuda"`   // CUDA version as NVML gives it, 13000 by default
	GPUs   []GPU   `yaml:"gpus"`   // up to 16, in the order of their indices
	Faults []Fault `yaml:"faults"` // in any order
	// Tenants share the GPUs by quotas; a process belongs to the first tenant
	// that has its workload.
	Tenants        []Tenant `yaml:"tenants"`
	InfiniBand     int      `yaml:"infiniband"`      // InfiniBand ports, from mlx5_0/1 on; none by default
	NVSwitches     int      `yaml:"nvswitches"`      // NVSwitches on the PCI bus, from 0000:f0:00.0 on; none by default
	MissingSymbols []string `yaml:"missing_symbols"` // NVML functions that this driver lacks; calling one panics
}

// GPU is one GPU of a scenario, or Count equal ones.
type GPU struct {
	Model      string    `yaml:"model"`       // a key of models.json, h100 by default
	Load       string    `yaml:"load"`        // its load, idle by default
	Job        Job       `yaml:"job"`         // of load training
	Count      int       `yaml:"count"`       // number of such GPUs, 1 by default
	PowerLimit float64   `yaml:"power_limit"` // watts, the model's default limit if 0
	MIG        []string  `yaml:"mig"`         // profiles of its MIG devices; MIG mode is off without any
	VGPUs      []VGPU    `yaml:"vgpus"`       // hosted vGPUs
	Processes  []Process `yaml:"processes"`   // instead of the load's own processes
	Crowd      int       `yaml:"crowd"`       // number of small processes in 64 pods, instead of the load's own
}

// VGPU is a virtual GPU that a simulated GPU hosts for a virtual machine.
type VGPU struct {
	Type     string `yaml:"type"`     // such as "NVIDIA L4-12Q"
	VM       string `yaml:"vm"`       // identifier of the virtual machine
	Memory   uint64 `yaml:"memory"`   // framebuffer in use, MiB
	Driver   string `yaml:"driver"`   // the guest's driver version
	Licensed bool   `yaml:"licensed"` // whether the guest holds a licence
	Encoders int    `yaml:"encoders"` // encoder sessions
}

// Duration is a time.Duration that parses "90s" from YAML.
type Duration time.Duration

// UnmarshalText parses what time.ParseDuration accepts.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf("%q is not a duration such as 90s or 5m", text)
	}
	*d = Duration(v)
	return nil
}

// Names returns the names of the embedded scenarios, sorted.
func Names() []string {
	entries, err := files.ReadDir(".")
	if err != nil {
		return nil
	}
	all := make([]string, 0, len(entries))
	for _, e := range entries {
		all = append(all, strings.TrimSuffix(e.Name(), ".yml"))
	}
	slices.Sort(all)
	return all
}

// Source returns the YAML text of an embedded scenario. The error for an
// unknown name says what may be meant.
func Source(name string) ([]byte, error) {
	if !slices.Contains(Names(), name) {
		return nil, fmt.Errorf("there is no scenario %q%s", name, input.Instead(name, Names()))
	}
	return files.ReadFile(name + ".yml")
}
