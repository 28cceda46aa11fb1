package derived

import (
	"cmp"
	"math"
	"slices"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/device"
	"gpusteward/collectors/workloads"
)

// Forecasts of trends. A forecast exists only while the trend is certain and
// continues: a value that rises at the start and levels off has none.
var (
	MemoryExhaustion = collectors.Gauge("nvgpu_workload_memory_exhaustion_seconds",
		"Time until the workload has taken the GPU memory that is free, by the trend of an hour.", "workload")
	MemoryCreeps = collectors.Gauge("nvgpu_workload_memory_creeps",
		"1 for a workload that had the same memory for half an hour, and has then grown evenly for an hour.",
		"workload")
	ThermalLimit = collectors.Gauge("nvgpu_thermal_limit_seconds",
		"Time until heat slows the GPU down, by the trend of a quarter of an hour.")
	SpareRowsExhaustion = collectors.Gauge("nvgpu_spare_rows_exhaustion_seconds",
		"Time until the limit of replaced memory rows, by the trend of two weeks.")
	ForecastConfidence = collectors.Gauge("nvgpu_forecast_confidence_ratio",
		"Certain part of a forecast's trend: the lower end of its 95 % interval, divided by the trend.", "forecast",
		"workload", "tenant")
)

// Limits of forecasts.
const (
	trendSize   = 30
	memoryEvery = 30 * time.Second // a quarter of an hour
	leakEvery   = 2 * time.Minute  // an hour: by then, most caches are full and most data are loaded
	slowEvery   = 4 * time.Minute  // two hours: a leak in steps
	nearlyFull  = 0.05             // free part of a GPU's memory that a leak in steps will take
	// part of a trend's rise, or of a workload's memory: a workload that gives
	// more than that back follows its work and does not leak
	mostDrop    = 0.1
	cycle       = 3 * time.Hour    // within it, a workload takes memory again that it gave back
	rowsEvery   = 12 * time.Hour   // two weeks
	rowsLeast   = 10               // points
	restsFor    = 30 * time.Minute // a workload that has all of its memory takes no more for so long
	restsWithin = 0.001            // of its memory: a cache that fills slowly at night does not rest
	evenWithin  = 0.05             // of a trend's rise: no point is further from its line
	inRow       = 12               // looks in a row that must find a leak, to exclude chance
	mostRows    = 512              // that can be replaced (NVIDIA, GPU Memory Error Management: row remapping)
)

// A trend holds the last points of a slow series, the oldest first.
type trend struct {
	every  time.Duration
	Times  []float64 `json:"times,omitempty"` // Unix seconds
	Values []float64 `json:"values,omitempty"`
}

// moved returns a copy whose times are seconds later.
func (t trend) moved(seconds float64) trend {
	t.Times = slices.Clone(t.Times)
	for i := range t.Times {
		t.Times[i] += seconds
	}
	return t
}

func (t *trend) size() int { return 8 * (cap(t.Times) + cap(t.Values)) }

// add adds a point if one is due, and reports whether it did. A clock that went
// back begins a new series.
func (t *trend) add(now time.Time, v float64) bool {
	if !usable(v) {
		return false
	}
	at := float64(now.UnixMilli()) / 1000
	if n := len(t.Times); n > 0 {
		switch gap := at - t.Times[n-1]; {
		case gap < 0:
			t.Times, t.Values = t.Times[:0], t.Values[:0]
		case gap < t.every.Seconds()*0.99: // timers are not exact
			return false
		}
	}
	if len(t.Times) == trendSize {
		copy(t.Times, t.Times[1:])
		copy(t.Values, t.Values[1:])
		t.Times, t.Values = t.Times[:trendSize-1], t.Values[:trendSize-1]
	}
	t.Times, t.Values = append(t.Times, at), append(t.Values, v)
	return true
}

// drop returns the greatest fall of the series below an earlier value.
func (t *trend) drop() (most float64) {
	peak := math.Inf(-1)
	for _, v := range t.Values {
		peak = max(peak, v)
		most = max(most, peak-v)
	}
	return most
}

// strays returns the greatest distance of the series from a line with a slope.
func (t *trend) strays(slope float64) (most float64) {
	off := make([]float64, len(t.Times))
	for i := range off {
		off[i] = t.Values[i] - slope*(t.Times[i]-t.Times[0])
	}
	center := Median(off)
	return max(slices.Max(off)-center, center-slices.Min(off))
}

// A forecast is the last result of a trend.
type forecast struct {
	seconds, confidence float64
	ok                  bool
	row                 int      // successive looks that found it
	least, rows         int      // points and successive looks that it requires
	keeps               bool     // it never falls
	even                bool     // it rises along a line
	labels              []string // of ForecastConfidence
}

// look finds the time at which the trend will have risen by distance. The trend
// must rise in each third and not level off, so that neither a step nor a start
// counts. Its speed is the recent one, if that is slower.
func (f *forecast) look(t *trend, distance float64, room []float64) {
	f.ok = false
	n := len(t.Times)
	if n < f.least || !usable(distance) {
		return
	}
	var rose, took [3]float64
	for i := range rose {
		from, to := i*(n-1)/3, (i+1)*(n-1)/3
		rose[i], took[i] = t.Values[to]-t.Values[from], t.Times[to]-t.Times[from]
	}
	if slices.Min(rose[:]) <= 0 {
		f.row = 0
		return // most series end here, at no cost
	}
	if f.keeps && t.drop() > mostDrop*(t.Values[n-1]-t.Values[0]) {
		f.row = 0
		return
	}
	slope, low, _ := theilSen(t.Times, t.Values, room)
	lately := min(slope, rose[2]/took[2])
	// If it slows down by the same factor in each third, the future is a
	// geometric series. A series that grows in jumps may have one more or less
	// in a third.
	jump := 0.0
	for i := range n - 1 {
		jump = max(jump, t.Values[i+1]-t.Values[i])
	}
	slower := min((rose[2]+jump)/max(rose[0], rose[1]), 1)
	if reach := rose[2] * slower / (1 - slower); low <= 0 || reach < distance {
		f.row = 0
		return
	}
	if f.row++; f.row < f.rows {
		return
	}
	f.even = t.strays(slope) <= evenWithin*(t.Values[n-1]-t.Values[0])
	f.ok, f.seconds, f.confidence = true, max(distance, 0)/lately, low/slope
}

// A resident is a workload on a GPU, or on one of its instances.
type resident struct {
	name, gi string
	seen     time.Time
	peak     float64   // its highest memory since it last gave much back
	gave     time.Time // time of that
	rest     float64   // its highest memory before it last took more
	rested   time.Time // beginning of rest
	crept    time.Time // when it took more after a rest; zero: never
	turn     int       // the one of six calls that makes its forecast
	free     float64
	memory   trend
	forecast
	slow       *trend // while the memory is nearly full
	slowly     forecast
	exhaustion []string // labels
}

// soonest returns the forecast of the trend that finds a leak.
func (t *resident) soonest() *forecast {
	if !t.ok && t.slowly.ok {
		return &t.slowly
	}
	return &t.forecast
}

// creep records the memory of a workload on a GPU that is nearly full.
func (t *resident) creep(bytes float64, now time.Time) {
	switch full := t.free < nearlyFull*(bytes+t.free); {
	case !full:
		t.slow, t.slowly.ok, t.slowly.row = nil, false, 0
		return
	case t.slow == nil:
		t.slow = &trend{every: slowEvery}
	}
	t.slow.add(now, bytes)
}

// readResidents reads the memory of the workloads.
func (d *Metrics) readResidents(s *Snapshot, now time.Time) {
	for _, sample := range s.Of(workloads.WorkloadMemory) {
		c := d.card(sample.Labels, now)
		if c == nil || !usable(sample.Value) {
			continue
		}
		if t := c.resident(sample.Labels[2], sample.Labels[3], now); t != nil {
			t.memory.add(now, sample.Value)
			if t.gi == "" {
				t.free = c.now[memoryFree]
			}
			t.grow(sample.Value, now)
			t.creep(sample.Value, now)
		}
	}
	for _, sample := range s.Of(device.MIGMemory) {
		c := d.card(sample.Labels, now)
		if c == nil || sample.Labels[3] != "free" {
			continue
		}
		for _, t := range c.residents {
			if t.gi == sample.Labels[2] {
				t.free = sample.Value
			}
		}
	}
	for _, c := range d.cards {
		c.jobs = c.jobs[:0]
		for _, t := range c.residents {
			if t.seen.Equal(now) {
				c.jobs = append(c.jobs, t.name)
			}
		}
	}
}

// resident returns a workload by its name; nil if there are too many.
func (c *card) resident(name, gi string, now time.Time) *resident {
	i, ok := slices.BinarySearchFunc(c.residents, name, func(t *resident, name string) int {
		return cmp.Or(cmp.Compare(t.name, name), cmp.Compare(t.gi, gi))
	})
	if !ok {
		if len(c.residents) >= mostWorkloads {
			return nil
		}
		t := &resident{name: name, gi: gi, turn: len(c.residents), memory: trend{every: leakEvery},
			exhaustion: []string{c.gpu, c.uuid, name}}
		t.forecast = forecast{least: trendSize, rows: inRow, keeps: true, labels: []string{c.gpu, c.uuid,
			"memory_exhaustion", name, ""}}
		t.slowly = t.forecast
		c.residents = slices.Insert(c.residents, i, t)
	}
	c.residents[i].seen = now
	return c.residents[i]
}

// Resides reports whether a workload is on a GPU, or was in the last minutes.
func (d *Metrics) Resides(workload string) bool {
	return slices.ContainsFunc(d.cards, func(c *card) bool {
		return slices.ContainsFunc(c.residents, func(t *resident) bool { return t.name == workload })
	})
}

// Runs reports whether a workload was on the GPU when it was last read; without an index, on any.
func (d *Metrics) Runs(workload, gpu string) bool {
	return slices.ContainsFunc(d.cards, func(c *card) bool {
		return (gpu == "" || c.gpu == gpu) && slices.Contains(c.jobs, workload)
	})
}

// grow records the memory that the workload took beyond its start, and whether
// it gave any back.
func (t *resident) grow(bytes float64, now time.Time) {
	switch {
	case bytes > (1+restsWithin)*t.rest:
		if !t.rested.IsZero() && now.Sub(t.rested) >= restsFor {
			t.crept = now
		}
		t.rest, t.rested = bytes, now
	case bytes < (1-restsWithin)*t.rest: // it may take again what it gave back
		t.rested = now
	}
	if t.peak = max(t.peak, bytes); t.peak-bytes > mostDrop*(t.peak+t.free) {
		t.peak, t.gave = bytes, now
	}
}

// creeps reports whether the whole trend is memory that the workload took after
// a rest, along a line.
func (t *resident) creeps() bool {
	return t.even && !t.crept.IsZero() && len(t.memory.Times) > 0 &&
		t.memory.Times[0] >= float64(t.crept.Unix())-leakEvery.Seconds()
}

// turns is the number of calls, those of a minute, in which each trend has one
// turn.
const turns = 6

// forecasts computes the forecasts of the GPU's trends. The trends take turns, and
// each is computed once a minute.
func (d *Metrics) forecasts(c *card, h *history, now time.Time) {
	if c.heat.add(now, -c.now[margin]) {
		c.heatForecast.look(&c.heat, c.now[margin], d.room)
	}
	if h.Rows.add(now, c.now[remappedRows]) || !c.rows {
		c.rows = true
		c.rowsForecast.look(&h.Rows, mostRows-c.now[remappedRows], d.room)
	}
	d.tenantForecasts(c, now)
	d.foretell(ThermalLimit, c.labels, &c.heatForecast)
	d.foretell(SpareRowsExhaustion, c.labels, &c.rowsForecast)
	var soonest *resident
	for i, t := range c.residents {
		if (d.calls+t.turn)%turns == 0 {
			t.look(&t.memory, t.free, d.room)
			if t.slow != nil {
				t.slowly.look(t.slow, t.free, d.room)
			}
		}
		if f := t.soonest(); f.ok && t.seen.Equal(now) && now.Sub(t.gave) > cycle &&
			(soonest == nil || f.seconds < soonest.soonest().seconds) {
			soonest = t
		}
		if last := i+1 == len(c.residents) || c.residents[i+1].name != t.name; last && soonest != nil {
			// the instance of the workload that is full first
			d.foretell(MemoryExhaustion, soonest.exhaustion, soonest.soonest())
			d.put(MemoryCreeps, soonest.exhaustion, collectors.Bool(soonest.ok && soonest.creeps()))
			soonest = nil
		}
	}
}

// foretell puts a forecast, if there is one.
func (d *Metrics) foretell(m *collectors.Metric, labels []string, f *forecast) {
	if f.ok {
		d.put(m, labels, f.seconds)
		d.put(ForecastConfidence, f.labels, f.confidence)
	}
}
