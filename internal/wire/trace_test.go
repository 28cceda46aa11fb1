package wire

import (
	"encoding/binary"
	"slices"
	"testing"

	"gpusteward/internal/fixture"
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
		m := make([]byte, TraceSize)
		binary.NativeEndian.PutUint64(m[traceCommunicator+16:], c.entered)
		binary.NativeEndian.PutUint32(m[traceCommunicator+120:], c.low)
		binary.NativeEndian.PutUint32(m[traceCommunicator+124:], c.low)
		if g, _ := TraceIn(m).Communicator(Clock{}, 0); g.Reached != c.want || g.Unreached != c.want {
			t.Errorf("%d with the low bits %d: %d and %d, want %d", c.entered, c.low, g.Reached, g.Unreached, c.want)
		}
	}
}

// A written is a trace with a clock whose ticks are ns.
type written struct {
	Trace
	memory []byte
	*testing.T
	reader TraceReader
	now    int64
}

func newWritten(t *testing.T) *written {
	m := make([]byte, TraceSize)
	w := &written{Trace: TraceIn(m), memory: m, T: t, now: 1e9}
	binary.NativeEndian.PutUint32(w.memory[traceClock:], 2)
	for i, v := range []uint64{1e9, 1e9, 2e9, 2e9} {
		binary.NativeEndian.PutUint64(w.memory[traceClock+8+8*i:], v)
	}
	return w
}

// take takes numbers up to this one.
func (w *written) take(head uint64) { binary.NativeEndian.PutUint64(w.memory, head) }

// note writes the event of a number: the launch of a kernel of the same number.
func (w *written) note(number uint64, at int64) {
	e := w.memory[traceEvents+int(number%EventsKept)*eventSize:]
	binary.NativeEndian.PutUint64(e, uint64(at))
	binary.NativeEndian.PutUint32(e[8:], uint32(number))
	binary.NativeEndian.PutUint32(e[12:], uint32(EventLaunch)|uint32(number/EventsKept&0xff)<<8)
}

// want reads, and wants these events.
func (w *written) want(lost uint64, ids ...uint32) {
	w.Helper()
	c, ok := w.Clock()
	if !ok {
		w.Fatal("no clock")
	}
	events, gone := w.reader.Read(w.Trace, c, w.now, nil)
	var got []uint32
	for _, e := range events {
		got = append(got, e.ID)
	}
	if !slices.Equal(got, ids) || gone != lost {
		w.Errorf("read %v and lost %d, want %v and %d", got, gone, ids, lost)
	}
}

// TestBlocksAreReadInTheOrderOfTime: a thread takes numbers before others take later ones,
// and writes some of their events after theirs. Each event is read once.
func TestBlocksAreReadInTheOrderOfTime(t *testing.T) {
	w := newWritten(t)
	w.want(0)
	w.take(32)
	w.note(0, 100)
	w.note(16, 200)
	w.note(1, 300)
	w.note(17, 400)
	w.want(0, 0, 16, 1, 17)
	w.want(0)
	w.take(48)
	w.note(32, 500)
	w.note(2, 600)
	w.note(18, 550)
	w.want(0, 32, 18, 2)
	for n := range uint64(16) {
		if n > 2 {
			w.note(n, 700)
		}
	}
	w.want(0, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
	fixture.Equal(t, len(w.reader.open), 2, "… blocks are open, two are")
}

// TestLaterEventsAreLeft: what threads note while it is read comes with the next reading.
func TestLaterEventsAreLeft(t *testing.T) {
	w := newWritten(t)
	w.take(32)
	w.note(0, 100)
	w.note(1, 1e9+10)
	w.note(16, 1e9)
	w.note(17, 1e9+5)
	w.want(0, 0, 16)
	w.now += 1e8
	w.want(0, 17, 1)
}

// TestSingleNumbersAreRead: a hook of before version 2 takes a number for each event, and
// the event of a thread that died there never comes.
func TestSingleNumbersAreRead(t *testing.T) {
	w := newWritten(t)
	binary.NativeEndian.PutUint32(w.memory[traceClock:], 1)
	w.take(3)
	w.note(0, 100)
	w.note(2, 300)
	w.note(3, 350) // nobody has taken it yet
	w.want(0, 0, 2)
	w.take(20)
	for n := uint64(3); n < 20; n++ {
		w.note(n, 400+int64(n))
	}
	w.want(0, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19)
	w.note(1, 500)
	w.want(0, 1)
}

// TestLapsAreLost: what was overwritten between two readings is lost, and what a thread left open long ago is not.
func TestLapsAreLost(t *testing.T) {
	w := newWritten(t)
	w.take(16)
	w.note(0, 100)
	w.want(0, 0)
	for n := uint64(16); n < EventsKept; n += EventsKept / 4 { // nobody writes
		w.take(n)
		w.want(0)
	}
	w.take(EventsKept + 32)
	w.note(EventsKept+16, 200)
	w.want(0, EventsKept+16)
	w.take(3 * EventsKept)
	w.note(3*EventsKept-1, 300)
	w.note(2*EventsKept, 250)
	w.want(EventsKept-32, 2*EventsKept, 3*EventsKept-1)
	fixture.AtMost(t, len(w.reader.open), EventsKept/eventsOfBlock, "blocks are open")
	w.take(5) // it meddles
	w.want(0)
	w.take(32)
	w.note(16, 400)
	w.want(0, 16)
	w.take(3)
	w.want(0)
	w.note(17, 500) // a number that nobody has
	w.want(0)

	w = newWritten(t)
	w.take(16)
	w.want(0)
	w.note(1, 100) // others take its place before it is read
	w.take(EventsKept + 32)
	w.want(16 + 1)
}
