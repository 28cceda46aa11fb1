package gpu

import (
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// A Sampler reads GPM metrics over the time between two calls of Read. It
// belongs to its device's goroutine. Close it, or the device.
type Sampler struct {
	d        *Device
	gi       int // MIG GPU instance, or -1
	get      nvml.GpmMetricsGetType
	old, new nvml.GpmSample
	primed   bool
}

// Sampler returns a sampler for d, or with gi >= 0 for one of its MIG GPU
// instances. The return code is "not supported" if the GPU or driver has no
// GPM.
func (d *Device) Sampler(gi int, metrics ...uint32) (*Sampler, nvml.Return) {
	support, ret := d.GpmQueryDeviceSupport()
	if ret != nvml.SUCCESS {
		return nil, ret
	}
	if support.IsSupportedDevice == 0 {
		return nil, nvml.ERROR_NOT_SUPPORTED
	}
	s := &Sampler{d: d, gi: gi}
	for i, id := range metrics {
		s.get.Metrics[i].MetricId = id
	}
	s.get.NumMetrics = uint32(len(metrics))
	if s.old, ret = d.lib.GpmSampleAlloc(); ret != nvml.SUCCESS {
		return nil, ret
	}
	if s.new, ret = d.lib.GpmSampleAlloc(); ret != nvml.SUCCESS {
		d.freeSample(s.old)
		return nil, ret
	}
	d.open[s] = s.free
	return s, nvml.SUCCESS
}

// Read takes a sample and returns the metrics since the previous one, in the
// requested order: percent, or MiB/s for rates. The first Read has nothing to
// compare with and returns NO_DATA.
func (s *Sampler) Read() ([]nvml.GpmMetric, nvml.Return) {
	var ret nvml.Return
	if s.gi < 0 {
		ret = s.d.GpmSampleGet(s.new)
	} else {
		ret = s.d.GpmMigSampleGet(s.gi, s.new)
	}
	if ret != nvml.SUCCESS {
		s.primed = false
		return nil, ret
	}
	s.old, s.new = s.new, s.old // s.old is now the latest
	if !s.primed {
		s.primed = true
		return nil, nvml.ERROR_NO_DATA
	}
	s.get.Sample1, s.get.Sample2 = s.new, s.old
	if ret := s.d.lib.GpmMetricsGet(&s.get); ret != nvml.SUCCESS {
		return nil, ret
	}
	return s.get.Metrics[:s.get.NumMetrics], nvml.SUCCESS
}

// Close frees the samples.
func (s *Sampler) Close() {
	delete(s.d.open, s)
	s.free()
}

func (s *Sampler) free() {
	s.d.freeSample(s.old)
	s.d.freeSample(s.new)
}

func (d *Device) freeSample(s nvml.GpmSample) {
	if d.enter(callSampleFree) == nvml.SUCCESS {
		d.leave(callSampleFree, s.Free())
	}
}

// maxWindow is the longest window over which GPM's counters can be compared.
const maxWindow = 10 * time.Minute

// A Meter reads GPM metrics over the time since its last reading, if there is
// GPM.
type Meter struct {
	sampler *Sampler
	ret     nvml.Return // the reason that there is no sampler
	last    time.Time
}

// Meter returns a meter of metrics, for MIG GPU instance gi unless it is
// negative.
func (d *Device) Meter(gi int, metrics ...uint32) *Meter {
	s, ret := d.Sampler(gi, metrics...)
	return &Meter{sampler: s, ret: ret}
}

// Read returns the metrics and their window. The first reading, and one after
// too long a window, return NO_DATA.
func (m *Meter) Read(now time.Time) ([]nvml.GpmMetric, time.Duration, nvml.Return) {
	if m.sampler == nil {
		return nil, 0, m.ret
	}
	values, ret := m.sampler.Read()
	window := now.Sub(m.last)
	m.last = now
	if ret == nvml.SUCCESS && window > maxWindow {
		ret = nvml.ERROR_NO_DATA
	}
	return values, window, ret
}

// Close frees the meter's samples.
func (m *Meter) Close() {
	if m.sampler != nil {
		m.sampler.Close()
	}
}
