package health

import (
	"maps"
	"slices"
	"time"

	"gpusteward/collectors"
	"gpusteward/health/derived"
	"gpusteward/health/incident"
)

// memory is the engine's knowledge of signals from one evaluation to the next.
type memory struct {
	now, start time.Time
	counted    map[*Signal]*counted
	peaks      map[peak]float64       // the highest values of signals in this boot
	kept       map[string]float64     // lifetime counters before the agent was restarted, by query and labels
	cleared    map[clearing]time.Time // cleared faults, by count: earlier incidents no longer count
	incidents  []incident.Event       // of the last 30 days, and those that hold; the oldest first
	held       map[clearing]bool      // counts of incidents that only a reset ends, and that none has ended
	resets     resets
	since      time.Time // when this agent, or the one before it, began to watch

	brake, brakeBefore float64 // ChassisBrake without the present moment; that of the last agent
}

func newMemory(now time.Time) *memory {
	return &memory{now: now, start: now, counted: map[*Signal]*counted{}, peaks: map[peak]float64{},
		kept: map[string]float64{}, cleared: map[clearing]time.Time{}, held: map[clearing]bool{}, since: now,
		resets: resets{gpus: map[string]resetSign{}, watched: now}}
}

// most remembers the highest value of g for e in this boot.
func (m *memory) most(g *Signal, e incident.Entity, v float64) float64 {
	k := peak{g.query, e}
	before, known := m.peaks[k]
	if len(m.peaks) < mostSeries && (!known || v > before) {
		m.peaks[k] = v
	}
	return max(before, v)
}

// peak identifies a signal with a remembered peak.
type peak struct {
	Query  string          `json:"query"`
	Entity incident.Entity `json:"entity"`
}

// buckets is the number of parts of a window.
const buckets = 32

// counted are the increases of a signal's counters.
type counted struct {
	source
	signal *Signal
	width  time.Duration
	last   map[string]*lastSeen // by labels
	sums   map[incident.Entity]*increases
	order  []*increases // as they came
	key    []byte       // labels of the present one
	swept  time.Time    // the last removal of counters that are gone
}

// lastSeen is the last value of a counter, its time, and the place of its
// increases.
type lastSeen struct {
	value float64
	at    time.Time
	sum   *increases
}

// increases are the increases of an entity within the window, by parts of it.
type increases struct {
	incident.Entity
	part [buckets]float64
	at   int64 // the present part
	seen time.Time
}

func (m *memory) counters(g *Signal, src source) *counted {
	c := m.counted[g]
	if c == nil {
		c = &counted{source: src, signal: g, width: g.window / buckets, last: map[string]*lastSeen{},
			sums: map[incident.Entity]*increases{}}
		m.counted[g] = c
	}
	return c
}

// read takes the counters' increases since its last call, and puts those of the
// window.
func (c *counted) read(m *memory, s *derived.Snapshot, put func(incident.Entity, float64)) {
	at := int64(m.now.Sub(m.start) / c.width)
	c.each(s, func(sample collectors.Sample) {
		l := c.counter(m, sample)
		if l.sum == nil {
			l.sum = c.sum(incident.EntityOf(sample, c.by), at)
		}
		l.sum.advance(at)
		l.sum.seen = m.now
		if sample.Value > l.value { // a value that fell is a new baseline
			l.sum.part[uint64(at)%buckets] += sample.Value - l.value
		}
		l.value, l.at = sample.Value, m.now
	})
	for _, in := range c.order {
		if in.seen.Equal(m.now) {
			put(in.Entity, in.total())
		}
	}
	if m.now.Sub(c.swept) > time.Hour || len(c.last) > mostSeries {
		c.sweep(m.now)
	}
}

// counter returns the earlier value of a counter, or the present one if that is
// unknown.
func (c *counted) counter(m *memory, sample collectors.Sample) *lastSeen {
	c.key = c.key[:0]
	for i, l := range sample.Labels {
		if i > 0 {
			c.key = append(c.key, 0)
		}
		c.key = append(c.key, l...)
	}
	l := c.last[string(c.key)]
	if l == nil {
		l = &lastSeen{value: sample.Value}
		if v, known := m.kept[c.signal.query+"\x00"+string(c.key)]; known && c.signal.lifetime {
			l.value = v
		}
		c.last[string(c.key)] = l
	}
	return l
}

// sum returns the increases of an entity.
func (c *counted) sum(e incident.Entity, at int64) *increases {
	in := c.sums[e]
	if in == nil {
		in = &increases{Entity: e, at: at}
		c.sums[e] = in
		c.order = append(c.order, in)
	}
	return in
}

// sweep forgets counters that are gone, except those that a GPU keeps for life.
// If there are too many, it forgets all of the gone ones.
func (c *counted) sweep(now time.Time) {
	c.swept = now
	old := func(seen time.Time) bool { return now.Sub(seen) > max(c.signal.window, time.Hour) }
	maps.DeleteFunc(c.last, func(_ string, l *lastSeen) bool {
		if old(l.at) {
			l.sum = nil
		}
		return old(l.at) && !c.signal.lifetime
	})
	c.order = slices.DeleteFunc(c.order, func(in *increases) bool {
		if old(in.seen) {
			delete(c.sums, in.Entity)
		}
		return old(in.seen)
	})
	if len(c.last) > mostSeries {
		clear(c.last)
	}
}

// mostSeries bounds the remembered counters of a signal.
const mostSeries = 16384

// advance forgets the parts of the window that have passed.
func (in *increases) advance(at int64) {
	if at-in.at >= buckets || at < in.at {
		in.part = [buckets]float64{}
		in.at = at
	}
	for in.at < at {
		in.at++
		in.part[uint64(in.at)%buckets] = 0
	}
}

func (in *increases) total() (sum float64) {
	for _, v := range in.part {
		sum += v
	}
	return sum
}
