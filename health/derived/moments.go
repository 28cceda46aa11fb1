package derived

import (
	_ "embed"
	"slices"
	"strconv"
	"strings"
	"time"

	"gpusteward/collectors"
)

// What follows from one moment, or from a minute.
var (
	MemoryPressure   = collectors.Gauge("nvgpu_memory_pressure_ratio", "Memory in use, of what the driver leaves for use.")
	PCIeReplayExcess = collectors.Gauge("nvgpu_pcie_replay_excess_ratio", "PCIe replays in the last minute, of as many as a bit error ratio of 1e-12 allows the link.")
	Traffic          = collectors.Gauge("nvgpu_traffic_bytes_per_second", "What the GPU moves over PCIe and NVLink, both directions, in the last 10 seconds.")
	PCIeShortfall    = collectors.Gauge("nvgpu_pcie_link_shortfall", "By how much the PCIe link was at least below the most that it can be, in the last samples in which the GPU worked: generations, or lanes.", "of")
	FansStopped      = collectors.Gauge("nvgpu_fans_stopped", "Fans of the board that do not turn.")
	WorkloadLag      = collectors.Gauge("nvgpu_workload_lag_ratio", "By how much a workload on several GPUs uses this one less than that which it uses most.", "workload")
)

//go:embed data/pcie.tsv
var pcieTable string

// pcieRates are gigatransfers a second and lane, by PCIe generation (PCI
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

// replays are a GPU's PCIe replays in the last six passes, and what the link
// was allowed meanwhile.
type replays struct {
	seen, allowed [6]float64
	n             int
}

// gauges puts what follows from the newest values.
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

// A shortfall is by how much a link was below the most that it can be, when it
// was last looked at while the GPU worked. An idle GPU lowers its link to save
// power, and one that works now and then may be read in between: only what was
// so each time is the link's fault.
type shortfall struct {
	by     [worksLeast]float64
	at     [worksLeast]time.Time
	n      int
	found  bool // in looks that were recent
	labels []string
}

const (
	worksLeast  = 12              // looks at a GPU that works
	worksWithin = 5 * time.Minute // no longer ago
	// A link is as wide as it was trained, whatever the GPU does. Its generation
	// follows the work, and a desktop or a small decoder asks for little.
	widthFrom      = idleTo
	generationFrom = 0.10
)

// shortfalls puts how the PCIe link fares while the GPU works.
func (d *Metrics) shortfalls(c *card, now time.Time) {
	d.shortfall(&c.narrow, c.now[mostLanes]-c.now[pcieLanes], c.now[utilization] > widthFrom, now)
	d.shortfall(&c.slow, c.now[mostGeneration]-c.now[pcieGeneration], c.now[utilization] > generationFrom, now)
}

func (d *Metrics) shortfall(f *shortfall, by float64, works bool, now time.Time) {
	if works && usable(by) {
		f.by[f.n%worksLeast], f.at[f.n%worksLeast] = by, now
		f.n++
	}
	if f.n < worksLeast {
		return
	}
	least := slices.Min(f.by[:])
	recent := now.Sub(f.at[f.n%worksLeast]) <= worksWithin
	// What was found holds while the GPU rests, as long as the link stays below.
	if f.found = least > 0 && (recent || f.found && by > 0); recent || f.found {
		d.put(PCIeShortfall, f.labels, least)
	}
}

// fans puts how many fans of each board do not turn.
func (d *Metrics) fans(s *Snapshot) {
	for _, c := range d.cards {
		stopped, any := 0, false
		for _, sample := range s.Of(collectors.FanSpeed) {
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

// A busiest is a workload's highest utilization of a GPU, and on how many it runs.
type busiest struct {
	utilization float64
	gpus        int
}

// lag puts how far each GPU of a workload is behind.
func (d *Metrics) lag(s *Snapshot) {
	clear(d.lags)
	for pass := range 2 {
		for _, sample := range s.Of(collectors.WorkloadUse) {
			if sample.Labels[3] != "sm" || !usable(sample.Value) {
				continue
			}
			workload := sample.Labels[2]
			b := d.lags[workload]
			if pass == 0 {
				d.lags[workload] = busiest{max(b.utilization, sample.Value), b.gpus + 1}
			} else if b.gpus > 1 {
				d.put(WorkloadLag, sample.Labels[:3:3], b.utilization-sample.Value)
			}
		}
	}
}
