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
	Power, Thermal bool // its clocks are reduced for this reason
	Neighbours     bool // other workloads use it
}

// surroundings are what is known of the GPU and the host while a step is slow.
type surroundings struct {
	Evidence
	cpu, io bool // tasks of the host wait for a processor, or for storage
}

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
		return ""
	}
	if s.Interrupted() {
		return "" // it did something else besides
	}
	u.slow++
	return u.average.cause(now, around())
}

// cause returns the cause why a step took longer than usual.
func (usual *shape) cause(now shape, a surroundings) string {
	more := func(i int) bool { return now[i]-usual[i] >= (now[wall]-usual[wall])/2 }
	late := func(otherwise string) string {
		switch {
		case a.io && more(away):
			return "storage"
		case a.cpu:
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
	case more(waiting) && a.Thermal:
		return "thermal"
	case more(waiting) && a.Power:
		return "power"
	case more(waiting) && a.Neighbours:
		return "neighbour"
	case more(waiting):
		return "gpu"
	case more(launching):
		return late("unknown")
	}
	return "unknown"
}

// around returns the surroundings of a process.
func (o *Observer) around(p *process) surroundings {
	o.host.look(o.procfs())
	a := surroundings{cpu: o.host.cpu >= pressed, io: o.host.io >= pressed}
	if o.Evidence != nil {
		a.Evidence = o.Evidence(p.gpu())
	}
	return a
}

// pressed is the part of the last ten seconds, in percent, for which some task
// of the host waited.
const pressed = 20.0

// pressure is the host's pressure stall information (PSI), in percent.
type pressure struct {
	read    time.Time
	cpu, io float64
}

// look reads it, at most once a second.
func (p *pressure) look(procfs string) {
	if time.Since(p.read) < time.Second {
		return
	}
	p.read = time.Now()
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
