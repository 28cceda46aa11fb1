package wire

import (
	"encoding/binary"
	"math"
	"testing"
	"time"
	"unsafe"

	"gpusteward/internal/fixture"
)

// TestPageIsTheStruct writes every field with an accessor and reads it at its place in C.
func TestPageIsTheStruct(t *testing.T) {
	p := Page(make([]byte, PageSize))
	c := (*pageC)(unsafe.Pointer(&p[0]))
	if unsafe.Sizeof(*c) > PageSize {
		t.Fatalf("a page has %d bytes", unsafe.Sizeof(*c))
	}
	fixture.Equal(t, p.Session(), 0, "zeros pass for a page")
	p.Init(11)
	p.SetHeartbeat(12)
	p.SetTurn(15, Turn{Mode: ModeRun, Flags: Haste, Turn: 13, End: 14, InFlight: 15, Share: 16, Slice: 19, Pace: 20})
	p.SetMemory(15, 17, 18)
	p.Ring()
	want := slotC{Mode: 1, Flags: 2, Turn: 13, End: 14, Used: 17, Cap: 18, InFlight: 15, Share: 16, Slice: 19, Pace: 20}
	if c.Magic != Magic || c.Version != 1 || c.Session != 11 || c.Heartbeat != 12 || c.Bell != 1 || c.Gated != 1 ||
		c.Slot[15] != want {
		t.Errorf("the page is %+v, %+v", *c, c.Slot[15])
	}
	fixture.Equal(t, c.Slot[14], slotC{}, "the slot before it is")
	if got := p.Turn(15); got != (Turn{ModeRun, Haste, 13, 14, 15, 16, 19, 20}) || p.Session() != 11 || p.Heartbeat() != 12 {
		t.Errorf("read back: %+v", got)
	}
	used, limit := p.Memory(15)
	fixture.If(t, used != 17 || limit != 18, "memory %d of %d", used, limit)
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		t.Skip("the page is little endian")
	}
}

func TestPageIsGatedWhileAnySlotIs(t *testing.T) {
	p := Page(make([]byte, PageSize))
	for _, c := range []struct {
		gpu  int
		turn Turn
		want bool
	}{
		{0, Turn{Mode: ModePause}, true},
		{1, Turn{Mode: ModeRun}, true},
		{0, Turn{Mode: ModeOpen}, true},
		{1, Turn{Mode: ModeOpen}, false},
		{2, Turn{Mode: ModeKill}, true},
	} {
		p.SetTurn(c.gpu, c.turn)
		fixture.Equal(t, p.Gated(), c.want, "slot %d to %+v: gated", c.gpu, c.turn)
	}
}

// TestRingWakes waits for a future ring of the bell, not for a past one.
func TestRingWakes(t *testing.T) {
	p := Page(make([]byte, PageSize))
	woken := make(chan struct{})
	go func() {
		for p.Bell() == 0 {
			p.Wait(0, math.MaxInt32)
		}
		close(woken)
	}()
	p.Ring()
	select {
	case <-woken:
	case <-time.After(10 * time.Second):
		t.Fatal("no waiter woke")
	}
	p.Wait(0, math.MaxInt64) // returns at once: the bell is 1 by now
}

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
