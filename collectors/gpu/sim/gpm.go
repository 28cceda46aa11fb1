package sim

import (
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// gpm holds the performance metrics of a step, as ratios and MiB per second, or
// their integrals over seconds.
type gpm struct {
	graphics, sm, occupancy    float64
	integer, tensor, dfma      float64
	hmma, dmma, imma           float64
	dram, fp64, fp32, fp16     float64
	dec, jpg, ofa              float64
	pcieTx, pcieRx, nvTx, nvRx float64
}

// add integrates the metrics v over dt seconds.
func (m *gpm) add(v *gpm, dt float64) {
	m.graphics += v.graphics * dt
	m.sm += v.sm * dt
	m.occupancy += v.occupancy * dt
	m.integer += v.integer * dt
	m.tensor += v.tensor * dt
	m.dfma += v.dfma * dt
	m.hmma += v.hmma * dt
	m.dmma += v.dmma * dt
	m.imma += v.imma * dt
	m.dram += v.dram * dt
	m.fp64 += v.fp64 * dt
	m.fp32 += v.fp32 * dt
	m.fp16 += v.fp16 * dt
	m.dec += v.dec * dt
	m.jpg += v.jpg * dt
	m.ofa += v.ofa * dt
	m.pcieTx += v.pcieTx * dt
	m.pcieRx += v.pcieRx * dt
	m.nvTx += v.nvTx * dt
	m.nvRx += v.nvRx * dt
}

// gpmSample is an nvml.GpmSample: integrals at a time.
type gpmSample struct {
	taken    bool
	at       time.Duration
	total    gpm
	links    [][2]float64 // MiB received and sent by each link
	decoders uint32
}

// GpmSampleAlloc returns an empty sample.
func (h *Host) GpmSampleAlloc() (nvml.GpmSample, nvml.Return) {
	if ret := h.open("nvmlGpmSampleAlloc"); ret != nvml.SUCCESS {
		return nil, ret
	}
	return &gpmSample{}, nvml.SUCCESS
}

// Free releases the sample.
func (s *gpmSample) Free() nvml.Return { return nvml.SUCCESS }

// Get fills the sample from a device.
func (s *gpmSample) Get(d nvml.Device) nvml.Return { return d.GpmSampleGet(s) }

// MigGet fills the sample from a GPU instance.
func (s *gpmSample) MigGet(d nvml.Device, instance int) nvml.Return {
	return d.GpmMigSampleGet(instance, s)
}

// GpmQueryDeviceSupport reports whether the model has performance metrics.
func (d *device) GpmQueryDeviceSupport() (nvml.GpmSupport, nvml.Return) {
	return read(d, "nvmlGpmQueryDeviceSupport", func(g *gpu) (nvml.GpmSupport, nvml.Return) {
		s := nvml.GpmSupport{Version: nvml.GPM_SUPPORT_VERSION}
		if g.model.Has("gpm") {
			s.IsSupportedDevice = 1
		}
		return s, nvml.SUCCESS
	})
}

// GpmSampleGet fills the sample with the current integrals.
func (d *device) GpmSampleGet(sample nvml.GpmSample) nvml.Return {
	return d.ask("nvmlGpmSampleGet", func(g *gpu) nvml.Return {
		s, ok := sample.(*gpmSample)
		if !ok {
			return nvml.ERROR_INVALID_ARGUMENT
		}
		if !g.model.Has("gpm") {
			return nvml.ERROR_NOT_SUPPORTED
		}
		g.sample(s)
		return nvml.SUCCESS
	})
}

// sample fills s, including the elapsed part of the current step.
func (g *gpu) sample(s *gpmSample) {
	now := g.host.now()
	s.taken, s.at, s.total, s.decoders = true, now, g.total, g.model.Decoders
	rest := max(0, min((now-g.time()).Seconds(), step.Seconds()))
	s.total.add(&g.work.gpm, rest)
	s.links = s.links[:0]
	for i := range g.nvlink.links {
		l := &g.nvlink.links[i]
		pair := [2]float64{l.rx / 1024, l.tx / 1024}
		if l.up {
			up := float64(g.nvlink.up)
			pair[0] += g.work.gpm.nvRx / up * rest
			pair[1] += g.work.gpm.nvTx / up * rest
		}
		s.links = append(s.links, pair)
	}
}

// GpmMetricsGet computes the averages between two samples.
func (h *Host) GpmMetricsGet(get *nvml.GpmMetricsGetType) nvml.Return {
	if ret := h.open("nvmlGpmMetricsGet"); ret != nvml.SUCCESS {
		return ret
	}
	get.Version = nvml.GPM_METRICS_GET_VERSION
	from, ok1 := get.Sample1.(*gpmSample)
	to, ok2 := get.Sample2.(*gpmSample)
	if !ok1 || !ok2 || !from.taken || !to.taken || to.at <= from.at || int(get.NumMetrics) > len(get.Metrics) {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	dt := (to.at - from.at).Seconds()
	mean := to.total
	mean.add(&from.total, -1)
	for i := range get.Metrics[:get.NumMetrics] {
		m := &get.Metrics[i]
		v, ok := mean.metric(m.MetricId, from, to)
		if m.Value, m.NvmlReturn = max(v/dt, 0), uint32(nvml.SUCCESS); !ok {
			m.NvmlReturn = uint32(nvml.ERROR_INVALID_ARGUMENT)
		}
	}
	return nvml.SUCCESS
}

// metric returns the integral of a metric in NVML's unit: percent, or MiB per
// second. A metric that the chip lacks is 0, as on real chips.
func (m *gpm) metric(id uint32, from, to *gpmSample) (float64, bool) {
	percent := [...]float64{
		1: m.graphics, 2: m.sm, 3: m.occupancy, 4: m.integer, 5: m.tensor, 6: m.dfma, 7: m.hmma, 8: m.dmma, 9: m.imma,
		10: m.dram, 11: m.fp64, 12: m.fp32, 13: m.fp16,
	}
	switch {
	case id == 0 || id >= uint32(nvml.GPM_METRIC_MAX):
		return 0, false
	case int(id) < len(percent):
		return 100 * percent[id], true
	case id == 20:
		return m.pcieTx, true
	case id == 21:
		return m.pcieRx, true
	case id >= 30 && id < 30+min(to.decoders, 8):
		return 100 * m.dec, true
	case id >= 40 && id < 48:
		return 100 * m.jpg, true
	case id == 50:
		return 100 * m.ofa, true
	case id == 60:
		return m.nvRx, true
	case id == 61:
		return m.nvTx, true
	case id >= 62 && id < 98:
		if link := int(id-62) / 2; link < len(to.links) && link < len(from.links) {
			return to.links[link][(id-62)%2] - from.links[link][(id-62)%2], true
		}
	}
	return 0, true
}
