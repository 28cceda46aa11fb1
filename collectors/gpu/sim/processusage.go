package sim

import (
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors/gpu/sim/models"
	"gpusteward/collectors/gpu/sim/noise"
)

// The driver samples the processes on the GPU six times a second, and keeps the
// samples for 12 s.
const (
	useRate  = 6
	useDepth = 72
)

// GetProcessUtilization returns the use by each process that was active after
// lastSeen, in microseconds, at most in the last 12 s: the average in percent,
// rounded down, and the time of the last sample in which it was active. It
// returns ERROR_NOT_FOUND if no process was active, and ERROR_NOT_SUPPORTED
// under MIG. Processes that have ended are left out.
func (d *device) GetProcessUtilization(lastSeen uint64) ([]nvml.ProcessUtilizationSample, nvml.Return) {
	return read(d, "nvmlDeviceGetProcessUtilization", func(g *gpu) ([]nvml.ProcessUtilizationSample, nvml.Return) {
		if len(g.spec.MIG) > 0 {
			return nil, nvml.ERROR_NOT_SUPPORTED
		}
		var all []nvml.ProcessUtilizationSample
		window := g.window(lastSeen)
		for i := range g.procs {
			if use, ok := g.procs[i].use(window); ok {
				all = append(all, use)
			}
		}
		if all == nil {
			return nil, nvml.ERROR_NOT_FOUND
		}
		return all, nvml.SUCCESS
	})
}

// look is one sample of the driver.
type look struct {
	at   uint64 // microseconds since the epoch
	step int64
	*tick
}

// window returns the driver's samples after lastSeen, newest first. The newest
// is less than 200 ms old.
func (g *gpu) window(lastSeen uint64) []look {
	const began, period = -preroll * step, time.Second / useRate
	first := began + time.Duration(noise.Hash(g.seed, 91)%uint64(period))
	now := min(g.host.now(), g.time()+step-1) // no later than the simulated time
	var all []look
	for t := now - (now-first)%period; len(all) < useDepth; t -= period {
		at, n := g.host.stamp(t), int64((t-began)/step)-preroll
		if at <= lastSeen {
			break
		}
		all = append(all, look{at, n, &g.hist[n&(history-1)]})
	}
	return all
}

// use returns the use by p in a window, if any.
func (p *process) use(window []look) (s nvml.ProcessUtilizationSample, ok bool) {
	var sm, mem, enc, dec float64
	for _, l := range window {
		if p.Share == 0 || l.step < p.from || l.busy+l.mem+l.enc+l.dec == 0 {
			continue
		}
		s.TimeStamp = max(s.TimeStamp, l.at)
		part := 100 * p.Share / l.weight / float64(len(window))
		sm, mem, enc, dec = sm+0.95*l.busy*part, mem+0.93*l.mem*part, enc+l.enc*part, dec+l.dec*part
	}
	s.Pid, s.SmUtil, s.MemUtil, s.EncUtil, s.DecUtil = uint32(p.PID), uint32(sm), uint32(mem), uint32(enc), uint32(dec)
	return s, s.TimeStamp > 0
}

// GetAccountingMode returns off.
func (d *device) GetAccountingMode() (nvml.EnableState, nvml.Return) {
	return fixed(d, "nvmlDeviceGetAccountingMode", func(*models.Model) nvml.EnableState { return nvml.FEATURE_DISABLED })
}

// GetAccountingPids returns no processes.
func (d *device) GetAccountingPids() ([]int, nvml.Return) {
	return fixed(d, "nvmlDeviceGetAccountingPids", func(*models.Model) []int { return []int{} })
}
