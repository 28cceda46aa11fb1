package steps

import (
	"math"
	"time"

	"gpusteward/internal/wire"
)

// Micros is a time in microseconds.
type Micros uint32

// Duration returns it as such.
func (m Micros) Duration() time.Duration { return time.Duration(m) * time.Microsecond }

// A Step is a finished step of a program. Its parts and Launching add up to its
// wall time. It has 64 bytes.
type Step struct {
	Begin, End int64 // CLOCK_MONOTONIC, ns

	Waiting Micros // for the GPU
	Copying Micros // waiting for copies
	Held    Micros // by the gate
	Host    Micros // without any call for more than 1 ms

	Launches    uint32
	Graphs      uint32
	Collectives uint32
	Allocating  Micros // part of Host and Launching
	Copied      uint32 // in units of 64 bytes
	Busy        Micros // time with work on the GPU, as sampled
	Collecting  Micros // time of the collectives that ended
	Allocs      uint16

	Pattern uint8 // changes when the program does something else
	flags
}

type flags uint8

const (
	interrupted flags = 1 << iota // it contains more than others, such as an evaluation
	withdrawn                     // it was no step after all
)

// Interrupted says whether the step contains more than the others, such as an
// evaluation or a checkpoint.
func (f flags) Interrupted() bool { return f&interrupted != 0 }

// Wall returns the step's time.
func (s *Step) Wall() time.Duration { return time.Duration(s.End - s.Begin) }

// Launching returns the time between calls that follow each other closely.
func (s *Step) Launching() time.Duration {
	return max(0, s.Wall()-s.Waiting.Duration()-s.Copying.Duration()-s.Held.Duration()-s.Host.Duration())
}

// step returns what happened between two meters as a step that ends at end.
func (m *meter) step(end int64, pattern uint8, what flags) Step {
	micros := func(ns int64) Micros { return Micros(cap32(uint64(ns) / 1000)) }
	return Step{Begin: end - m.at, End: end, Waiting: micros(m.parts[waiting]), Copying: micros(m.parts[copying]),
		Held: micros(m.parts[held]), Host: micros(m.parts[host]),
		Launches: cap32(m.count[wire.EventLaunch]), Graphs: cap32(m.count[wire.EventGraph]),
		Collectives: cap32(m.count[wire.EventCollective]),
		Allocating:  micros(m.allocs),
		Copied:      cap32(m.sum[wire.EventCopy] + m.sum[wire.EventCopying]),
		Busy:        Micros(cap32(m.sum[wire.EventBusy])), Collecting: Micros(cap32(m.sum[wire.EventCollected])),
		Allocs: uint16(min(m.count[wire.EventAlloc], math.MaxUint16)), Pattern: pattern, flags: what}
}

func cap32(n uint64) uint32 { return uint32(min(n, math.MaxUint32)) }
