package wire

import (
	"encoding/binary"
	"testing"

	"gpusteward/internal/fixture"
)

// TestANameIsReadOnce: a process may give all places of its table one id, and each launch is looked up.
func TestANameIsReadOnce(t *testing.T) {
	m := make([]byte, CrashSize)
	c := CrashIn(m)
	for i := range Kernels {
		at := crashKernels + i*kernelSize
		binary.NativeEndian.PutUint64(m[at:], uint64(i))
		binary.NativeEndian.PutUint32(m[at+8:], 7)
		binary.NativeEndian.PutUint32(m[at+12:], uint32(1+i%2))
	}
	copy(m[crashNames:], "name")
	fixture.Equal(t, c.Kernel(7, 1), "ame", "the last one by then")
	fixture.Equal(t, c.Kernel(7, -1), "name", "the first one, if all are later")
	fixture.AtMost(t, int(testing.AllocsPerRun(10, func() { c.Kernel(7, Kernels) })), 3, "allocations of a name")
}
