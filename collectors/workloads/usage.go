package workloads

import (
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors"
	"gpusteward/collectors/gpu"
)

// engines holds a number for each engine that the driver samples by process.
type engines [4]float64

const sm, busy = 0, 1 // the indices of SM time and of memory time

var (
	engineNames   = [4]string{"sm", "memory", "encoder", "decoder"}
	engineSeconds = [4]*collectors.Metric{WorkloadSM, WorkloadMemoryBusy, WorkloadEncoder, WorkloadDecoder}
)

func (e engines) plus(o engines) engines {
	for i := range e {
		e[i] += o[i]
	}
	return e
}

func (e engines) times(f float64) engines {
	for i := range e {
		e[i] *= f
	}
	return e
}

// spent is an amount of GPU use: seconds by engine, and energy.
type spent struct {
	engines
	joules float64
}

func (s spent) plus(o spent) spent { return spent{s.engines.plus(o.engines), s.joules + o.joules} }

// The driver samples the processes on the GPU six times a second, and keeps the
// samples for SampleDepth. A call costs 2 ms on an H100, so it is rare; while a
// process is young there is one each turn, so that a short process is not
// missed.
const (
	useEvery  = 5 * time.Second
	useYoung  = 10 * time.Second
	useLag    = 200 * time.Millisecond // maximum age of the newest sample
	allOfThem = time.Second            // a window that begins before all new samples
)

// usage integrates the driver's samples of processes.
type usage struct {
	latest map[uint32]engines // ratios over the last window, by PID
	ret    nvml.Return        // of the call that returned them
	seen   time.Time          // end of the counted samples
	asked  time.Time
	young  map[uint32]time.Time // when each process was first seen on the GPU
	joules float64              // drawn by the GPU in the window
	power  time.Time            // end of the counted energy
}

// update asks the driver for the holders' use since the last call, and records
// it in them. The returned window of u.latest is 0 if the driver was not asked
// now. A failure is returned until a call succeeds; the driver is asked again
// on the next turn.
func (u *usage) update(g *gpu.Device, now time.Time, holders []*holder) (window time.Duration, ret nvml.Return) {
	if watts, ret := g.GetPowerUsage(); ret == nvml.SUCCESS && !u.power.IsZero() {
		u.joules += float64(watts) / 1000 * now.Sub(u.power).Seconds()
	}
	u.power = now
	since := map[uint32]time.Time{}
	due := now.Sub(u.asked) >= useEvery || u.ret != nvml.SUCCESS && !gpu.Unsupported(u.ret)
	for _, h := range holders {
		first, known := u.young[h.pid]
		if !known {
			first = now
		}
		since[h.pid] = first
		due = due || now.Sub(first) < useYoung
	}
	u.young = since
	if len(holders) == 0 {
		u.latest, u.seen, u.joules = nil, now.Add(-allOfThem), 0
		return 0, nvml.SUCCESS
	}
	if due {
		window, u.ret = u.ask(g, now)
	}
	for _, h := range holders {
		h.use = u.latest[h.pid]
	}
	return window, u.ret
}

// ask reads the samples since u.seen. Each value is an average over all samples
// since then.
func (u *usage) ask(g *gpu.Device, now time.Time) (time.Duration, nvml.Return) {
	u.asked, u.latest = now, map[uint32]engines{}
	// The driver's times are from the wall clock, which can be set.
	now = now.Round(0)
	// The clock was set, or there was no call for long.
	if age := now.Sub(u.seen); age < 0 || age > collectors.SampleDepth {
		u.seen, u.joules = now.Add(-allOfThem), 0
	}
	samples, ret := g.GetProcessUtilization(uint64(u.seen.UnixMicro()))
	switch ret {
	case nvml.SUCCESS:
	case nvml.ERROR_NOT_FOUND, nvml.ERROR_INSUFFICIENT_SIZE, nvml.ERROR_NO_DATA: // no process did anything
		samples = nil
	default:
		return 0, ret
	}
	newest := now.Add(-useLag)
	if u.seen.After(newest) {
		newest = u.seen
	}
	for _, s := range samples {
		if t := time.UnixMicro(int64(s.TimeStamp)); t.After(newest) && !t.After(now) {
			newest = t
		}
		e := engines{float64(s.SmUtil), float64(s.MemUtil), float64(s.EncUtil), float64(s.DecUtil)}
		for i := range e {
			if e[i] /= 100; e[i] > 1 { // not a percentage
				e[i] = 0
			}
		}
		u.latest[s.Pid] = u.latest[s.Pid].plus(e)
	}
	window := newest.Sub(u.seen)
	u.seen = newest
	return window, nvml.SUCCESS
}

// take returns the use by each process in the current window, and its share of
// the energy.
func (u *usage) take(window time.Duration) map[uint32]spent {
	if window <= 0 {
		return nil
	}
	total := 0.0
	for _, e := range u.latest {
		total += e[sm]
	}
	all := map[uint32]spent{}
	for pid, e := range u.latest {
		s := spent{engines: e.times(window.Seconds())}
		if total > 0 {
			s.joules = u.joules * e[sm] / total
		}
		all[pid] = s
	}
	u.joules = 0
	return all
}
