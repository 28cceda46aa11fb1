package wire

import (
	"sync/atomic"
	"unsafe"
)

// LeaseSize is the size of the mapping of a session's leases, bytes. What is
// used of it is less.
const LeaseSize = PageSize

// What is in the word of a lease.
const (
	LeaseOpen = 1 << 63 // beside the bytes; without it there are none, and none may be put there
	LeaseMax  = 1 << 29 // bytes: what a process has more in it when it frees goes back to the broker, until half of that is left
)

// A Leases is the mapping of a session's leases, LeaseSize bytes. Both sides
// change it, each word at once. One that is all zeros is closed.
type Leases []byte

// At returns the lease on a GPU.
func (l Leases) At(gpu int) *Lease { return (*Lease)(unsafe.Pointer(&l[8*gpu : 8*gpu+8][0])) }

// A Lease is what a process may take of a GPU's memory without RESERVE and
// COMMIT, and where it puts what it frees. Its methods are safe for concurrent
// use, by both sides; the process is believed no more than when it says FREE.
type Lease struct{ word atomic.Uint64 }

// Idle returns the bytes that are in it; 0 where it is closed.
func (l *Lease) Idle() uint64 { return idle(l.word.Load()) }

func idle(word uint64) uint64 {
	if word&LeaseOpen == 0 {
		return 0
	}
	return word &^ LeaseOpen
}

// Add puts bytes into it, and opens it where it is closed.
func (l *Lease) Add(bytes uint64) {
	for {
		word := l.word.Load()
		if l.word.CompareAndSwap(word, LeaseOpen|(idle(word)+bytes)) {
			return
		}
	}
}

// Close takes all bytes out, and returns how many there were. The process asks
// from now on.
func (l *Lease) Close() uint64 { return idle(l.word.Swap(0)) }
