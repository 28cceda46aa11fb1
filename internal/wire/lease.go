package wire

import (
	"sync/atomic"
	"unsafe"
)

// LeaseSize is the size of the mapping of a session's leases, in bytes. Only a
// part of it is used.
const LeaseSize = PageSize

// The word of a lease.
const (
	LeaseOpen = 1 << 63 // set beside the bytes; without it the lease is empty, and nothing may be added
	// bytes: if a process frees more into the lease, the excess goes back to the
	// broker until half of this is left
	LeaseMax = 1 << 29
)

// A Leases is the mapping of a session's leases, LeaseSize bytes. Both sides
// change it, each word atomically. If it is all zeros, it is closed.
type Leases []byte

// At returns the lease of a GPU.
func (l Leases) At(gpu int) *Lease { return (*Lease)(unsafe.Pointer(&l[8*gpu : 8*gpu+8][0])) }

// A Lease is the memory of a GPU that a process may take without RESERVE and
// COMMIT, and to which it returns what it frees. Its methods are safe for
// concurrent use by both sides. The broker trusts the process no more than when
// it sends FREE.
type Lease struct{ word atomic.Uint64 }

// Idle returns the bytes in the lease; 0 if it is closed.
func (l *Lease) Idle() uint64 { return idle(l.word.Load()) }

func idle(word uint64) uint64 {
	if word&LeaseOpen == 0 {
		return 0
	}
	return word &^ LeaseOpen
}

// Add adds bytes, and opens the lease if it is closed.
func (l *Lease) Add(bytes uint64) {
	for {
		word := l.word.Load()
		if l.word.CompareAndSwap(word, LeaseOpen|(idle(word)+bytes)) {
			return
		}
	}
}

// Close removes all bytes and returns how many there were. From now on the
// process must ask.
func (l *Lease) Close() uint64 { return idle(l.word.Swap(0)) }
