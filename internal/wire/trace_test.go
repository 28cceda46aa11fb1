package wire

import (
	"encoding/binary"
	"testing"
)

// TestReached reads numbers of which a trace has the low bits.
func TestReached(t *testing.T) {
	for _, c := range []struct {
		entered uint64
		low     uint32
		want    uint64
	}{
		{7, 7, 7}, {7, 1, 1}, {7, 0, 0}, {7, 8, 0}, {1<<32 + 3, 3, 1<<32 + 3}, {1<<32 + 3, 1<<32 - 2, 1<<32 - 2},
	} {
		m := make(Trace, TraceSize)
		binary.NativeEndian.PutUint64(m[traceCommunicator+16:], c.entered)
		binary.NativeEndian.PutUint32(m[traceCommunicator+120:], c.low)
		binary.NativeEndian.PutUint32(m[traceCommunicator+124:], c.low)
		if g, _ := m.Communicator(Clock{}, 0); g.Reached != c.want || g.Unreached != c.want {
			t.Errorf("%d with the low bits %d: %d and %d, want %d", c.entered, c.low, g.Reached, g.Unreached, c.want)
		}
	}
}
