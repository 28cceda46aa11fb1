package derived

import (
	"cmp"
	"slices"
	"strings"
	"time"
	"unsafe"

	"gpusteward/collectors"
	"gpusteward/collectors/workloads"
)

// A GPU spins while its kernels run and get nothing done: they wait for each
// other, or for one that is gone. The ranks of a job spin together, so one
// report for the job is enough. They also spin while a checkpoint is written,
// and then continue.
var (
	Spinning = collectors.Gauge("nvgpu_spinning", "1 while the GPU is 100 % busy, draws less than two fifths of the "+
		"power that it may draw at its clock, and moves no data; 0 while nvgpu_workload_wait_ratio covers it.")
	WorkloadWait = collectors.HostGauge("nvgpu_workload_wait_ratio",
		"Time for which the GPUs of a workload have spun, as a part of the longest time allowed: most of them, or two or "+
			"half of them while others work. 0 while it gets work done.", "workload")
)

// Limits of a GPU that spins. Small models, steps that are bound by
// communication and clocks that are locked low draw as little, but they move
// data, or draw as much as their clock allows.
const (
	spinsFrom   = 0.99 // utilization
	spinsPower  = 0.40 // of the limit times the clock's part of its highest
	spinsMemory = 0.01 // of the time in which memory is read or written
	stillBytes  = 8e6  // a second: twice what an idle GPU and its agent exchange
)

// Limits of jobs that wait.
const (
	lackFor    = 10 * time.Minute // one of the GPUs does nothing: its rank may be gone
	WholeFor   = 15 * time.Minute // all spin; libraries end collectives that hang after ten minutes
	workedFor  = time.Hour        // one of them works, and the others wait for it; no job may wait for longer
	asBefore   = 2.0              // times the longest wait of a job that continued
	waitsWeek  = 7 * 24 * time.Hour
	worksAfter = 3   // successive passes: a single one may be misread
	keepsOf    = 0.9 // of its memory, kept by a job that continued and was not restarted
)

// traffic returns the bytes per second that c moves over PCIe and NVLink; NaN
// if the driver counts none.
func (c *card) traffic() float64 {
	sum := c.now[pcieRX]
	for i := pcieTX; i <= nvlinkTX; i++ {
		if usable(c.now[i]) {
			sum = plus(sum, c.now[i])
		}
	}
	return sum
}

// still reports whether c moves no data. Without a count of PCIe's bytes the
// answer is no.
func (c *card) still() bool { return usable(c.now[pcieRX]) && c.traffic() <= stillBytes }

// spins reports whether c is busy and gets nothing done.
func (c *card) spins() bool {
	most := c.now[powerLimit] * c.now[smClock] / c.now[mostClock]
	busy := c.now[utilization] >= spinsFrom && c.now[memoryUtilization] <= spinsMemory
	return busy && c.now[power] < spinsPower*most && c.still()
}

// awaits reports whether c spins for a workload that may wait.
func (c *card) awaits() bool { return c.excused && c.spins() }

// A wait is a workload's on several GPUs.
type wait struct {
	labels []string // the workload
	cards  []*card  // of this pass
	seen   time.Time
	since  time.Time // zero while it gets work done
	works  int       // successive passes in which it did
	spent  float64   // of its patience
	had    float64   // memory in use when the wait began
}

// waits puts the workloads that wait, and the GPUs that
// spin by themselves.
func (d *Metrics) waits(now time.Time) {
	d.gather(now)
	for _, w := range d.waiting {
		w.look(d, now)
	}
	for _, c := range d.cards {
		if usable(c.now[utilization]) {
			d.put(Spinning, c.labels, collectors.Bool(c.spins() && !c.excused))
		}
	}
}

// readHeld notes the workloads that stand still because the enforcer holds them back. They neither hang nor lag.
func (d *Metrics) readHeld(s *Snapshot) {
	clear(d.held)
	for _, sample := range s.Of(workloads.WorkloadHeld) {
		if sample.Value == 1 && len(d.held) < mostWorkloads {
			d.held[sample.Labels[1]] = true
		}
	}
}

// gather updates the workloads and their GPUs. Workloads on the most GPUs come
// first: the others need not explain the same GPUs.
func (d *Metrics) gather(now time.Time) {
	for _, w := range d.waiting {
		w.cards = w.cards[:0]
	}
	for _, c := range d.cards {
		c.excused = false
		for _, job := range slices.Compact(slices.Clone(c.jobs)) {
			i := slices.IndexFunc(d.waiting, func(w *wait) bool { return w.labels[0] == job })
			if i < 0 && len(d.waiting) < mostWorkloads {
				i = len(d.waiting)
				d.waiting = append(d.waiting, &wait{labels: []string{job}})
			}
			if i >= 0 {
				d.waiting[i].cards, d.waiting[i].seen = append(d.waiting[i].cards, c), now
			}
		}
	}
	d.waiting = slices.DeleteFunc(d.waiting, func(w *wait) bool { return now.Sub(w.seen) > worksAfter*Step })
	slices.SortFunc(d.waiting, func(a, b *wait) int {
		return cmp.Or(len(b.cards)-len(a.cards), strings.Compare(a.labels[0], b.labels[0]))
	})
}

// look takes the present state of the workload's GPUs.
func (w *wait) look(d *Metrics, now time.Time) {
	if d.held[w.labels[0]] {
		w.excuse(d)
		return
	}
	var spin, rest, known, fresh int
	used := 0.0
	for _, c := range w.cards {
		if !usable(c.now[utilization]) {
			continue
		}
		known++
		used += c.now[memoryUsed]
		switch {
		case c.spins():
			spin++
			fresh += int(collectors.Bool(!c.excused))
		case c.now[utilization] <= idleTo && c.still():
			rest++
		}
	}
	work := known - spin - rest
	// Some may wait for others, as trainers do for those that generate.
	part := work > 0 && spin > 0 && (spin > 1 || 2*spin >= known)
	switch {
	case known == 0:
		return // unknown
	case spin > 1 && 2*spin > known || part:
		if w.works = 0; w.since.IsZero() {
			w.since, w.had, w.spent = now, used, 0
			break
		}
		w.spent += d.passed.Seconds() / w.patience(d, rest, work, now).Seconds()
	default:
		if w.works++; w.works >= worksAfter && !w.since.IsZero() {
			w.goesOn(d, now, used)
		}
	}
	if known < 2 {
		return
	}
	ratio := 0.0
	if !w.since.IsZero() && (fresh > 0 || spin == 0) {
		ratio = w.spent
	}
	d.put(WorkloadWait, w.labels, ratio)
	for _, c := range w.cards {
		c.excused = c.excused || !w.since.IsZero()
	}
}

// excuse begins anew, because the workload is held back.
func (w *wait) excuse(d *Metrics) {
	w.since, w.works, w.spent = time.Time{}, 0, 0
	for _, c := range w.cards {
		c.excused = true
	}
	if len(w.cards) > 1 {
		d.put(WorkloadWait, w.labels, 0)
	}
}

// goesOn ends a wait that was no hang: later waits may take as long.
func (w *wait) goesOn(d *Metrics, now time.Time, used float64) {
	took := now.Sub(w.since) - (worksAfter-1)*Step
	if w.since = (time.Time{}); used < keepsOf*w.had {
		return
	}
	for _, c := range w.cards {
		longest := &d.histories[c.uuid].Waited
		longest.Value = max(longest.decay(now, waitsWeek), took.Seconds())
	}
}

// patience returns the time that the workload may wait while so many of its
// GPUs do nothing, and so many work.
func (w *wait) patience(d *Metrics, rest, work int, now time.Time) time.Duration {
	most := WholeFor
	switch {
	case work > 0:
		return workedFor
	case rest > 0:
		most = lackFor
	}
	for _, c := range w.cards {
		before := d.histories[c.uuid].Waited.decay(now, waitsWeek)
		most = max(most, time.Duration(asBefore*before*float64(time.Second)))
	}
	return min(most, workedFor)
}

// size returns how many bytes the wait holds.
func (w *wait) size() int {
	return int(unsafe.Sizeof(*w)) + labelled + len(w.labels[0]) + 8*cap(w.cards)
}
