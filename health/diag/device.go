package diag

import "time"

// A Driver gives access to the host's GPUs. It belongs to one goroutine, and its calls may hang.
type Driver interface {
	GPUs() ([]GPU, error)                                      // all GPUs, with their processes
	Open(uuid string) (Device, error)                          // for work
	Between(from, to Device, most time.Duration) (Rate, error) // copies from one GPU's memory to the other's; errNoPeer
}

// A Device is a GPU under test. It belongs to its driver's goroutine, except that Vitals may be
// called during another call.
type Device interface {
	Facts() Facts
	Reserve() (bytes uint64, err error)                                   // takes most of the free memory, for Pattern
	Pattern(p Pattern, injure bool) (misread, error)                      // writes it there and reads it back
	Release() error                                                       // gives the memory back
	Products(u Unit, seed uint64, rounds int, injured int) (Tally, error) // one launch, on all SMs
	Copy(way Way, most time.Duration) (Rate, error)
	Vitals() Vitals
	Record() Record
}

// A GPU is one of the host's GPUs.
type GPU struct {
	Index int
	UUID  string
	PCI   string
	Name  string
	Users []int  // processes on it
	Alone bool   // one process at a time may use it
	Taken uint64 // bytes of memory in use, if no process is listed
	Unfit string // why its settings do not allow a test
	Fault string // why it does not answer
}

// Facts describe a GPU.
type Facts struct {
	SMs        int
	Capability int    // of compute: 90 is 9.0
	Memory     uint64 // bytes
}

// misread is the result of one pass over memory.
type misread struct {
	Bytes  uint64    // that were written and read
	Errors uint64    // words that differ
	First  []badWord // some of them
}

// A badWord is a word of memory that did not hold what was written.
type badWord struct {
	Address   uint64 // in the test's address space
	Want, Got uint64
}

// A Tally is the result of a launch of products.
type Tally struct {
	Took time.Duration
	Of   map[int]Sums // by SM
}

// Sums count the results of an SM.
type Sums struct {
	Tiles, Wrong uint64
	Got, Want    uint64 // the bits of a wrong sum
}

// A Way is a kind of copy.
type Way string

// The ways.
const (
	FromHost Way = "host to GPU"
	ToHost   Way = "GPU to host"
	Within   Way = "memory" // reads and writes it
)

// Rate is the speed of a copy.
type Rate struct {
	Bytes uint64
	Took  time.Duration
}

// PerSecond returns bytes a second.
func (r Rate) PerSecond() float64 {
	if r.Took <= 0 {
		return 0
	}
	return float64(r.Bytes) / r.Took.Seconds()
}

// Vitals are NVML's readings of a GPU at one moment. A missing reading is 0.
type Vitals struct {
	Clock, MostClock           float64 // of the SMs, Hz
	Power, Limit               float64 // watts
	Celsius                    float64
	Reasons                    uint64 // why clocks are as they are: NVML's bits
	Generation, MostGeneration int    // of PCIe
	Width, MostWidth           int    // lanes
}

// A Record has a GPU's counted errors and its links, as NVML reports them.
type Record struct {
	Links    []Link            // that are up
	Counters map[string]uint64 // of errors; without those that the GPU does not have
	XIDs     []uint64          // that the driver reported since the last record
	Deaf     bool              // the driver reports no XIDs here
}

// A Link is an NVLink.
type Link struct {
	Remote string  // PCI address of the GPU at its end; empty: a switch, or unknown
	Rate   float64 // bytes a second one way
}

// unable is an error that says why something cannot be tested, although nothing is at fault.
type unable string

func (u unable) Error() string { return string(u) }

const (
	errNoCUDA = unable("the CUDA driver is not there") // beside NVML's
	errNoPeer = unable("the GPUs cannot reach each other's memory")
)
