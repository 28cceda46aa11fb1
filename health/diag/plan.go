package diag

import "time"

// A Step is a part of a test.
type Step string

// The steps, in their order.
const (
	Survey    Step = "survey"    // what GPUs there are, and who is on them
	Open      Step = "open"      // the driver makes a context
	Memory    Step = "memory"    // patterns over most of the free memory
	Compute   Step = "compute"   // products whose sums are known, on every SM
	Load      Step = "load"      // clocks and power while the tensor cores work
	Bandwidth Step = "bandwidth" // how fast copies within the memory are
	Copies    Step = "copies"    // and to the host and from it
	Pairs     Step = "pairs"     // and between two GPUs
	Close     Step = "close"     // errors that the driver counted meanwhile
)

// A Plan is how long a level takes of each step, on a GPU and in the steps that
// GPUs take one after the other in all.
type Plan struct {
	Memory, Load time.Duration
	Unit         time.Duration // each kind of arithmetic
	Copy         time.Duration // each way
	Pairs        time.Duration // all of them
}

// Levels are the plans, by level: 10 s, a minute and ten minutes for a host of
// eight GPUs, with what the driver takes to begin.
var Levels = map[int]Plan{
	1: {Memory: 1500 * time.Millisecond, Unit: 150 * time.Millisecond, Load: 2 * time.Second, Copy: 30 * time.Millisecond, Pairs: time.Second},
	2: {Memory: 12 * time.Second, Unit: 1500 * time.Millisecond, Load: 18 * time.Second, Copy: 200 * time.Millisecond, Pairs: 6 * time.Second},
	3: {Memory: 150 * time.Second, Unit: 15 * time.Second, Load: 240 * time.Second, Copy: 2 * time.Second, Pairs: 50 * time.Second},
}

// leastOfPair is the least time in which a copy can be measured.
const leastOfPair = 5 * time.Millisecond

// pair is how long one way of one of n pairs is measured.
func (p Plan) pair(n int) time.Duration { return max(leastOfPair, p.Pairs/time.Duration(2*max(1, n))) }

// patience is how long a step may take beside what its plan says: for a driver
// that begins on a host with many GPUs, and a pass over a large memory.
const patience = 40 * time.Second

// deadline is when a step hangs.
func deadline(planned, patience time.Duration) time.Duration { return planned*3/2 + patience }
