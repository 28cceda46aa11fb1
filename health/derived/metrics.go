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

// Bounds of the memory.
const (
	mostCards     = 16
	mostWorkloads = 64 // a GPU
	mostLinks     = 36 // a GPU
	MostGPUs      = 64 // all that the host has had
	goneAfter     = 10 * time.Minute
)

// Step is the interval between calls of Derive.
const Step = 10 * time.Second

// Metrics computes the derived metrics. It holds the windows for them, and uses
// neither clock nor files. It belongs to one goroutine at a time.
type Metrics struct {
	cards     []*card             // present GPUs, by index
	histories map[string]*history // by UUID: the part that outlives a restart
	told      []string            // counted incidents, the newest last

	start   time.Time     // of the first Derive
	last    time.Time     // of Derive
	passed  time.Duration // since the last call; 0 if the clock went back
	calls   int
	minute  int64                                      // minute of the last call
	out     map[*collectors.Metric][]collectors.Sample // of this call
	room    []float64                                  // for one calculation at a time
	lags    map[string]busiest
	held    map[string]bool // workloads that stand still because of the enforcer
	waiting []*wait         // workloads, those on the most GPUs first
}

// A card is the knowledge of a GPU's last minutes.
type card struct {
	gpu, uuid, model string
	seen             time.Time
	labels           []string         // gpu and uuid
	watched          [power + 1]watch // by input
	partnered        [len(PartnerSignals)][]string
	jobs             []string   // workloads on this GPU
	classes          [][]string // labels of each fault class
	counters         [inputCount]counter
	now, or          [inputCount]float64 // NaN: no value
	rose             [inputCount]float64 // increases of counters since the last call
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
	headroom         trend // of free memory that is nobody's guarantee
	headroomForecast forecast
	whole            link     // all links
	together         [1]*link // whole
	heat             trend
	heatForecast     forecast
	rowsForecast     forecast
	rows             bool    // the trend of rows was looked at
	rise             float64 // degrees above the GPU's past
	excused          bool    // a workload waits on this GPU and on others
}

// New returns Metrics without any samples yet.
func New() *Metrics {
	return &Metrics{
		histories: map[string]*history{}, out: map[*collectors.Metric][]collectors.Sample{},
		room: make([]float64, 0, trendSize*(trendSize-1)/2), lags: map[string]busiest{}, held: map[string]bool{},
	}
}

// Derive adds the derived metrics to s. They follow from s and from the earlier
// snapshots, which should be 10 s apart. Apart from this memory Derive is pure:
// the same calls produce the same samples.
func (d *Metrics) Derive(s *Snapshot, now time.Time) {
	now = d.steady(now)
	d.passed = max(now.Sub(d.last), 0)
	d.last = now
	d.calls++
	minute := now.Unix() / 60
	each := minute != d.minute // the first call in a minute does the work of each minute
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
	d.readHeld(s)
	d.lag(s)
	d.waits(now)
	d.flops(s)
	n := 0
	for _, samples := range d.out {
		n += len(samples)
	}
	all := make([]collectors.Sample, 0, n) // the snapshot keeps the slice
	for _, m := range families {
		all = append(all, d.out[m]...)
		d.out[m] = d.out[m][:0]
	}
	s.Add(all...)
}

// steady returns now by a wall clock that nobody has set since the first call:
// trends use such times.
func (d *Metrics) steady(now time.Time) time.Time {
	if d.start.IsZero() {
		d.start = now
	}
	return d.start.Add(now.Sub(d.start))
}

// families are all metrics of Derive, in its order.
var families = []*collectors.Metric{
	AnomalyZScore, AnomalyRobustZScore, AnomalyActive, PeerZScore, PeerDeviationCelsius, PeerDeviationRatio,
	PeerClockRatio, TemperatureRise, HotPlace, PeerLinkZScore, PeerLinkDeviationRatio, DriftCUSUM,
	ECCCorrectablePerHour, ECCCorrectableCUSUM, PCIeCorrectableCUSUM, MemoryExhaustion, MemoryCreeps, ThermalLimit,
	SpareRowsExhaustion, QuotaMemoryExhaustion, QuotaGuaranteeExhaustion,
	ForecastConfidence, FaultScore, LemonScore, MemoryPressure, Traffic, PCIeReplayExcess, PCIeShortfall,
	FansStopped, WorkloadLag,
	WorkloadWait, Spinning, JobFlops,
	PeerLinkSpeedRatio, PeerLinksMissing,
}

// put adds a sample, unless its value is not a number.
func (d *Metrics) put(m *collectors.Metric, labels []string, v float64) {
	if usable(v) {
		d.out[m] = append(d.out[m], collectors.Sample{Metric: m, Labels: labels, Value: v})
	}
}

// known returns the GPU at the beginning of a sample's labels, if it is known.
func (d *Metrics) known(labels []string) *card {
	for _, c := range d.cards {
		if c.uuid == labels[1] && c.gpu == labels[0] {
			return c
		}
	}
	return nil
}

// card returns the GPU at the beginning of a sample's labels; nil if there are
// too many. A GPU with a new index is a new one to Prometheus, so its windows
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
	c := &card{gpu: gpu, uuid: uuid, labels: []string{gpu, uuid}, seen: now, began: now, now: nothing,
		or: nothing, rose: nothing}
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
	c.whole.name, c.whole.wired, c.together[0] = allLinks, []string{gpu, uuid, allLinks}, &c.whole
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

// forget drops GPUs that have left.
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
		n += int(unsafe.Sizeof(*c)) + labelled*(len(watches)+len(c.classes)+len(c.partnered)+7) + 16*cap(c.jobs) +
			8*(cap(c.links)+cap(c.residents)+cap(c.tenancies)) + c.heat.size() + c.headroom.size()
		if c.drift.learning != nil {
			n += int(unsafe.Sizeof(*c.drift.learning))
		}
		for _, l := range c.links {
			n += int(unsafe.Sizeof(*l)) + 3*labelled
		}
		for _, t := range c.residents {
			n += int(unsafe.Sizeof(*t)) + 2*labelled + len(t.name) + t.memory.size()
			if t.slow != nil {
				n += int(unsafe.Sizeof(*t.slow)) + t.slow.size()
			}
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

// labelled is about the size of a series' labels, in bytes: four string
// headers.
const labelled = 4 * int(unsafe.Sizeof(""))

// within reports whether two numbers differ by at most most.
func within(a, b, most float64) bool { return math.Abs(a-b) <= most }
