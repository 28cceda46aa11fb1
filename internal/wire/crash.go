package wire

import (
	"bytes"
	"fmt"
	"sync/atomic"
	"unsafe"
)

// What explains a crash lies behind the trace, in the same file.
const (
	CrashSize   = crashNames + nameBytes
	Allocations = 4096 // that a process can tell, live and freed ones
	Kernels     = 4096 // that have names

	nameBytes        = 512 << 10
	maxName          = 512 // bytes of a name that is read
	allocationSize   = 32
	kernelSize       = 16
	crashAllocations = 16
	crashKernels     = crashAllocations + Allocations*allocationSize
	crashNames       = crashKernels + Kernels*kernelSize
)

// An Allocation is GPU memory of a process, as the process says.
type Allocation struct {
	Address, Bytes uint64
	Made, Freed    int64 // CLOCK_MONOTONIC, ns; Freed 0: it is there
}

// A Crash is the mapping of what explains a crash, CrashSize bytes, or empty: the process
// writes none. Like a Trace, it can be written by the process at any time.
type Crash []byte

func (c Crash) load64(at int) uint64 { return atomic.LoadUint64((*uint64)(unsafe.Pointer(&c[at]))) }
func (c Crash) load32(at int) uint32 { return atomic.LoadUint32((*uint32)(unsafe.Pointer(&c[at]))) }

// Failed returns the CUresult of the first fault that ended a context of the process, and
// the time when a call returned it (CLOCK_MONOTONIC, ns); 0: there was none.
func (t Trace) Failed() (result uint32, at int64) {
	return t.load32(traceClock + 52), int64(t.load64(traceClock+56) &^ (1 << 63))
}

// Unlisted returns the number of allocations that are missing in Allocations.
func (c Crash) Unlisted() uint64 {
	if len(c) == 0 {
		return 0
	}
	return c.load64(0)
}

// Unnamed returns the number of kernels whose names are missing.
func (c Crash) Unnamed() uint64 {
	if len(c) == 0 {
		return 0
	}
	return c.load64(8)
}

// Allocations returns the allocations that the process has or had lately, in no order.
func (c Crash) Allocations() (all []Allocation) {
	for at := crashAllocations; at < min(len(c), crashKernels); at += allocationSize {
		a := Allocation{c.load64(at), c.load64(at + 8), int64(c.load64(at + 16)), int64(c.load64(at + 24))}
		if a.Made == 0 {
			break // nor was any later place ever taken
		}
		if a.Address != 0 && a.Made > 0 && a.Freed >= 0 && c.load64(at) == a.Address {
			all = append(all, a)
		}
	}
	return all
}

// Kernel returns the name of the kernel whose launch at a time (CLOCK_MONOTONIC, ns) had an
// id, as the compiler wrote it and printable; empty: it is not known.
func (c Crash) Kernel(id uint32, at int64) string {
	of := uint32(0)
	for place := crashKernels; place < min(len(c), crashNames); place += kernelSize {
		text := c.load32(place + 12)
		if text == 0 || text > nameBytes {
			break
		}
		if c.load32(place+8) == id && (of == 0 || int64(c.load64(place)) <= at) {
			of = text
		}
	}
	if of == 0 {
		return ""
	}
	return c.name(int(of - 1)) // one, however many places a process fills with the id
}

// Unnamed returns what stands for the name of a launch that has none.
func Unnamed(kind EventKind, id uint32) string {
	if kind == EventGraph {
		return fmt.Sprintf("graph %08x", id)
	}
	return fmt.Sprintf("kernel %08x", id)
}

// name returns the name at a place: the process may change it meanwhile.
func (c Crash) name(at int) string {
	text := bytes.Clone(c[crashNames+at : crashNames+min(at+maxName, nameBytes)])
	if end := bytes.IndexByte(text, 0); end >= 0 {
		text = text[:end]
	}
	for i, b := range text {
		if b < ' ' || b > '~' {
			text[i] = '?'
		}
	}
	return string(text)
}
