package scenarios

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"gpusteward/collectors/gpu/sim/models"
)

// MaxGPUs is the maximum number of GPUs on a simulated host.
const MaxGPUs = 16

// maxSwitches is the maximum number of NVSwitches on a simulated host's PCI bus.
const maxSwitches = 16

// maxPorts is the maximum number of InfiniBand ports on a simulated host.
const maxPorts = 16

// Expand checks s. It returns it with its defaults, and with its GPUs one by
// one. The errors name the key and the allowed values.
func (s Scenario) Expand() (Scenario, error) {
	err := s.expand()
	return s, err
}

func (s *Scenario) expand() error {
	if s.Driver == "" {
		s.Driver = "580.159.04"
	}
	if s.CUDA == "" {
		s.CUDA = "13000"
	}
	if v, err := strconv.Atoi(s.CUDA); err != nil || v < 1000 {
		return fmt.Errorf("cuda: %q: want a number such as 13000", s.CUDA)
	}
	if s.InfiniBand < 0 || s.InfiniBand > maxPorts {
		return fmt.Errorf("infiniband: %d: want 0 to %d ports", s.InfiniBand, maxPorts)
	}
	if s.NVSwitches < 0 || s.NVSwitches > maxSwitches {
		return fmt.Errorf("nvswitches: %d: want 0 to %d switches", s.NVSwitches, maxSwitches)
	}
	for i, symbol := range s.MissingSymbols {
		if !strings.HasPrefix(symbol, "nvml") {
			return fmt.Errorf("missing_symbols[%d]: %q: want an NVML function such as nvmlDeviceGetFieldValues", i,
				symbol)
		}
	}
	all := []GPU{}
	for i, g := range s.GPUs {
		if err := g.check(); err != nil {
			return fmt.Errorf("gpus[%d].%w", i, err)
		}
		all = append(all, slices.Repeat([]GPU{g}, min(g.Count, MaxGPUs+1))...)
		if len(all) > MaxGPUs {
			break
		}
	}
	if s.GPUs == nil || len(all) > MaxGPUs {
		return fmt.Errorf("gpus: %d GPUs: want 1 to %d, or [] for a host without", len(all), MaxGPUs)
	}
	s.GPUs, s.Faults = all, slices.Clone(s.Faults)
	for i := range s.Faults {
		if err := s.Faults[i].check(all); err != nil {
			return fmt.Errorf("faults[%d].%w", i, err)
		}
		if f := &s.Faults[i]; f.Kind == "ib_down" {
			if err := f.checkPort(s.InfiniBand); err != nil {
				return fmt.Errorf("faults[%d].%w", i, err)
			}
		}
	}
	return s.checkTenants()
}

// check fills the defaults of g; its errors begin with the key.
func (g *GPU) check() error {
	all, err := models.All()
	if err != nil {
		return err
	}
	if g.Model == "" {
		g.Model = "h100"
	}
	if g.Load == "" {
		g.Load = "idle"
	}
	if g.Count == 0 {
		g.Count = 1
	}
	g.Job.expand()
	m, ok := all[g.Model]
	if !ok {
		return fmt.Errorf("model: %q: want one of %s", g.Model, names(all))
	}
	if _, ok := loads[g.Load]; !ok {
		return fmt.Errorf("load: %q: want one of %s", g.Load, names(loads))
	}
	if g.Count < 0 {
		return fmt.Errorf("count: %d: want 1 to %d", g.Count, MaxGPUs)
	}
	if g.PowerLimit == 0 {
		g.PowerLimit = m.Power.Default
	}
	if g.PowerLimit < m.Power.Min || g.PowerLimit > m.Power.Max {
		return fmt.Errorf("power_limit: %v: want %v to %v watts", g.PowerLimit, m.Power.Min, m.Power.Max)
	}
	if err := g.checkMIG(m); err != nil {
		return err
	}
	if len(g.VGPUs) > 0 && !m.Has("vgpu") {
		return fmt.Errorf("vgpus: model %s hosts none", g.Model)
	}
	if g.Crowd != 0 && (g.Crowd < 0 || len(g.Processes)+len(g.VGPUs)+len(g.MIG) > 0) {
		return fmt.Errorf("crowd: %d: want 0 or more, and neither processes, vgpus nor mig", g.Crowd)
	}
	if err := g.checkProcesses(); err != nil {
		return err
	}
	return g.checkMemory(m)
}

func (g *GPU) checkMIG(m *models.Model) error {
	var slices, memory uint32
	for i, name := range g.MIG {
		p, ok := m.MIG[name]
		switch {
		case len(m.MIG) == 0:
			return fmt.Errorf("mig[%d]: model %s has no MIG", i, g.Model)
		case !ok:
			return fmt.Errorf("mig[%d]: %q: want one of %s", i, name, names(m.MIG))
		}
		slices, memory = slices+p.Slices, memory+p.MemorySlices
	}
	if slices > 7 || memory > 8 {
		return fmt.Errorf("mig: %d compute and %d memory slices: want at most 7 and 8", slices, memory)
	}
	return nil
}

// checkMemory checks the vGPUs, and that they and the processes fit.
func (g *GPU) checkMemory(m *models.Model) error {
	free := (m.Memory - m.Reserved) >> 20
	take := func(key string, mebibytes uint64) error {
		if mebibytes >= free {
			return fmt.Errorf("%s.memory: %d MiB: the GPU has %d left", key, mebibytes, free)
		}
		free -= mebibytes
		return nil
	}
	for i, v := range g.VGPUs {
		key := fmt.Sprintf("vgpus[%d]", i)
		if v.Type == "" || v.Encoders < 0 {
			return fmt.Errorf("%s: want a type, and no negative encoders", key)
		}
		if err := take(key, v.Memory); err != nil {
			return err
		}
	}
	for i, p := range g.Processes {
		if err := take(fmt.Sprintf("processes[%d]", i), p.Memory+ProcessOverhead>>20+1); err != nil {
			return err
		}
	}
	return take("crowd", uint64(g.Crowd)*(CrowdMemory+ProcessOverhead>>20+1))
}

// loads are the loads that a GPU can have. Those that are true have permanent
// processes.
var loads = map[string]bool{
	"idle": false, "full": true, "training": true, "inference": true, "notebook": true, "churn": false,
}

// names lists the keys of a map for an error message.
func names[V any](m map[string]V) string {
	return strings.Join(slices.Sorted(maps.Keys(m)), ", ")
}
