package derived

import (
	"cmp"
	"math"
	"slices"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/links"
)

// Comparison of a link with the GPU's other links to the same place. These
// series exist if the configuration asks for each link. The errors of all links
// of a GPU are compared with its siblings' as a signal of PeerZScore and
// PeerDeviationRatio.
var (
	PeerLinkZScore = collectors.Gauge("nvgpu_peer_link_zscore",
		"Distance of the link from the median of the GPU's other links, in robust standard deviations; for bytes to "+
			"either side.", "link", "signal")
	PeerLinkDeviationRatio = collectors.Gauge("nvgpu_peer_link_deviation_ratio",
		"Excess of the link over the median of the GPU's other links, as a multiple of that; for bytes the excess of "+
			"the larger one.", "link", "signal")
)

// Comparison of a link with those of the other GPUs of its model on this host,
// which have the same wiring. The series for link="all" compare the links that
// are up together.
var (
	PeerLinkSpeedRatio = collectors.Gauge("nvgpu_peer_link_speed_ratio",
		"Speed of the link that is up, divided by that of the fastest of the GPU's model on this host; for "+
			"link=\"all\" the mean of the links that are up.", "link")
	PeerLinksMissing = collectors.Gauge("nvgpu_peer_links_missing",
		"Links that are down, and up on most GPUs of the model on this host.", "link")
)

// Limits of links.
const (
	allLinks    = "all" // label of a sum over a GPU's links
	spell       = 10    // minutes over which errors are counted
	oneBurst    = 3     // minutes in which one burst may appear: kinds of errors are read in turns
	floorBytes  = 1e6   // a second: the least standard deviations to believe in
	floorErrors = 2     // in a spell
)

// A link is an NVLink of a GPU, or all of them. It is read once a minute, like
// the driver's error counters.
type link struct {
	name, remote string // remote is its other end
	seen         time.Time
	sent, failed float64  // values of the counters; NaN if there are none
	up, speed    float64  // number of links that are up, and their total speed; NaN if it is unknown
	pace, gone   float64  // of PeerLinkSpeedRatio and PeerLinksMissing; NaN without peers
	wired        []string // labels of both
	sentCounter  counter
	failCounter  counter
	failures     [spell]float64 // in each of the last minutes
	minutes      int
	bytes        peer // a second
	errors       peer // in a spell, without its worst minutes: one burst is no bad link
}

// A peer is a value and its comparison with its siblings'.
type peer struct {
	value, z, ratio float64
	ok              bool // there are siblings
	labels          []string
}

// compare compares p with its siblings' values. The standard deviation of
// counts is at least the root (Poisson).
func (p *peer) compare(others []float64, floor float64) {
	if p.ok = len(others) >= leastPeers && usable(p.value); p.ok {
		center := Median(others)
		p.z = robustZ(p.value, center, mad(others, center), max(floor, math.Sqrt(center)))
		p.ratio = (p.value+floor)/(center+floor) - 1
	}
}

// uncounted are the types of errors that are not compared: healthy links differ
// a hundredfold in the bit errors that they correct.
var uncounted = []string{"symbol", "effective"}

// readLinks reads each GPU's links and compares them, once a minute.
func (d *Metrics) readLinks(s *Snapshot, now time.Time) {
	for _, c := range d.cards {
		c.whole.unread()
		c.whole.seen = now
		for _, l := range c.links {
			l.unread()
		}
	}
	d.eachLink(s, links.NVLinkUp, now, func(l *link, _ []string, v float64) { l.up = plus(l.up, v) })
	d.eachLink(s, links.NVLinkSpeed, now, func(l *link, _ []string, v float64) { l.speed = plus(l.speed, v) })
	d.eachLink(s, links.NVLinkBytes, now, func(l *link, labels []string, v float64) {
		if labels[3] == "data" {
			l.sent = plus(l.sent, v)
		}
	})
	d.eachLink(s, links.NVLinkErrors, now, func(l *link, labels []string, v float64) {
		if !slices.Contains(uncounted, labels[2]) {
			l.failed = plus(l.failed, v)
		}
	})
	for _, sample := range s.Of(links.NVLinkInfo) {
		if c := d.card(sample.Labels, now); c != nil {
			if l := c.link(sample.Labels[2], now); l != nil {
				l.remote = sample.Labels[4]
				if l.remote != "switch" { // links to switches share the load, others carry a GPU's own
					l.remote += sample.Labels[5]
				}
			}
		}
	}
	for _, c := range d.cards {
		c.whole.settle(now)
		for _, l := range c.links {
			l.settle(now)
		}
	}
	for _, c := range d.cards {
		d.compareLinks(c)
	}
}

// unread forgets the readings.
func (l *link) unread() {
	l.sent, l.failed, l.up, l.speed, l.pace, l.gone = math.NaN(), math.NaN(), math.NaN(), math.NaN(),
		math.NaN(), math.NaN()
}

// eachLink calls take with the samples of m and their link, and with those of
// all links.
func (d *Metrics) eachLink(s *Snapshot, m *collectors.Metric, now time.Time, take func(*link, []string, float64)) {
	at := slices.Index(m.Labels, "link")
	for _, sample := range s.Of(m) {
		c := d.card(sample.Labels, now)
		if c == nil || !usable(sample.Value) {
			continue
		}
		take(&c.whole, sample.Labels, sample.Value)
		if name := sample.Labels[at]; name != allLinks {
			if l := c.link(name, now); l != nil {
				take(l, sample.Labels, sample.Value)
			}
		}
	}
}

// settle turns counters into the compared values.
func (l *link) settle(now time.Time) {
	l.bytes.value, l.errors.value = math.NaN(), math.NaN()
	if usable(l.sent) {
		rise, over := l.sentCounter.rise(l.sent, now)
		l.bytes.value = rise / over.Seconds()
	}
	if !usable(l.failed) {
		return
	}
	if rise, _ := l.failCounter.rise(l.failed, now); usable(rise) {
		l.failures[l.minutes%spell] = rise
		l.minutes++
	}
	if l.minutes >= spell {
		lesser := l.failures
		slices.Sort(lesser[:])
		l.errors.value = 0
		for _, n := range lesser[:spell-oneBurst] {
			l.errors.value += n
		}
	}
}

// compareLinks compares c's links with each other, and their sum with that of
// GPUs of its model.
func (d *Metrics) compareLinks(c *card) {
	for _, l := range c.links {
		bytes, errors := d.room[:0], d.room[len(c.links):len(c.links)]
		for _, o := range c.links {
			if o == l || o.remote != l.remote {
				continue
			}
			if usable(o.bytes.value) {
				bytes = append(bytes, o.bytes.value)
			}
			if usable(o.errors.value) {
				errors = append(errors, o.errors.value)
			}
		}
		l.bytes.compare(bytes, floorBytes)
		l.errors.compare(errors, floorErrors)
		l.bytes.z = math.Abs(l.bytes.z)
		l.bytes.ratio = max(l.bytes.ratio, 1/(l.bytes.ratio+1)-1)
	}
	others := d.room[:0]
	for _, o := range d.cards {
		if o != c && o.model == c.model && c.model != "" && usable(o.whole.errors.value) {
			others = append(others, o.whole.errors.value)
		}
	}
	c.whole.errors.compare(others, floorErrors)
	for _, l := range c.wires() {
		d.compareWire(c, l)
	}
}

// wires returns the links of c that have series of their own, or all links as
// one.
func (c *card) wires() []*link {
	if len(c.links) > 0 {
		return c.links
	}
	return c.together[:]
}

// compareWire compares a link of c with those of the GPUs of its model, which
// have the same wiring behind switches. A GPU with no link up has no bridge, or
// is not meant to use one.
func (d *Metrics) compareWire(c *card, l *link) {
	l.pace, l.gone = math.NaN(), math.NaN()
	if c.model == "" || !(c.whole.up > 0) || !usable(l.up) {
		return
	}
	fastest, votes, n := 0., map[float64]int{}, 0
	for _, o := range d.cards {
		if o.model != c.model {
			continue
		}
		for _, w := range o.wires() {
			if w.up > 0 && usable(w.speed) {
				fastest = max(fastest, w.speed/w.up)
			}
			if w.name == l.name && usable(w.up) {
				votes[w.up]++
				n++
			}
		}
	}
	if l.up > 0 && fastest > 0 {
		l.pace = l.speed / l.up / fastest
	}
	for up, gpus := range votes {
		if n > leastPeers && 3*gpus > 2*n {
			l.gone = max(0, up-l.up)
		}
	}
}

// links puts the results of the last comparison.
func (d *Metrics) links() {
	for _, c := range d.cards {
		if e := &c.whole.errors; e.ok {
			d.put(PeerZScore, e.labels, e.z)
			d.put(PeerDeviationRatio, e.labels, e.ratio)
		}
		for _, l := range c.wires() {
			if l.seen.Equal(c.whole.seen) {
				d.put(PeerLinkSpeedRatio, l.wired, l.pace)
				d.put(PeerLinksMissing, l.wired, l.gone)
			}
		}
		for _, l := range c.links {
			for _, p := range [...]*peer{&l.bytes, &l.errors} {
				if p.ok && l.seen.Equal(c.whole.seen) {
					d.put(PeerLinkZScore, p.labels, p.z)
					d.put(PeerLinkDeviationRatio, p.labels, p.ratio)
				}
			}
		}
	}
}

// link returns a link by its name; nil if there are too many.
func (c *card) link(name string, now time.Time) *link {
	i, ok := slices.BinarySearchFunc(c.links, name, func(l *link, name string) int { return cmp.Compare(l.name, name) })
	if !ok {
		if len(c.links) >= mostLinks {
			return nil
		}
		l := &link{name: name, wired: []string{c.gpu, c.uuid, name}}
		l.unread()
		l.bytes.labels = []string{c.gpu, c.uuid, name, "bytes"}
		l.errors.labels = []string{c.gpu, c.uuid, name, "errors"}
		c.links = slices.Insert(c.links, i, l)
	}
	c.links[i].seen = now
	return c.links[i]
}
