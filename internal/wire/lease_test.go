package wire

import (
	"testing"
	"unsafe"
)

func TestLeaseStartsClosed(t *testing.T) {
	leases := make(Leases, LeaseSize)
	word := (*uint64)(unsafe.Pointer(&leases[8]))
	l := leases.At(1)
	*word = 7 // written by a process
	if l.Idle() != 0 || l.Close() != 0 {
		t.Errorf("%#x is in a closed lease", *word)
	}
	*word = 7
	l.Add(0)
	if *word != LeaseOpen || l.Idle() != 0 {
		t.Errorf("an open one is %#x", *word)
	}
	l.Add(5)
	if *word -= 2; l.Idle() != 3 || leases.At(0).Idle() != 0 || leases.At(GPUs-1).Idle() != 0 {
		t.Errorf("%d of 5 bytes are idle with 2 taken", l.Idle())
	}
	if got := l.Close(); got != 3 || *word != 0 || l.Idle() != 0 {
		t.Errorf("%d bytes taken out, and %#x is left", got, *word)
	}
}
