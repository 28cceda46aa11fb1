package steps

import "gpusteward/internal/wire"

// A part is what a stretch of wall time is counted as.
type part uint8

const (
	launching part = iota
	waiting
	copying
	held
	host
	parts
)

// quiet is the longest time without any call that still counts as launching.
const (
	quiet   = 1e6 // ns
	quietly = 20  // its logarithm to base 2
)

const kinds = wire.EventCollected + 1

// admitted is the kind of an EventWaited for WaitQueue. A launch may wait for room
// anywhere in a step, so this marks no place in it.
const admitted = kinds

// A trait says what the events of a kind mean.
type trait struct {
	call    bool   // a thread made a call at this time; a sample is no call
	symbol  uint32 // of events that can mark a place in the step
	name    uint32 // the bits of the ID that belong to the symbol
	weight  uint32 // as content of the step
	repeats bool   // the same symbol again is another place
	data    bool   // it may read data, give data or wait for them
	allocs  bool   // it allocates or frees until the next event
	before  part   // what the time until the event was spent on, and
	after   part   // the time after it, unless the next event says more
}

var traits = [kinds + 1]trait{
	wire.EventLaunch:     {call: true, symbol: 0x9e3779b1, name: ^uint32(0), weight: 1},
	wire.EventGraph:      {call: true, symbol: 0x85ebca77, name: ^uint32(0), weight: 4, repeats: true},
	wire.EventCollective: {call: true, symbol: 0xc2b2ae3d, name: ^uint32(0), weight: 1},
	wire.EventCopy:       {call: true, symbol: 0x27d4eb2f, data: true},
	wire.EventCopying:    {call: true, data: true, after: copying},
	wire.EventCopied:     {call: true, symbol: 0x165667b1, weight: 1, before: copying},
	wire.EventWait:       {call: true, data: true, after: waiting},
	wire.EventWaited:     {call: true, symbol: 0xd3a2646d, data: true, before: waiting},
	wire.EventHeld:       {call: true, after: held},
	wire.EventReleased:   {call: true, before: held},
	wire.EventAlloc:      {call: true, allocs: true},
	wire.EventFree:       {call: true, allocs: true},
	wire.EventBusy:       {},
	wire.EventCollected:  {},
	admitted:             {call: true, before: waiting},
}

const bins = 32

// A content says which symbols a stretch of events has, and how often: an
// array of counters instead of a table of symbols.
type content [bins]uint32

// weight returns that of all symbols.
func (c *content) weight() (sum uint32) {
	for _, weight := range c {
		sum += weight
	}
	return sum
}

// A clock is a time, and what the time until then was spent on.
type clock struct {
	at     int64
	parts  [parts]int64 // ns
	allocs int64        // ns of launching and host, in allocations and frees
}

// toward goes a part of the way to a later clock.
func (c *clock) toward(later *clock, share float64) {
	c.at += int64(share * float64(later.at-c.at))
	c.allocs += int64(share * float64(later.allocs-c.allocs))
	for i := range c.parts {
		c.parts[i] += int64(share * float64(later.parts[i]-c.parts[i]))
	}
}

// A meter is what happened until a time. The difference of two is a step.
type meter struct {
	clock
	count    [kinds]uint64 // events
	sum      [kinds]uint64 // of their IDs
	waits    uint32        // of the host for the GPU, but not for room in its queue
	reads    uint32        // of a little by the host
	given    uint64        // data that the host gives before other work, in units of 64 bytes
	size     uint32        // weight of the content
	switches uint32        // changes of the thread that launches
	content  content
}

// little is a token, or a loss, but no batch for a training: in units of 64 bytes.
const little = 64

// less returns m - other.
func (m *meter) less(other *meter) meter {
	d := *m
	d.at -= other.at
	for i := range d.parts {
		d.parts[i] -= other.parts[i]
	}
	d.allocs -= other.allocs
	for i := range d.count {
		d.count[i] -= other.count[i]
		d.sum[i] -= other.sum[i]
	}
	d.waits -= other.waits
	d.reads -= other.reads
	d.given -= other.given
	d.size -= other.size
	d.switches -= other.switches
	for i := range d.content {
		d.content[i] -= other.content[i]
	}
	return d
}

// before says whether all that m has happened before the other meter: meters
// that were added up may lie between real ones.
func (m *meter) before(other *meter) bool {
	d := other.less(m)
	for i := range d.count {
		if int64(d.count[i]) < 0 || int64(d.sum[i]) < 0 {
			return false
		}
	}
	for _, ns := range d.parts {
		if ns < 0 {
			return false
		}
	}
	return d.at > 0 && int32(d.size) > 0
}

// pass counts the time since the last call. It says false if that time makes no
// sense.
func (m *meter) pass(at int64, last, next *trait) bool {
	const disorder, most = 1e9, 1 << 52 // ns
	gap := at - m.at
	if last.call && gap < 0 && gap > -disorder {
		return true
	}
	m.at = at
	if !last.call { // it was the first
		return true
	}
	if gap < 0 || gap > most {
		return false
	}
	p := next.before
	if p == launching {
		p = last.after
	}
	if p == launching && gap > quiet {
		p = host
	}
	m.parts[p] += gap
	if last.allocs && (p == launching || p == host) {
		m.allocs += gap
	}
	return true
}

// working returns the time since the other meter in which the process did not
// wait in a call, ns.
func (m *meter) working(since *meter) float32 {
	return float32(m.parts[launching] + m.parts[host] - since.parts[launching] - since.parts[host])
}

// changed compares the content since the other meter with a typical one: the
// weight of what differs, and of what is in both.
func (m *meter) changed(since *meter, typical *content) (differs, common uint32) {
	for i := range m.content {
		n := m.content[i] - since.content[i]
		common += min(n, typical[i])
		differs += max(n, typical[i]) - min(n, typical[i])
	}
	return differs, common
}

// plus returns m + d.
func (m *meter) plus(d *meter) meter {
	var zero meter
	negative := zero.less(d)
	return m.less(&negative)
}
