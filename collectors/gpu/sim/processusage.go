package sim

import "github.com/NVIDIA/go-nvml/pkg/nvml"

// GetProcessUtilization returns what each process used during the last second.
// It returns ERROR_NOT_FOUND when there is nothing since lastSeen, in
// microseconds, and ERROR_NOT_SUPPORTED under MIG.
func (d *device) GetProcessUtilization(lastSeen uint64) ([]nvml.ProcessUtilizationSample, nvml.Return) {
	return read(d, "nvmlDeviceGetProcessUtilization", func(g *gpu) ([]nvml.ProcessUtilizationSample, nvml.Return) {
		if len(g.spec.MIG) > 0 {
			return nil, nvml.ERROR_NOT_SUPPORTED
		}
		at := g.host.stamp(g.time())
		if at <= lastSeen {
			return nil, nvml.ERROR_NOT_FOUND
		}
		return g.shares(at)
	})
}

// shares splits the last second's utilization among the processes.
func (g *gpu) shares(at uint64) ([]nvml.ProcessUtilizationSample, nvml.Return) {
	weights := 0.0
	for i := range g.procs {
		weights += g.procs[i].share
	}
	percent := func(p *process, value func(*tick) float64) uint32 {
		return uint32(100*g.average(value)*p.share/weights + 0.5)
	}
	var all []nvml.ProcessUtilizationSample
	for i := range g.procs {
		p := &g.procs[i]
		s := nvml.ProcessUtilizationSample{
			Pid: uint32(p.pid), TimeStamp: at,
			SmUtil:  percent(p, func(t *tick) float64 { return 0.95 * t.busy }),
			MemUtil: percent(p, func(t *tick) float64 { return 0.93 * t.mem }),
			EncUtil: percent(p, func(t *tick) float64 { return t.enc }),
			DecUtil: percent(p, func(t *tick) float64 { return t.dec }),
		}
		if s.SmUtil+s.MemUtil+s.EncUtil+s.DecUtil > 0 {
			all = append(all, s)
		}
	}
	if all == nil {
		return nil, nvml.ERROR_NOT_FOUND
	}
	return all, nvml.SUCCESS
}

// GetAccountingMode says that accounting is off.
func (d *device) GetAccountingMode() (nvml.EnableState, nvml.Return) {
	return fixed(d, "nvmlDeviceGetAccountingMode", func(*model) nvml.EnableState { return nvml.FEATURE_DISABLED })
}

// GetAccountingPids returns no accounted process.
func (d *device) GetAccountingPids() ([]int, nvml.Return) {
	return fixed(d, "nvmlDeviceGetAccountingPids", func(*model) []int { return []int{} })
}
