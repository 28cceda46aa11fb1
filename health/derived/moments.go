package derived

import (
	_ "embed"
	"slices"
	"strconv"
	"strings"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/device"
	"gpusteward/collectors/workloads"
)

// Metrics of one moment, or of a minute.
var (
	MemoryPressure = collectors.Gauge("nvgpu_memory_pressure_ratio",
		"Memory in use, as a part of what the driver leaves for use.")
	PCIeReplayExcess = collectors.Gauge("nvgpu_pcie_replay_excess_ratio",
		"PCIe replays in the last minute, divided by the number that a bit error ratio of 1e-12 allows the link.")
	Traffic = collectors.Gauge("nvgpu_traffic_bytes_per_second",
		"Bytes that the GPU moves over PCIe and NVLink, in both directions, in the last 10 seconds.")
	PCIeShortfall = collectors.Gauge("nvgpu_pcie_link_shortfall",
		"Least distance of the PCIe link from its best in the last samples in which the GPU worked: generations, or "+
			"lanes.", "of")
	FansStopped = collectors.Gauge("nvgpu_fans_stopped",
		"Fans of the board that stand still.")
	WorkloadLag = collectors.Gauge("nvgpu_workload_lag_ratio",
		"Difference between a workload's use of this GPU and of the GPU that it uses most.", "workload")
)

//go:embed data/pcie.tsv
var pcieTable string

// pcieRates are gigatransfers per second and lane, by PCIe generation (PCI
// Express Base Specification: 8.4).
var pcieRates = func() map[float64]float64 {
	rates := map[float64]float64{}
	for line := range strings.Lines(pcieTable) {
		generation, rate, _ := strings.Cut(strings.TrimSpace(line), "\t")
		g, err := strconv.ParseFloat(generation, 64)
		if r, rerr := strconv.ParseFloat(rate, 64); err == nil && rerr == nil {
			rates[g] = r
		}
	}
	return rates
}()

// bitErrors is the bit error ratio that PCIe allows a link.
const bitErrors = 1e-12

// replays are a GPU's PCIe replays in the last six passes, and the link's
// allowance for that time.
type replays struct {
	seen, allowed [6]float64
	n             int
}

// gauges puts the metrics of the newest values.
func (d *Metrics) gauges(c *card) {
	if all := c.now[memoryUsed] + c.now[memoryFree]; all > 0 {
		d.put(MemoryPressure, c.labels, c.now[memoryUsed]/all)
	}
	d.put(Traffic, c.labels, c.traffic())
	rate, known := pcieRates[c.now[pcieGeneration]]
	allowed := rate * 1e9 * c.now[pcieLanes] * bitErrors * d.passed.Seconds()
	if rise := c.rose[pcieReplays]; known && usable(rise) && allowed > 0 {
		r := &c.replays
		r.seen[r.n%len(r.seen)], r.allowed[r.n%len(r.seen)] = rise, allowed
		if r.n++; r.n >= len(r.seen) {
			var seen, allowed float64
			for i := range r.seen {
				seen, allowed = seen+r.seen[i], allowed+r.allowed[i]
			}
			d.put(PCIeReplayExcess, c.labels, seen/allowed)
		}
	}
}

// A shortfall is the distance of a link from its best, at the last looks during
// work of the GPU. An idle GPU lowers its link to save power, and a GPU that
// works now and then may be read in between: only a shortfall at every look is
// the link's fault.
type shortfall struct {
	by     [worksLeast]float64
	at     [worksLeast]time.Time
	n      int
	found  bool // by recent looks
	labels []string
}

const (
	worksLeast  = 12              // looks at a GPU that works
	worksWithin = 5 * time.Minute // the oldest look
	// A link keeps the width of its training, whatever the GPU does. Its
	// generation follows the work, and a desktop or a small decoder asks for
	// little.
	widthFrom      = idleTo
	generationFrom = 0.10
)

// FullSpeed is the performance state up to which a GPU asks for the fastest
// link.
const FullSpeed = 2

// shortfalls puts the condition of the PCIe link while the GPU works.
func (d *Metrics) shortfalls(c *card, now time.Time) {
	d.shortfall(&c.narrow, c.now[mostLanes]-c.now[pcieLanes], c.now[utilization] > widthFrom, now)
	full := c.now[utilization] > generationFrom && !(c.now[performance] > FullSpeed)
	d.shortfall(&c.slow, c.now[mostGeneration]-c.now[pcieGeneration], full, now)
}

func (d *Metrics) shortfall(f *shortfall, by float64, works bool, now time.Time) {
	if works && usable(by) {
		f.by[f.n%worksLeast], f.at[f.n%worksLeast] = by, now
		f.n++
	}
	least := slices.Min(f.by[:]) // not above 0, nor recent, before there are enough
	recent := now.Sub(f.at[f.n%worksLeast]) <= worksWithin
	// A shortfall holds while the GPU rests, as long as the link stays below
	// its best.
	if f.found = least > 0 && (recent || f.found && by > 0); recent || f.found {
		d.put(PCIeShortfall, f.labels, least)
	}
}

// fans puts the number of stopped fans of each board.
func (d *Metrics) fans(s *Snapshot) {
	for _, c := range d.cards {
		stopped, any := 0, false
		for _, sample := range s.Of(device.FanSpeed) {
			if sample.Labels[1] == c.uuid {
				any = true
				stopped += int(collectors.Bool(sample.Value == 0))
			}
		}
		if any {
			d.put(FansStopped, c.labels, float64(stopped))
		}
	}
}

// A busiest is a workload's highest utilization of a GPU, and the number of its
// GPUs.
type busiest struct {
	utilization float64
	gpus        int
}

// lag puts the lag of each GPU of a workload.
func (d *Metrics) lag(s *Snapshot) {
	clear(d.lags)
	for pass := range 2 {
		for _, sample := range s.Of(workloads.WorkloadUse) {
			if sample.Labels[3] != "sm" || !usable(sample.Value) {
				continue
			}
			workload := sample.Labels[2]
			b := d.lags[workload]
			if pass == 0 {
				d.lags[workload] = busiest{max(b.utilization, sample.Value), b.gpus + 1}
			} else if b.gpus > 1 {
				lag := b.utilization - sample.Value
				if d.held[workload] {
					lag = 0
				}
				d.put(WorkloadLag, sample.Labels[:3:3], lag)
			}
		}
	}
}
