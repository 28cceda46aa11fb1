package jobs

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"gpusteward/enforcer/steps"
)

// Evidence is what is known of a GPU at a moment, for the cause of a slow step.
type Evidence struct {
	Power, Thermal bool    // its clocks are reduced for this reason
	Neighbours     float64 // part of its time that other workloads use; 1 if that is unknown
	Clock          float64 // of its SMs, as a part of the maximum; 0: unknown
	PCIe, NVLink   float64 // speed of its links, bytes per second; 0: unknown
}

// surroundings are what is known of the GPU and the host while a step runs: 0 or
// 1, or the pressure in percent.
type surroundings [circumstances]float64

const (
	power = iota
	thermal
	neighbours
	cpu
	io
	circumstances
)

// notable are the values from which on a circumstance can be a cause, if it was
// less by half while steps took as long as usual: many a GPU is always at its
// power limit.
var notable = surroundings{power: 1, thermal: 1, neighbours: 1, cpu: 20, io: 20}

const notableFactor = 1.5

// A step is slow if it takes so much longer than usual.
const (
	slowFactor = 1.2
	slowLeast  = 2e-3 // s
	usualFrom  = 16   // steps, before any is judged; and so many slow ones in a row are usual
)

// Causes explain slow steps. A cause is named only if its part accounts for at
// least half of the additional time, and only with the evidence that the text
// tells of.
var Causes = map[string]string{
	"quota":      "the gate held it back for its quota",
	"collective": "its collectives took longer on the GPU: another rank came late, or a link is slow",
	"power":      "it waited for the GPU, whose clocks are reduced by the power limit",
	"thermal":    "it waited for the GPU, whose clocks are reduced by its temperature",
	"neighbour":  "it waited for the GPU, which another workload uses",
	"gpu":        "it waited for the GPU, without a known reason",
	"copy":       "it waited for copies between host and GPU",
	"memory":     "it allocated GPU memory at least twice as often",
	"storage":    "it called nothing while tasks of the host waited for storage",
	"cpu":        "it called nothing, or late, while tasks of the host waited for a processor",
	"host":       "it called nothing: it waited for data, or its own code took longer",
	"work":       "it launched at least a fifth more",
	"unknown":    "no part accounts for the additional time",
}

// A shape is a step in numbers: seconds, and counts.
type shape [shapes]float64

const (
	wall = iota
	held
	copying
	waiting
	away
	launching
	collecting
	launches
	allocs
	shapes
)

func shapeOf(s *steps.Step) shape {
	return shape{wall: s.Wall().Seconds(), held: s.Held.Duration().Seconds(), copying: s.Copying.Duration().Seconds(),
		waiting: s.Waiting.Duration().Seconds(), away: s.Host.Duration().Seconds(),
		launching: s.Launching().Seconds(), collecting: s.Collecting.Duration().Seconds(),
		launches: float64(s.Launches + s.Graphs), allocs: float64(s.Allocs)}
}

// usual is the typical step of a process: an average in which a step counts for
// a sixteenth, and a slow one not at all.
type usual struct {
	pattern uint8
	average shape
	around  surroundings
	learned int // steps
	slow    int // steps in a row
}

// explain returns the cause why a step took longer than usual; empty if it did
// not.
func (u *usual) explain(s *steps.Step, around func() surroundings) string {
	if s.Pattern != u.pattern || u.slow >= usualFrom {
		*u = usual{pattern: s.Pattern}
	}
	now := shapeOf(s)
	if u.learned < usualFrom || now[wall] <= max(slowFactor*u.average[wall], u.average[wall]+slowLeast) {
		u.learned, u.slow = u.learned+1, 0
		weight := 1 / float64(min(u.learned, usualFrom))
		for i := range now {
			u.average[i] += weight * (now[i] - u.average[i])
		}
		for i, v := range around() {
			u.around[i] += weight * (v - u.around[i])
		}
		return ""
	}
	if s.Interrupted() {
		return "" // it did something else besides
	}
	u.slow++
	is := func(circumstance int) bool {
		v := around()[circumstance]
		return v >= notable[circumstance] && v >= notableFactor*u.around[circumstance]
	}
	return u.average.cause(now, is)
}

// cause returns the cause why a step took longer than usual.
func (usual *shape) cause(now shape, is func(circumstance int) bool) string {
	more := func(i int) bool { return now[i]-usual[i] >= (now[wall]-usual[wall])/2 }
	late := func(otherwise string) string {
		switch {
		case is(io) && more(away):
			return "storage"
		case is(cpu):
			return "cpu"
		}
		return otherwise
	}
	switch {
	case more(held):
		return "quota"
	case more(copying):
		return "copy"
	case now[allocs] >= 2*usual[allocs]+4 && (more(launching) || more(waiting)):
		return "memory"
	case more(away):
		return late("host")
	case now[launches] >= 1.2*usual[launches]+1:
		return "work"
	case more(waiting) && more(collecting):
		return "collective"
	case more(waiting) && is(thermal):
		return "thermal"
	case more(waiting) && is(power):
		return "power"
	case more(waiting) && is(neighbours):
		return "neighbour"
	case more(waiting):
		return "gpu"
	case more(launching):
		return late("unknown")
	}
	return "unknown"
}

// around returns the surroundings of a process.
func (o *Observer) around(p *process) (a surroundings) {
	o.host.look(o.procfs(), o.now())
	a[cpu], a[io] = o.host.cpu, o.host.io
	if o.Evidence == nil {
		return a
	}
	known := o.Evidence(p.gpu())
	for i, is := range []bool{power: known.Power, thermal: known.Thermal, neighbours: known.Neighbours > 0} {
		a[i] = float64(truth(is))
	}
	return a
}

// pressure is the host's pressure stall information (PSI), in percent.
type pressure struct {
	read    int64 // CLOCK_MONOTONIC, ns; 0: never
	cpu, io float64
}

// look reads it, at most once a second.
func (p *pressure) look(procfs string, now int64) {
	if p.read > 0 && now-p.read < int64(time.Second) {
		return
	}
	p.read = now
	p.cpu, p.io = someOf(procfs, "cpu"), someOf(procfs, "io")
}

// someOf returns avg10 of the first line of /proc/pressure/NAME; 0 if the
// kernel has none.
func someOf(procfs, name string) float64 {
	text, _ := os.ReadFile(filepath.Join(procfs, "pressure", name))
	_, rest, _ := bytes.Cut(text, []byte("some avg10="))
	number, _, _ := bytes.Cut(rest, []byte(" "))
	v, _ := strconv.ParseFloat(string(number), 64)
	return v
}
