package derived

import "slices"

// PartnerSignals compare partners: siblings that do the same job: the same workloads are on them,
// with as much memory, and all are busy. What one of them has less of is not
// explained by what it was asked for. They are the signals of PeerZScore and
// PeerDeviationRatio.
var PartnerSignals = [...]string{Paced: "sm_clock", MemoryPaced: "memory_clock", Worked: "work", Behind: "work_behind"}

const (
	Paced       = iota // SM clock
	MemoryPaced        // memory clock
	Worked             // power and SM activity, whichever of both is closer to the partners'
	Behind             // the same, also of a GPU that is less busy than they are
)

// siliconClock is the least standard deviation between partners' clocks, of
// the clock: at its power limit one board is so much faster than another.
const siliconClock = 0.01

// partners compares c with the GPUs that do the same job.
func (d *Metrics) partners(c *card) {
	d.partnered(c, Paced, d.beyond(c, smClock, c.paces))
	d.partnered(c, MemoryPaced, d.beyond(c, memoryClock, c.shares))
	d.partnered(c, Worked, d.less(c, c.couldWork))
	d.partnered(c, Behind, d.less(c, c.isBehind))
}

// less returns how far power and SM activity of c are from its partners': who
// does less shows it in both.
func (d *Metrics) less(c *card, partners func(*card) bool) deviation {
	work := d.beyond(c, power, partners)
	if usable(c.now[smActivity]) {
		activity := d.beyond(c, smActivity, partners)
		work = deviation{max(work.z, activity.z), max(work.ratio, activity.ratio), work.ok && activity.ok}
	}
	return work
}

// A deviation is how far a GPU is from its partners; negative below.
type deviation struct {
	z, ratio float64
	ok       bool // there are partners
}

// beyond returns how far an input of c is from that of its partners.
func (d *Metrics) beyond(c *card, input int, partners func(*card) bool) deviation {
	center, z, ok := d.among(c, input, partners)
	return deviation{z, c.now[input]/center - 1, ok && center > 0}
}

// partnered puts a deviation.
func (d *Metrics) partnered(c *card, signal int, by deviation) {
	if by.ok {
		d.put(PeerZScore, c.partnered[signal], by.z)
		d.put(PeerDeviationRatio, c.partnered[signal], by.ratio)
	}
}

// shares reports whether o does the same job as c.
func (c *card) shares(o *card) bool {
	return c.employed(o) && c.busy() && o.busy() && within(c.smooth[utilization], o.smooth[utilization], likeLoad)
}

// employed reports whether o is there for the same job as c, whatever it does.
func (c *card) employed(o *card) bool {
	all := c.now[memoryUsed] + c.now[memoryFree]
	return c.settled && o.settled && c.same(o) && within(c.now[memoryUsed], o.now[memoryUsed], likeLoad*all) && slices.Equal(c.jobs, o.jobs)
}

// paces reports whether o, which does the same job, should be as fast as c.
// What runs at its power limit is as slow as its work is heavy, so then the
// work has to be alike too, and the sibling at its limit.
func (c *card) paces(o *card) bool {
	return c.shares(o) && (!c.limited() || o.limited() && c.like(o))
}

// couldWork reports whether c should do as much as o, which does the same job:
// its clock is no lower.
func (c *card) couldWork(o *card) bool {
	return c.shares(o) && o.now[smClock] <= (1+likeClock)*c.now[smClock]
}

// isBehind reports whether c, which works, should do as much as o, which is
// there for the same job and is busy.
func (c *card) isBehind(o *card) bool {
	return len(c.jobs) > 0 && c.employed(o) && !c.idle() && o.busy() && o.now[smClock] <= (1+likeClock)*c.now[smClock]
}
