package derived

import (
	"math"
	"math/bits"

	"gpusteward/collectors"
)

// The distance of a GPU's newest value from its own last ten minutes. Three
// sigma is for experts: it is wrong a hundred times an hour. The flag requires
// more: a robust score, a deviation that matters, an unchanged load, and
// persistence.
var (
	AnomalyZScore = collectors.Gauge("nvgpu_anomaly_zscore",
		"Distance of the newest value from the mean of the ten minutes before, in standard deviations. Not for alerts.",
		"signal")
	AnomalyRobustZScore = collectors.Gauge("nvgpu_anomaly_robust_zscore",
		"Distance of the newest value from the median of the ten minutes before, in robust standard deviations.",
		"signal")
	AnomalyActive = collectors.Gauge("nvgpu_anomaly_active",
		"Whether five of the last six values were far from the ten minutes before, at the same utilization.", "signal")
)

// Limits of anomalies.
const (
	anomalyLeast = windowSize / 2 // samples for a comparison
	anomalyZ     = 6.0
	anomalyK     = 5 // of the last anomalyN
	anomalyN     = 6
	likeLoad     = 0.10 // ratios of utilization that are no further apart are alike
)

// watches are the watched inputs: their names, the least standard deviation to
// believe in, and the least deviation that matters, in the metric's unit and as
// a part of the usual value.
var watches = [...]struct {
	name                 string
	floor, effect, share float64
}{
	smClock:           {"sm_clock", 15e6, 50e6, 0.10}, // clocks come in steps of 15 MHz
	coreTemperature:   {"temperature", 1, 8, 0},
	memoryTemperature: {"temperature_memory", 1, 8, 0},
	memoryUsed:        {"memory_used", 64 << 20, 1 << 30, 0.10},
	pcieRX:            {"pcie_rx", 1e6, 1e8, 0.5},
	pcieTX:            {"pcie_tx", 1e6, 1e8, 0.5},
	nvlinkRX:          {"nvlink_rx", 1e6, 1e9, 0.5},
	nvlinkTX:          {"nvlink_tx", 1e6, 1e9, 0.5},
	power:             {"power", 2, 10, 0.10},
}

// A watch is a watched input of a GPU.
type watch struct {
	window
	odd    uint8 // the last samples, the newest lowest; 1 is odd
	labels []string
}

// anomalies compares the watched inputs with their windows, and then adds the
// new samples to the windows.
func (d *Metrics) anomalies(c *card) {
	utilization := c.now[utilization]
	steady := within(utilization, c.load.median(), likeLoad)
	for i := range c.watched {
		w, v := &c.watched[i], c.now[i]
		if !usable(v) {
			continue
		}
		if w.n >= anomalyLeast {
			mean, sigma := w.moments()
			center := w.median()
			z := robustZ(v, center, w.mad(center), watches[i].floor)
			d.put(AnomalyZScore, w.labels, zscore(v, mean, sigma, watches[i].floor))
			d.put(AnomalyRobustZScore, w.labels, z)
			odd := steady && math.Abs(z) >= anomalyZ &&
				math.Abs(v-center) >= max(watches[i].effect, watches[i].share*math.Abs(center))
			w.odd = w.odd<<1 | uint8(collectors.Bool(odd))
			if usable(utilization) {
				d.put(AnomalyActive, w.labels, collectors.Bool(bits.OnesCount8(w.odd&(1<<anomalyN-1)) >= anomalyK))
			}
		}
		w.push(v)
	}
	if usable(utilization) {
		c.load.push(utilization)
	}
}
