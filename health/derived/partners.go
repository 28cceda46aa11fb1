package derived

import "slices"

// PartnerSignals compare partners. Partners are siblings with the same job:
// they have the same workloads with as much memory, and all are busy. The job
// does not explain a difference between them. They are signals of PeerZScore
// and PeerDeviationRatio.
var PartnerSignals = [...]string{Paced: "sm_clock", MemoryPaced: "memory_clock", Worked: "work", Behind: "work_behind",
	Moved: "memory_work"}

// Indexes of PartnerSignals.
const (
	Paced       = iota // SM clock
	MemoryPaced        // memory clock
	Worked             // power or SM activity, whichever is closer to the partners'
	Behind             // the same, also for a GPU that is less busy than its partners
	Moved              // activity of the memory, at the same SM activity
)

// siliconClock is the least standard deviation between partners' clocks, as a
// part of the clock: boards differ by so much at their power limit.
const siliconClock = 0.01

// partners compares c with the GPUs that have the same job.
func (d *Metrics) partners(c *card) {
	d.partnered(c, Paced, d.beyond(c, smClock, c.paces))
	d.partnered(c, MemoryPaced, d.beyond(c, memoryClock, c.shares))
	d.partnered(c, Worked, d.less(c, c.couldWork))
	d.partnered(c, Behind, d.less(c, c.isBehind))
	d.partnered(c, Moved, d.beyond(c, memoryActivity, c.moves))
}

// less returns the distance of c's power and SM activity from its partners': a
// GPU that does less shows it in both.
func (d *Metrics) less(c *card, partners func(*card) bool) deviation {
	work := d.beyond(c, power, partners)
	if usable(c.now[smActivity]) {
		activity := d.beyond(c, smActivity, partners)
		work = deviation{max(work.z, activity.z), max(work.ratio, activity.ratio), work.ok && activity.ok}
	}
	return work
}

// A deviation is the distance of a GPU from its partners; negative below.
type deviation struct {
	z, ratio float64
	ok       bool // there are partners
}

// beyond returns the distance of an input of c from its partners'.
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

// shares reports whether o has the same job as c.
func (c *card) shares(o *card) bool {
	return c.employed(o) && c.busy() && o.busy() && within(c.smooth[utilization], o.smooth[utilization], likeLoad)
}

// employed reports whether o is there for the same job as c, even if it does
// nothing.
func (c *card) employed(o *card) bool {
	all := c.now[memoryUsed] + c.now[memoryFree]
	return c.settled && o.settled && c.same(o) && within(c.now[memoryUsed], o.now[memoryUsed], likeLoad*all) &&
		slices.Equal(c.jobs, o.jobs)
}

// paces reports whether o, which has the same job, should be as fast as c. A
// GPU at its power limit is slower the heavier its work is, so then the work
// must also be alike, and the sibling at its limit.
func (c *card) paces(o *card) bool {
	return c.shares(o) && (!c.limited() || o.limited() && c.like(o))
}

// couldWork reports whether c should do as much as o, which has the same job:
// its clock is no lower, and it does not wait for o.
func (c *card) couldWork(o *card) bool {
	return c.shares(o) && !c.awaits() && o.now[smClock] <= (1+likeClock)*c.now[smClock]
}

// moves reports whether c should move as much data to and from its memory as
// o, which has the same job: its SMs do as much.
func (c *card) moves(o *card) bool {
	return c.couldWork(o) && within(c.now[smActivity], o.now[smActivity], likeLoad)
}

// isBehind reports whether c, which works, should do as much as o, which is
// there for the same job and is busy.
func (c *card) isBehind(o *card) bool {
	return len(c.jobs) > 0 && c.employed(o) && !c.awaits() && !c.idle() && o.busy() && o.now[smClock] <= (1+likeClock)*c.now[smClock]
}
