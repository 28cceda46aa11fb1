package wire

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// What explains a crash lies behind the trace, in the same file.
const (
	CrashSize   = crashNames + nameBytes
	Allocations = 4096 // that a process can tell, live and freed ones
	Kernels     = 4096 // that have names

	GraphKernels     = 8   // kernels that the name of a graph tells
	graphsNamed      = 512 // that have names
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

// A Crash is what explains a crash, CrashSize bytes. Like a Trace, it can be written by the process at any time, and is
// copied. The zero Crash is none.
type Crash struct{ all io.ReaderAt }

// NewCrash returns what r reads.
func NewCrash(r io.ReaderAt) Crash { return Crash{r} }

// CrashIn returns what explains a crash in memory that no process can punch holes into.
func CrashIn(m []byte) Crash { return Crash{bytes.NewReader(m)} }

// There reports whether there is something.
func (c Crash) There() bool { return c.all != nil }

// read copies what lies at a place; zeros if it cannot be read.
func (c Crash) read(to []byte, at int) []byte {
	if c.all == nil {
		return to
	}
	if _, err := c.all.ReadAt(to, int64(at)); err != nil {
		clear(to)
	}
	return to
}

// piece is how much of a table is copied at a time.
const piece = 4096

// Failed returns the CUresult of the first fault that ended a context of the process, and
// the time when a call returned it (CLOCK_MONOTONIC, ns); 0: there was none.
func (t Trace) Failed() (result uint32, at int64) {
	return t.load32(traceClock + 52), int64(t.load64(traceClock+56) &^ (1 << 63))
}

// Unlisted returns the number of allocations that are missing in Allocations.
func (c Crash) Unlisted() uint64 { return binary.NativeEndian.Uint64(c.read(make([]byte, 8), 0)) }

// Unnamed returns the number of kernels whose names are missing.
func (c Crash) Unnamed() uint64 { return binary.NativeEndian.Uint64(c.read(make([]byte, 8), 8)) }

// Allocations returns the allocations that the process has or had lately, in no order.
func (c Crash) Allocations() (all []Allocation) {
	var some, again [piece]byte
	for at := crashAllocations; at < crashKernels; at += piece {
		c.read(some[:], at)
		c.read(again[:], at)
		for i := 0; i < piece; i += allocationSize {
			word := func(n int) uint64 { return binary.NativeEndian.Uint64(some[i+8*n:]) }
			a := Allocation{word(0), word(1), int64(word(2)), int64(word(3))}
			if a.Made == 0 {
				return all // nor was any later place ever taken
			}
			if a.Address != 0 && a.Made > 0 && a.Freed >= 0 && binary.NativeEndian.Uint64(again[i:]) == a.Address {
				all = append(all, a)
			}
		}
	}
	return all
}

// Kernel returns the name of the kernel whose launch at a time (CLOCK_MONOTONIC, ns) had an
// id, as the compiler wrote it and printable; empty: it is not known.
func (c Crash) Kernel(id uint32, at int64) string {
	of := uint32(0)
	var some [piece]byte
scan:
	for place := crashKernels; place < crashNames; place += piece {
		c.read(some[:], place)
		for i := 0; i < piece; i += kernelSize {
			text := binary.NativeEndian.Uint32(some[i+12:])
			if text == 0 || text > nameBytes {
				break scan
			}
			if binary.NativeEndian.Uint32(some[i+8:]) == id && (of == 0 || int64(binary.NativeEndian.Uint64(some[i:])) <= at) {
				of = text
			}
		}
	}
	if of == 0 {
		return ""
	}
	return c.name(int(of - 1)) // one, however many places a process fills with the id
}

// A GraphKernel is a kernel of a graph.
type GraphKernel struct {
	ID    uint32 // see Kernel
	Nodes int    // that launch it
}

// Graph returns how many nodes of the graph whose launch at a time (CLOCK_MONOTONIC, ns) had an id launch
// kernels, and the kernels with most of them; 0: it is not known.
func (c Crash) Graph(id uint32, at int64) (nodes int, all []GraphKernel) {
	text, is := strings.CutPrefix(c.Kernel(id, at), "graph ")
	if !is {
		return 0, nil
	}
	for i, word := range strings.Fields(text) {
		count, kernel, _ := strings.Cut(word, "x")
		n, err := strconv.ParseUint(count, 10, 31)
		of, wrong := strconv.ParseUint(kernel, 16, 32)
		switch {
		case i == 0:
			nodes = int(n)
		case i <= GraphKernels && err == nil && wrong == nil:
			all = append(all, GraphKernel{uint32(of), int(n)})
		}
	}
	return nodes, all
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
	text := c.read(make([]byte, min(maxName, nameBytes-at)), crashNames+at)
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
