package broker

import (
	"errors"
	"flag"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gpusteward/internal/fixture"
	"gpusteward/internal/wire"
)

var (
	noiseFrames = flag.Int64("noise.frames", 20_000, "hostile `frames` that TestNoise sends")
	noiseSeed   = flag.Uint64("noise.seed", 0, "what they follow from; 0 is another each time")
)

// TestNoise lets several connections send frames that are valid, half valid, damaged or random, inside and outside of
// sessions, as fast as they are taken. Another user's session is served meanwhile, and keeps what it has.
func TestNoise(t *testing.T) {
	t.Parallel()
	seed := *noiseSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("-noise.seed=%d", seed)
	b := start(t, Options{}, func(b *Broker) { b.timing.perSession, b.timing.perUser, b.timing.asks = 1e9, 1e9, 1e9 })
	honest := dial(t, b, "honest", 1)
	honest.take(5)

	const connections = 4
	var left atomic.Int64
	left.Store(*noiseFrames)
	var all sync.WaitGroup
	for i := range connections {
		n := noise{Rand: rand.New(rand.NewPCG(seed, uint64(i))), path: b.options.Socket, fd: -1}
		all.Go(func() {
			for left.Add(-1) >= 0 {
				n.send()
			}
			n.hangUp()
		})
	}
	ended := make(chan struct{})
	go func() { all.Wait(); close(ended) }()
	began, asked, worst := time.Now(), 0, time.Duration(0)
	for going := true; going; asked++ {
		select {
		case <-ended:
			going = false
		case <-time.After(time.Millisecond):
		}
		at := time.Now()
		honest.sync()
		worst = max(worst, time.Since(at))
	}
	t.Logf("%d frames in %v; an honest session asked %d times, and waited for %v at most", *noiseFrames,
		time.Since(began), asked, worst)
	// memory of a living process is
	eventually(t, "none of them is there", func() bool { return b.Stats().Sessions["active"] == 1 })
	fixture.Equal(t, b.tenant("honest").MemoryUsed, 5, "the honest one has … bytes, not 5")
	honest.sync()
}

// noise is a connection that sends random frames.
type noise struct {
	*rand.Rand
	path    string
	fd      int
	session uint64
	in      [wire.FrameMax]byte
}

// send sends a frame, and first connects if there is no connection.
func (n *noise) send() {
	if n.fd < 0 {
		if n.fd = opens(n.path); n.fd < 0 {
			return
		}
		n.session = 0
	}
	var err error
	if frame := n.frame(); n.IntN(50) > 0 {
		_, err = unix.Write(n.fd, frame)
	} else {
		err = unix.Sendmsg(n.fd, frame, unix.UnixRights(n.fd, 0), nil, 0)
	}
	if n.hears(); err != nil && !errors.Is(err, unix.EMSGSIZE) && !errors.Is(err, unix.EINVAL) {
		n.hangUp()
	}
}

func (n *noise) hangUp() {
	if n.fd >= 0 {
		_ = unix.Close(n.fd)
	}
	n.fd = -1
}

// hears reads the answers so far and ignores descriptors.
func (n *noise) hears() {
	for n.fd >= 0 {
		read, _, err := unix.Recvfrom(n.fd, n.in[:], unix.MSG_DONTWAIT)
		switch {
		case errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR):
			return
		case err != nil || read == 0:
			n.hangUp()
			return
		}
		if h, _, err := wire.Decode(n.in[:read]); err == nil && h.Type == wire.TypeWelcome {
			n.session = h.Session
		}
	}
}

// sizes are the payload sizes of the messages that a process may send.
var sizes = map[wire.Type]int{
	wire.TypeHello: wire.HelloSize, wire.TypeResume: wire.HelloSize, wire.TypePing: 0,
	wire.TypeReserve: wire.MemorySize,
	wire.TypeCommit:  wire.MemorySize, wire.TypeAbort: wire.MemorySize, wire.TypeFree: wire.MemorySize,
	wire.TypeAcquire: wire.AcquireSize,
	wire.TypeYield:   wire.UsageSize, wire.TypeUsage: wire.UsageSize, wire.TypeBye: 0, wire.TypeStats: 0,
}

// frame returns a random frame.
func (n *noise) frame() []byte {
	if n.session == 0 && n.IntN(4) > 0 {
		return hello("hostile", byte(n.IntN(3))).Append(wire.Header{Type: wire.TypeHello, Seq: n.Uint64()}.Append(nil))
	}
	typ := wire.Type(1 + n.IntN(wire.Types-1))
	if typ == wire.TypeBye && n.IntN(20) > 0 {
		typ = wire.TypeFree
	}
	h := wire.Header{Type: typ, Seq: n.Uint64(), Session: n.session}
	if n.IntN(20) == 0 {
		h.Session = n.Uint64()
	}
	frame := h.Append(nil)
	at := len(frame)
	frame = append(frame, make([]byte, sizes[typ])...)
	if n.IntN(8) == 0 { // of another length
		frame = append(frame, make([]byte, n.IntN(wire.FrameMax+1000-len(frame)))...)
	}
	for i := at; i < min(len(frame), at+wire.HelloSize); i++ {
		if n.IntN(4) == 0 { // the rest is 0, so that some numbers are small
			frame[i] = byte(n.Uint32())
		}
	}
	switch n.IntN(8) {
	case 0:
		for range 1 + n.IntN(4) {
			frame[n.IntN(len(frame))] ^= 1 << n.IntN(8)
		}
	case 1:
		frame = frame[:1+n.IntN(len(frame))]
	}
	return frame
}
