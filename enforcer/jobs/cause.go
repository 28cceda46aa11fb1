package jobs

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Evidence is what is known of a GPU at a moment, for the cause of a slow step.
type Evidence struct {
	Power, Thermal bool    // its clocks are reduced for this reason
	Neighbours     float64 // part of its time that other processes use; 1: it may be all
	Clock          float64 // of its SMs, as a part of the maximum; 0: unknown
	PCIe, NVLink   float64 // speed of its links, bytes per second; 0: unknown
}

// surroundings are what is known of the GPU and the host while steps run, as
// means over that time.
type surroundings [circumstances]float64

const (
	power      = iota // parts of the time
	thermal           //
	neighbours        //
	computing         // by the main thread
	delayed           // the same, for a processor
	cpu               // pressures, parts of the time
	io                //
	ram               //
	clock             // as Evidence has it
	pcie              //
	nvlink            //
	circumstances
)

// A proof names the numbers that are reported as evidence of a cause.
type proof struct {
	shows  []int // numbers of a step
	around []int // circumstances
}

var proofs = map[string]proof{
	"quota":      {[]int{held}, nil},
	"collective": {[]int{waiting, collecting}, nil},
	"link":       {[]int{copying, collecting}, []int{pcie, nvlink}},
	"power":      {[]int{waiting}, []int{clock, power}},
	"thermal":    {[]int{waiting}, []int{clock, thermal}},
	"clocks":     {[]int{waiting}, []int{clock}},
	"neighbour":  {[]int{waiting}, []int{neighbours}},
	"gpu":        {[]int{waiting}, nil},
	"copy":       {[]int{copying}, nil},
	"memory":     {[]int{allocating, allocs}, nil},
	"reclaim":    {[]int{away, launching}, []int{ram}},
	"storage":    {[]int{away}, []int{io}},
	"cpu":        {[]int{away, launching}, []int{cpu, delayed}},
	"code":       {[]int{away, launching}, []int{computing}},
	"host":       {[]int{away}, nil},
	"work":       {[]int{launches, copied}, nil},
	"unknown":    {},
}

// A difference is that of slow steps from usual ones.
type difference struct{ usual, now *mean }

func (d difference) more(part int) float64 { return d.now.shape[part] - d.usual.shape[part] }

// half reports whether so much time is at least half of the additional time.
func (d difference) half(seconds float64) bool { return seconds >= d.more(wall)/2 }

// ofTime returns the additional seconds of a step in which a circumstance was
// there.
func (d difference) ofTime(circumstance int) float64 {
	return d.now.around[circumstance]*d.now.shape[wall] - d.usual.around[circumstance]*d.usual.shape[wall]
}

func (d difference) rose(circumstance int, by float64) bool {
	return d.now.around[circumstance]-d.usual.around[circumstance] >= by
}

func (d difference) pressed(circumstance int) bool {
	v := d.now.around[circumstance]
	return v >= pressureFrom && v >= pressureMore*d.usual.around[circumstance]
}

func (d difference) fell(circumstance int, to float64) bool {
	v := d.now.around[circumstance]
	return v > 0 && v < to*d.usual.around[circumstance]
}

// TestWorldOfCauses tests causes on simulated programs: twelve styles, noise of 1 to 5 %,
// stalls, sequences of varying lengths, checkpoints, and circumstances that last all day.
// Slowdowns are 20 to 200 %, begin at once, within 40 s or in waves of 20 s, in each step or in
// pauses of each eighth one, and have lesser causes beside them. Processor use is noticed in the
// main thread only: a program that computes in others shows host. A process that is bound by its
// data loader may show a lesser second cause.

// causeOf returns the cause why steps took longer than usual, one of
// wire.SlowCauses. It is named only if its part accounts for at least half of the
// additional time, and only with its evidence: a circumstance must be unlike it
// was while steps took as long as usual. Many a GPU is always at its power limit.
func causeOf(usual, now *mean) string {
	d := difference{usual, now}
	hidden := d.more(busy) >= 0.6*d.more(wall) // a launch waits for room in the queue
	forGPU, forCopies := d.waits(hidden)
	host := d.more(away) + d.more(launching)
	switch {
	case d.half(d.workload() * usual.shape[wall]):
		return "work"
	case !hidden && d.half(d.more(held)):
		return "quota"
	case !hidden && d.half(d.more(allocating)) && d.more(allocs) >= d.usual.shape[allocs]:
		return "memory"
	case !hidden && d.half(d.ofTime(delayed)+min(0, d.more(waiting))): // the rest was hidden by that wait
		return "cpu"
	case d.half(forCopies) && d.fell(pcie, slowerLink):
		return "link"
	case d.half(forCopies):
		return "copy"
	case !hidden && d.half(host):
		return d.ofHost()
	case hidden && d.half(host+forGPU+d.more(held)), d.half(forGPU):
		return d.ofGPU()
	}
	return "unknown"
}

// waits returns the additional time in which steps waited for the GPU and for
// copies. A copy of a few bytes that takes long waits for a GPU that is busy.
func (d difference) waits(busy bool) (forGPU, forCopies float64) {
	forCopies = d.more(copying)
	if busy {
		copies := func(m *mean) float64 { return min(m.shape[copying], m.shape[copied]/slowestCopy) }
		forCopies = copies(d.now) - copies(d.usual)
	}
	return d.more(waiting) + d.more(copying) - forCopies, forCopies
}

// workload returns how much more the steps launch or copy: 0.5 is half as much
// again.
func (d difference) workload() (more float64) {
	for _, i := range []int{launches, copied} {
		if u := d.usual.shape[i]; u > 0 && d.now.shape[i] >= moreWork*u {
			more = max(more, d.now.shape[i]/u-1)
		}
	}
	return more
}

// ofHost returns the cause of additional time without calls, or between them.
func (d difference) ofHost() string {
	switch {
	case d.pressed(ram):
		return "reclaim"
	case d.half(d.ofTime(computing)) && (d.half(d.more(away)) || d.rose(computing, moreCode)):
		return "code" // on a slower processor, the same calls take longer as well
	case d.half(d.more(away)) && d.pressed(io):
		return "storage"
	case d.pressed(cpu):
		return "cpu"
	case d.half(d.more(away)):
		return "host"
	}
	return "unknown"
}

// ofGPU returns the cause of additional time in which steps waited for the GPU.
func (d difference) ofGPU() string {
	u, now := d.usual.around, d.now.around
	lower := 0.0
	if d.fell(clock, lowerClock) {
		lower = u[clock]/now[clock] - 1
	}
	unknown := u[clock] == 0 || now[clock] == 0
	reduced := unknown || d.half(lower*d.usual.shape[wall])
	switch {
	case d.half(d.more(collecting)) && (d.fell(nvlink, slowerLink) || d.fell(pcie, slowerLink)):
		return "link"
	case d.half(d.more(collecting)) && d.pressed(cpu) && !d.half(d.now.shape[waiting]):
		return "cpu" // the GPU waits for it and its peers, which wait for processors
	case d.half(d.more(collecting)):
		return "collective"
	case reduced && d.rose(thermal, moreOften):
		return "thermal"
	case reduced && d.rose(power, moreOften):
		return "power"
	case unknown, !reduced:
	case now[thermal] >= 0.5:
		return "thermal"
	case now[power] >= 0.5:
		return "power"
	default:
		return "clocks"
	}
	if d.rose(neighbours, moreUsed) {
		return "neighbour"
	}
	return "gpu"
}

// The names of a step's numbers and circumstances, in evidence.
var (
	numbers = [shapes]string{held: "held", copying: "copying", waiting: "waiting", away: "host", launching: "launching",
		collecting: "collectives", launches: "launches", copied: "bytes copied", allocs: "allocations",
		allocating: "allocating"}
	names = [circumstances]string{power: "at the power limit", thermal: "held down by temperature",
		neighbours: "used by others", computing: "main thread computes", delayed: "main thread waits",
		cpu: "CPU pressure", io: "I/O pressure", ram: "memory pressure", clock: "SM clock", pcie: "PCIe", nvlink: "NVLink"}
)

// evidenceOf returns the evidence of a cause in words and numbers, without parts that
// take less than a hundredth of the additional time. It must fit into a label, which
// has 128 bytes at most.
func evidenceOf(cause string, usual, now *mean) string {
	more := now.shape[wall] - usual.shape[wall]
	all := []string{fmt.Sprintf("%+.3g s a step", more)}
	for _, i := range proofs[cause].shows {
		switch v, u := now.shape[i], usual.shape[i]; {
		case i >= launches:
			all = append(all, fmt.Sprintf("%s %.3g, usually %.3g", numbers[i], v, u))
		case v > u && v-u >= more/100:
			all = append(all, fmt.Sprintf("%s %+.3g s", numbers[i], v-u))
		}
	}
	for _, i := range proofs[cause].around {
		switch v, u := now.around[i], usual.around[i]; {
		case v == 0 && u == 0:
		case i == pcie || i == nvlink:
			all = append(all, fmt.Sprintf("%s %.3g GB/s, usually %.3g", names[i], v/1e9, u/1e9))
		default:
			all = append(all, fmt.Sprintf("%s %.0f %%, usually %.0f %%", names[i], 100*v, 100*u))
		}
	}
	return strings.Join(all, "; ")
}

// brakes notes whether something slows a process's GPU down now, and returns what is
// known of it.
func (o *Observer) brakes(p *process) (e Evidence) {
	if o.Evidence == nil {
		return Evidence{}
	}
	at := o.now()
	if e = o.Evidence(p.gpu(), p.pid); e.Power || e.Thermal || e.Neighbours >= moreUsed {
		p.slowed = at
		p.braked += time.Duration(max(0, at-max(p.looked, p.last)))
	}
	p.looked = at
	return e
}

// sees notes what is known now of a process's surroundings.
func (o *Observer) sees(p *process, e Evidence) {
	o.host.look(o.procfs(), o.now())
	now := mean{looks: 1}
	now.around[cpu], now.around[io], now.around[ram] = o.host.cpu, o.host.io, o.host.ram
	first := p.thread.at == 0
	now.around[computing], now.around[delayed] = p.thread.look(o.procfs(), p.pid, o.now())
	if first && p.thread.at > 0 {
		return // what the thread did is known from the second look on
	}
	now.around[power], now.around[thermal] = float64(truth(e.Power)), float64(truth(e.Thermal))
	now.around[neighbours], now.around[clock] = e.Neighbours, e.Clock
	now.around[pcie], now.around[nvlink] = e.PCIe, e.NVLink
	if !p.pace.pauses(o.now()) {
		p.pace.span.all.add(&now)
	}
}

// pressure is the host's pressure stall information (PSI), as a part of the time.
type pressure struct {
	read         int64 // CLOCK_MONOTONIC, ns; 0: never
	cpu, io, ram float64
}

// look reads it, at most once a second.
func (p *pressure) look(procfs string, now int64) {
	if p.read > 0 && now-p.read < int64(time.Second) {
		return
	}
	p.read = now
	p.cpu, p.io, p.ram = someOf(procfs, "cpu")/100, someOf(procfs, "io")/100, someOf(procfs, "memory")/100
}

// someOf returns avg10 of the first line of /proc/pressure/NAME, in percent; 0 if
// the kernel has none.
func someOf(procfs, name string) float64 {
	text, _ := os.ReadFile(filepath.Join(procfs, "pressure", name))
	_, rest, _ := bytes.Cut(text, []byte("some avg10="))
	number, _, _ := bytes.Cut(rest, []byte(" "))
	v, _ := strconv.ParseFloat(string(number), 64)
	return v
}

// A threadMeter measures the use of a processor by the main thread of a process.
type threadMeter struct {
	at              int64
	ran, waitedTurn uint64 // ns
}

// look returns the parts of the time since the last look in which the thread ran,
// and in which it waited for a processor.
func (m *threadMeter) look(procfs string, pid int, at int64) (ran, waited float64) {
	text, _ := os.ReadFile(filepath.Join(procfs, strconv.Itoa(pid), "schedstat"))
	fields := bytes.Fields(text)
	if len(fields) < 2 {
		return 0, 0
	}
	last := *m
	*m = threadMeter{at: at, ran: number(fields[0]), waitedTurn: number(fields[1])}
	if last.at == 0 || at <= last.at || m.ran < last.ran || m.waitedTurn < last.waitedTurn {
		return 0, 0
	}
	passed := float64(at - last.at)
	return min(1, float64(m.ran-last.ran)/passed), min(1, float64(m.waitedTurn-last.waitedTurn)/passed)
}
