package health

import (
	"strings"
	"time"

	"gpusteward/collectors"
)

// memory is what an engine remembers of signals from one evaluation to the
// next.
type memory struct {
	now, start time.Time
	counted    map[*Signal]*counted
	peaks      map[peak]float64       // the most that signals were in this boot
	kept       map[string]float64     // lifetime counters before the agent was restarted, by query and labels
	cleared    map[clearing]time.Time // faults that were latched: what was before no longer counts
	incidents  []Event                // of the last 30 days, the oldest first
}

func newMemory(now time.Time) *memory {
	return &memory{now: now, start: now, counted: map[*Signal]*counted{}, peaks: map[peak]float64{}, kept: map[string]float64{}, cleared: map[clearing]time.Time{}}
}

// most remembers the most that g was for e in this boot.
func (m *memory) most(g *Signal, e Entity, v float64) float64 {
	k := peak{g.query, e}
	before, known := m.peaks[k]
	if len(m.peaks) < mostSeries && (!known || v > before) {
		m.peaks[k] = v
	}
	return max(before, v)
}

// peak is of what a signal's peak is remembered.
type peak struct {
	Query  string `json:"query"`
	Entity Entity `json:"entity"`
}

// buckets is into how many parts a window is divided.
const buckets = 32

// counted are the increases of a signal's counters.
type counted struct {
	source
	signal *Signal
	width  time.Duration
	last   map[string]float64 // by labels
	sums   map[Entity]*increases
}

// increases are those of an entity in the last window, by parts of it.
type increases struct {
	part [buckets]float64
	at   int64 // the part that now is in
	seen time.Time
}

func (m *memory) counters(g *Signal, src source) *counted {
	c := m.counted[g]
	if c == nil {
		c = &counted{source: src, signal: g, width: g.window / buckets, last: map[string]float64{}, sums: map[Entity]*increases{}}
		m.counted[g] = c
	}
	return c
}

// read takes the counters' increases since it was last called, and puts those
// of the window.
func (c *counted) read(m *memory, s *Snapshot, put func(Entity, float64)) {
	at := int64(m.now.Sub(m.start) / c.width)
	c.each(s, func(sample collectors.Sample) {
		key := strings.Join(sample.Labels, "\x00")
		last, known := c.last[key]
		if !known && c.signal.lifetime {
			last, known = m.kept[c.signal.query+"\x00"+key]
		}
		c.last[key] = sample.Value
		e := entityOf(sample, c.by)
		in := c.sums[e]
		if in == nil {
			in = &increases{at: at}
			c.sums[e] = in
		}
		in.advance(at)
		in.seen = m.now
		if known && sample.Value > last { // a value that fell is a new baseline
			in.part[at%buckets] += sample.Value - last
		}
	})
	for e, in := range c.sums {
		switch {
		case in.seen.Equal(m.now):
			put(e, in.total())
		case m.now.Sub(in.seen) > max(c.signal.window, time.Hour):
			delete(c.sums, e)
		}
	}
	if len(c.last) > mostSeries {
		clear(c.last)
	}
}

// mostSeries bounds the counters that a signal remembers.
const mostSeries = 16384

// advance forgets the parts of the window that have passed.
func (in *increases) advance(at int64) {
	if at-in.at >= buckets || at < in.at {
		in.part = [buckets]float64{}
		in.at = at
	}
	for in.at < at {
		in.at++
		in.part[in.at%buckets] = 0
	}
}

func (in *increases) total() (sum float64) {
	for _, v := range in.part {
		sum += v
	}
	return sum
}
