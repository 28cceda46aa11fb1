package derived

import (
	"math"
	"slices"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/activity"
	"gpusteward/collectors/device"
	"gpusteward/collectors/faults"
	"gpusteward/collectors/links"
)

// An input is a number of each GPU for the statistics: the sum of the series
// that match, and the rate of a counter.
type input struct {
	metric *collectors.Metric
	labels []string // those after gpu and uuid; "" and missing ones match any value
	or     []string // the alternative if no series has these labels
}

// The inputs. The ones before utilization are watched, the ones from power to
// capped are smoothed, and the ones from utilization to before capped are the
// GPU's load.
const (
	smClock = iota
	coreTemperature
	memoryTemperature
	memoryUsed
	pcieRX
	pcieTX
	nvlinkRX
	nvlinkTX
	power
	utilization
	memoryUtilization
	smActivity
	tensorActivity
	memoryActivity
	capped
	memoryFree
	powerLimit
	margin
	pcieGeneration
	pcieLanes
	mostGeneration
	mostLanes
	memoryClock
	mostClock
	pcieReplays
	pcieCorrectable
	eccCorrected
	remappedRows
	performance
	inputCount
)

var inputs = [inputCount]input{
	smClock:           {device.Clock, []string{"sm"}, nil},
	coreTemperature:   {device.Temperature, []string{"gpu"}, nil},
	memoryTemperature: {device.Temperature, []string{"memory"}, nil},
	memoryUsed:        {device.MemoryBytes, []string{"used"}, nil},
	pcieRX:            {activity.PCIeBytes, []string{"rx"}, nil},
	pcieTX:            {activity.PCIeBytes, []string{"tx"}, nil},
	nvlinkRX:          {links.NVLinkBytes, []string{"rx", "data"}, nil},
	nvlinkTX:          {links.NVLinkBytes, []string{"tx", "data"}, nil},
	// An A100 has no average.
	power:             {device.Power, []string{"average", "gpu"}, []string{"instant", "gpu"}},
	utilization:       {activity.Utilization, []string{"gpu"}, nil},
	memoryUtilization: {activity.Utilization, []string{"memory"}, nil},
	smActivity:        {activity.GPMActivity, []string{"sm"}, nil},
	tensorActivity:    {activity.GPMActivity, []string{"tensor"}, nil},
	memoryActivity:    {activity.GPMActivity, []string{"dram"}, nil},
	capped:            {device.ClockEventActive, []string{"sw_power_cap"}, nil},
	memoryFree:        {device.MemoryBytes, []string{"free"}, nil},
	powerLimit:        {device.PowerLimit, []string{"enforced"}, nil},
	margin:            {device.TemperatureMargin, nil, nil},
	pcieGeneration:    {links.PCIeGeneration, []string{"current"}, nil},
	pcieLanes:         {links.PCIeWidth, []string{"current"}, nil},
	mostGeneration:    {links.PCIeGeneration, []string{"max"}, nil},
	mostLanes:         {links.PCIeWidth, []string{"max"}, nil},
	memoryClock:       {device.Clock, []string{"memory"}, nil},
	mostClock:         {device.ClockMax, []string{"sm"}, nil},
	pcieReplays:       {links.PCIeReplays, nil, nil},
	pcieCorrectable:   {links.PCIeErrors, []string{"correctable"}, nil},
	eccCorrected:      {faults.ECCErrors, []string{"corrected", "volatile"}, nil},
	remappedRows:      {faults.RemappedRows, nil, nil},
	performance:       {device.PerformanceState, nil, nil},
}

// inputsOf are the inputs by their metric, so that each sample is visited once.
var inputsOf = func() (all []struct {
	metric *collectors.Metric
	inputs []int
}) {
next:
	for i := range inputs {
		for k := range all {
			if all[k].metric == inputs[i].metric {
				all[k].inputs = append(all[k].inputs, i)
				continue next
			}
		}
		all = append(all, struct {
			metric *collectors.Metric
			inputs []int
		}{inputs[i].metric, []int{i}})
	}
	return all
}()

// Inputs returns the metrics of the inputs of a GPU.
func Inputs() (all []*collectors.Metric) {
	for _, of := range inputsOf {
		all = append(all, of.metric)
	}
	return all
}

func matches(have, want []string) bool {
	for i, w := range want {
		if w != "" && have[i] != w {
			return false
		}
	}
	return true
}

// A counter turns the values of a counter into increases. The zero counter has
// no baseline.
type counter struct {
	last float64
	at   time.Time
}

// rise returns the counter's increase since the last look, and the time since.
// Both are NaN at the first look, and after a fall: the counter began again,
// and this is its new baseline.
func (c *counter) rise(v float64, now time.Time) (by float64, over time.Duration) {
	by, over = v-c.last, now.Sub(c.at)
	if c.at.IsZero() || by < 0 || over <= 0 {
		by = math.NaN()
	}
	c.last, c.at = v, now
	return by, over
}

// read reads the inputs of all GPUs from s.
func (d *Metrics) read(s *Snapshot, now time.Time) {
	for _, up := range s.Of(collectors.Up) {
		d.card(up.Labels, now)
	}
	for _, info := range s.Of(device.Info) {
		if c := d.card(info.Labels, now); c != nil {
			c.model = info.Labels[slices.Index(device.Info.Labels, "name")]
		}
	}
	for _, c := range d.cards {
		c.now, c.or = nothing, nothing
	}
	for _, of := range inputsOf {
		for _, sample := range s.Of(of.metric) {
			c := d.card(sample.Labels, now)
			if c == nil || !usable(sample.Value) {
				continue
			}
			for _, i := range of.inputs {
				switch in := &inputs[i]; {
				case matches(sample.Labels[2:], in.labels):
					c.now[i] = plus(c.now[i], sample.Value)
				case in.or != nil && matches(sample.Labels[2:], in.or):
					c.or[i] = plus(c.or[i], sample.Value)
				}
			}
		}
	}
	for _, c := range d.cards {
		c.settle(now)
	}
}

// nothing is a set of inputs without a value.
var nothing = func() (all [inputCount]float64) {
	for i := range all {
		all[i] = math.NaN()
	}
	return all
}()

func plus(sum, v float64) float64 {
	if !usable(sum) {
		return v
	}
	return sum + v
}

// settle turns the readings into the values of the statistics: counters become
// rates and increases, and the load is also smoothed. The smoothing takes as
// long as a GPU takes to become warm, because a GPU is cooler after a minute of
// work than after an hour.
func (c *card) settle(now time.Time) {
	for i := range inputs {
		if !usable(c.now[i]) {
			c.now[i] = c.or[i]
		}
		if c.rose[i] = math.NaN(); inputs[i].metric.Type == collectors.CounterType && usable(c.now[i]) {
			rise, over := c.counters[i].rise(c.now[i], now)
			c.rose[i], c.now[i] = rise, rise/over.Seconds()
		}
	}
	for i := power; i <= capped; i++ {
		if usable(c.now[i]) { // otherwise it stays: a pass without a reading is no change of load
			c.smooth[i] = ewma(c.smooth[i], c.now[i], max(now.Sub(c.smoothed[i]), 0), loadTau)
			c.smoothed[i] = now
		}
	}
	c.settled = now.Sub(c.began) >= loadTau
}

// loadTau is the time constant of a GPU's smoothed load.
const loadTau = 2 * time.Minute
