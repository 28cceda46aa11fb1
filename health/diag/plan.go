package diag

import "time"

// A Step is a part of a test.
type Step string

// The steps, in their order.
const (
	Survey    Step = "survey"    // lists the GPUs and their processes
	Open      Step = "open"      // makes a context
	Memory    Step = "memory"    // writes patterns to most of the free memory and reads them back
	Compute   Step = "compute"   // computes known sums on every SM
	Load      Step = "load"      // reads clocks and power while the tensor cores work
	Bandwidth Step = "bandwidth" // measures copies within the memory
	Copies    Step = "copies"    // measures copies to and from the host
	Pairs     Step = "pairs"     // measures copies between two GPUs
	Close     Step = "close"     // reads the errors that the driver counted meanwhile
)

// A Plan is the duration of each step of a level, on one GPU.
type Plan struct {
	Memory, Load time.Duration
	Unit         time.Duration // for each kind of arithmetic
	Copy         time.Duration // for each way
	Pairs        time.Duration // for all pairs of the host
}

// levels are the plans by level. For a host with eight GPUs they take 10 s, a minute and ten
// minutes, including the start of the driver.
var levels = map[int]Plan{
	1: {
		Memory: 1500 * time.Millisecond, Unit: 150 * time.Millisecond, Load: 2 * time.Second,
		Copy: 30 * time.Millisecond, Pairs: time.Second,
	},
	2: {
		Memory: 12 * time.Second, Unit: 1500 * time.Millisecond, Load: 18 * time.Second,
		Copy: 200 * time.Millisecond, Pairs: 6 * time.Second,
	},
	3: {
		Memory: 150 * time.Second, Unit: 15 * time.Second, Load: 240 * time.Second,
		Copy: 2 * time.Second, Pairs: 50 * time.Second,
	},
}

// leastOfPair is the shortest time in which a copy can be measured.
const leastOfPair = 5 * time.Millisecond

// pair returns the time for one way of one of n pairs.
func (p Plan) pair(n int) time.Duration { return max(leastOfPair, p.Pairs/time.Duration(2*max(1, n))) }

// patience is the time that a step may take beyond its plan: a driver takes long to start on a
// host with many GPUs, and a pass over a large memory takes long too.
const patience = 40 * time.Second

// deadline returns the time after which a step counts as hanging.
func deadline(planned, patience time.Duration) time.Duration { return planned*3/2 + patience }
