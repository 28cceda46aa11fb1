// Package derived computes metrics from series of samples: how odd a value is
// against the last ones, against the GPU's siblings and against its own past,
// where a trend leads, and how much has happened to a GPU.
package derived

import (
	"cmp"
	"math"
	"slices"
	"time"
	"unsafe"

	"gpusteward/collectors"
	"gpusteward/health/incident"
)

// Bounds of what is remembered.
const (
	mostCards     = 16
	mostWorkloads = 64 // a GPU
	mostLinks     = 36 // a GPU
	mostHistories = 64 // GPUs that the host ever had
	goneAfter     = 10 * time.Minute
)

// Step is how often Derive is called.
const Step = 10 * time.Second

// Metrics computes the derived metrics. It holds the windows that this takes,
// and knows neither clock nor files. It belongs to one goroutine at a time.
type Metrics struct {
	cards     []*card             // GPUs that there are, by index
	histories map[string]*history // by UUID: what outlives a restart
	told      []string            // incidents that have been counted, the newest last

	start   time.Time     // of the first Derive
	last    time.Time     // of Derive
	passed  time.Duration // since the call before; 0 where the clock went back
	calls   int
	minute  int64                                      // that the last call was in
	out     map[*collectors.Metric][]collectors.Sample // of this call
	room    []float64                                  // for one calculation at a time
	lags    map[string]busiest
	waiting []*wait // workloads, those on the most GPUs first
}

// A card is what is known of a GPU's last minutes.
type card struct {
	gpu, uuid, model string
	seen             time.Time
	labels           []string         // gpu and uuid
	watched          [power + 1]watch // by input
	partnered        [len(PartnerSignals)][]string
	jobs             []string   // workloads that are here
	classes          [][]string // labels of each fault class
	counters         [inputCount]counter
	now, or          [inputCount]float64 // NaN for what is not there
	rose             [inputCount]float64 // counters, since the call before
	smooth           [capped + 1]float64 // from power on
	smoothed         [capped + 1]time.Time
	began            time.Time
	settled          bool   // smoothed for long enough
	load             window // utilizations
	drift            drift
	replays          replays
	narrow, slow     shortfall // of PCIe lanes and generations
	links            []*link
	residents        []*resident
	tenancies        []*tenancy
	headroom         trend // of memory that is free and nobody's guarantee
	headroomForecast forecast
	whole            link     // all links
	together         [1]*link // whole
	heat             trend
	heatForecast     forecast
	rowsForecast     forecast
	rows             bool    // the trend of rows was looked at
	rise             float64 // degrees by which the GPU is hotter than its past
	excused          bool    // a workload waits on this GPU and on others
}

// New returns Metrics that has seen no sample.
func New() *Metrics {
	return &Metrics{
		histories: map[string]*history{}, out: map[*collectors.Metric][]collectors.Sample{},
		room: make([]float64, 0, trendSize*(trendSize-1)/2), lags: map[string]busiest{},
	}
}

// Derive adds to s what follows from it and from the snapshots before, which
// it expects 10 s apart. It is pure but for what it remembers, and the same
// calls give the same samples.
func (d *Metrics) Derive(s *Snapshot, now time.Time) {
	now = d.steady(now)
	d.passed = max(now.Sub(d.last), 0)
	d.last = now
	d.calls++
	minute := now.Unix() / 60
	each := minute != d.minute // the first call in a minute does what is done each minute
	d.minute = minute

	d.read(s, now)
	d.forget(now)
	d.readResidents(s, now)
	for _, c := range d.cards {
		d.anomalies(c)
		d.peers(c)
		d.partners(c)
		d.shortfalls(c, now)
		c.sum()
		d.histories[c.uuid].sum(c)
	}
	d.places()
	if each {
		d.readLinks(s, now)
	}
	d.readTenants(s, now)
	for _, c := range d.cards {
		d.gauges(c)
		h := d.histories[c.uuid]
		if each {
			d.settles(c)
			c.drift.advance()
			h.advance(now)
		}
		d.drifts(c)
		d.errors(c, h)
		d.forecasts(c, h, now)
		d.scores(c, h, now)
	}
	d.links()
	d.fans(s)
	d.lag(s)
	d.waits(now)
	n := 0
	for _, samples := range d.out {
		n += len(samples)
	}
	all := make([]collectors.Sample, 0, n) // the snapshot keeps it
	for _, m := range families {
		all = append(all, d.out[m]...)
		d.out[m] = d.out[m][:0]
	}
	s.Add(all...)
}

// steady returns now by a wall clock that nobody has set since the first call:
// trends are made of such times.
func (d *Metrics) steady(now time.Time) time.Time {
	if d.start.IsZero() {
		d.start = now
	}
	return d.start.Add(now.Sub(d.start))
}

// families are all that Derive adds, in the order in which it does.
var families = []*collectors.Metric{
	AnomalyZScore, AnomalyRobustZScore, AnomalyActive, PeerZScore, PeerDeviationCelsius, PeerDeviationRatio, PeerClockRatio, TemperatureRise, HotPlace, PeerLinkZScore, PeerLinkDeviationRatio, DriftCUSUM,
	ECCCorrectablePerHour, ECCCorrectableCUSUM, PCIeCorrectableCUSUM, MemoryExhaustion, MemoryCreeps, ThermalLimit, SpareRowsExhaustion, QuotaMemoryExhaustion, QuotaGuaranteeExhaustion,
	ForecastConfidence, FaultScore, LemonScore, MemoryPressure, Traffic, PCIeReplayExcess, PCIeShortfall, FansStopped, WorkloadLag,
	WorkloadWait, Spinning,
	PeerLinkSpeedRatio, PeerLinksMissing,
}

// put adds a sample, unless its value is no number.
func (d *Metrics) put(m *collectors.Metric, labels []string, v float64) {
	if usable(v) {
		d.out[m] = append(d.out[m], collectors.Sample{Metric: m, Labels: labels, Value: v})
	}
}

// known returns the GPU that a sample's labels begin with, if there is one.
func (d *Metrics) known(labels []string) *card {
	for _, c := range d.cards {
		if c.uuid == labels[1] && c.gpu == labels[0] {
			return c
		}
	}
	return nil
}

// card returns the GPU that a sample's labels begin with; nil where there are
// too many. A GPU with another index is another to Prometheus, so its windows
// begin again.
func (d *Metrics) card(labels []string, now time.Time) *card {
	gpu, uuid := labels[0], labels[1]
	if c := d.known(labels); c != nil {
		c.seen = now
		return c
	}
	d.cards = slices.DeleteFunc(d.cards, func(c *card) bool { return c.uuid == uuid })
	if len(d.cards) >= mostCards || d.history(uuid, now) == nil {
		return nil
	}
	c := &card{gpu: gpu, uuid: uuid, labels: []string{gpu, uuid}, seen: now, began: now, now: nothing, or: nothing, rose: nothing}
	copy(c.smooth[:], nothing[:])
	for i := range c.watched {
		c.watched[i].labels = []string{gpu, uuid, watches[i].name}
	}
	for i, name := range PartnerSignals {
		c.partnered[i] = []string{gpu, uuid, name}
	}
	for _, class := range incident.Classes {
		c.classes = append(c.classes, []string{gpu, uuid, string(class)})
	}
	c.narrow.labels, c.slow.labels = []string{gpu, uuid, "lanes"}, []string{gpu, uuid, "generation"}
	c.whole.name, c.whole.wired, c.together[0] = AllLinks, []string{gpu, uuid, AllLinks}, &c.whole
	c.whole.unread()
	c.whole.errors.labels = []string{gpu, uuid, "nvlink_errors"}
	c.heat.every = memoryEvery
	c.heatForecast = forecast{least: trendSize, rows: inRow, labels: []string{gpu, uuid, "thermal_limit", "", ""}}
	c.rowsForecast = forecast{least: rowsLeast, rows: 1, labels: []string{gpu, uuid, "spare_rows", "", ""}}
	c.headroom.every = memoryEvery
	c.headroomForecast = forecast{least: trendSize, rows: inRow}
	d.cards = append(d.cards, c)
	slices.SortFunc(d.cards, func(a, b *card) int {
		return cmp.Or(cmp.Compare(len(a.gpu), len(b.gpu)), cmp.Compare(a.gpu, b.gpu), cmp.Compare(a.uuid, b.uuid))
	})
	return c
}

// forget drops what left.
func (d *Metrics) forget(now time.Time) {
	gone := func(seen time.Time) bool { return now.Sub(seen) > goneAfter || now.Before(seen.Add(-goneAfter)) }
	d.cards = slices.DeleteFunc(d.cards, func(c *card) bool { return gone(c.seen) })
	for _, c := range d.cards {
		c.links = slices.DeleteFunc(c.links, func(l *link) bool { return gone(l.seen) })
		c.residents = slices.DeleteFunc(c.residents, func(t *resident) bool { return gone(t.seen) })
		c.tenancies = slices.DeleteFunc(c.tenancies, func(t *tenancy) bool { return gone(t.seen) })
	}
}

// Size returns how many bytes the windows hold.
func (d *Metrics) Size() int {
	n := int(unsafe.Sizeof(*d)) + 8*cap(d.room)
	for _, c := range d.cards {
		n += int(unsafe.Sizeof(*c)) + labelled*(len(watches)+len(c.classes)+len(c.partnered)+7) + 16*cap(c.jobs) + 8*(cap(c.links)+cap(c.residents)+cap(c.tenancies)) + c.heat.size() + c.headroom.size()
		if c.drift.learning != nil {
			n += int(unsafe.Sizeof(*c.drift.learning))
		}
		for _, l := range c.links {
			n += int(unsafe.Sizeof(*l)) + 3*labelled
		}
		for _, t := range c.residents {
			n += int(unsafe.Sizeof(*t)) + 2*labelled + len(t.name) + t.memory.size()
		}
		for _, t := range c.tenancies {
			n += int(unsafe.Sizeof(*t)) + 6*labelled + len(t.name) + t.memory.size() + t.deficit.size()
		}
	}
	for uuid, h := range d.histories {
		n += len(uuid) + int(unsafe.Sizeof(*h)) + h.Rows.size() + h.Place.size()
	}
	for _, samples := range d.out {
		n += cap(samples) * int(unsafe.Sizeof(collectors.Sample{}))
	}
	for _, w := range d.waiting {
		n += w.size()
	}
	for _, id := range d.told {
		n += len(id) + int(unsafe.Sizeof(id))
	}
	return n
}

// labelled is about what a series' labels take, in bytes: four strings' heads.
const labelled = 4 * int(unsafe.Sizeof(""))

// within reports whether two numbers are no further apart than most.
func within(a, b, most float64) bool { return math.Abs(a-b) <= most }
