package broker

import (
	"errors"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gpusteward/internal/fixture"
	"gpusteward/internal/wire"
)

func TestRate(t *testing.T) {
	var r rate
	at := time.Hour
	taken := func(limit int) (n int) {
		for range limit {
			if r.take(at, 10) {
				n++
			}
		}
		return n
	}
	fixture.Equal(t, taken(100), 10, "… at once of 10 a second")
	at += 500 * time.Millisecond
	fixture.Equal(t, taken(100), 5, "… after half a second")
	at += time.Hour
	fixture.Equal(t, taken(100), 10, "… after an hour")
}

// TestRateOfUser lets one session of a user use up the rate of both, which are of two jobs. The
// other one is late, and is neither refused nor dropped.
func TestRateOfUser(t *testing.T) {
	t.Parallel()
	b := start(t, Options{Owner: newJob}, func(b *Broker) { b.timing.perUser, b.timing.flood = 100, 100*time.Millisecond })
	c, d := dial(t, b, "a", 1), dial(t, b, "b", 1)
	began := time.Now()
	for range 130 {
		c.send(wire.TypeUsage, &wire.Usage{})
	}
	for range 10 {
		typ, p := d.ask(wire.TypePing, nil)
		fixture.Stop(t, typ != wire.TypePong, "%s %q", typ, p)
	}
	c.sync()
	took, slow := time.Since(began), 400*time.Millisecond // a machine that takes so long for them keeps to the rate
	if took < 250*time.Millisecond || took < slow && b.counters.slowed.Load() == 0 || b.counters.floods.Load() != 0 {
		t.Errorf("140 messages at 100 a second took %v; %d were slowed, %d dropped", took, b.counters.slowed.Load(),
			b.counters.floods.Load())
	}
}

// TestPagesOfAUser: a user begins so many sessions at once, and so many a second in the long run, because nobody knows
// what it keeps of those that have ended.
func TestPagesOfAUser(t *testing.T) {
	t.Parallel()
	var jump func(time.Duration)
	b := start(t, Options{Owner: newJob}, func(b *Broker) { b.timing.pages, b.timing.pagesAtOnce, jump = 2, 10, b.clockThatJumps() })
	begun := func() (n int) {
		for range 20 {
			typ, _ := connect(t, b.options.Socket).ask(wire.TypeHello, hello("a", 1))
			n += map[wire.Type]int{wire.TypeWelcome: 1}[typ]
		}
		return n
	}
	fixture.Equal(t, begun(), 10, "sessions at once")
	jump(time.Second)
	fixture.Equal(t, begun(), 2, "sessions after a second")
	refused, excused := b.Refused(os.Getpid())
	fixture.If(t, !refused || excused, "who was refused more is judged: %v, %v", refused, excused)
}

// TestOrder holds that answers come in the order of the requests, refusals included.
func TestOrder(t *testing.T) {
	b := start(t, Options{}, nil)
	c := dial(t, b, "a", 1)
	c.send(wire.TypeReserve, &wire.Memory{Bytes: 1})
	c.send(wire.TypeReserve, &wire.Memory{GPU: 9})
	c.send(wire.TypePing, nil)
	c.send(wire.TypeGrant, &wire.Memory{})
	c.send(wire.TypeReserve, &wire.Memory{Bytes: 1})
	first := c.seq - 4
	for i, want := range []wire.Type{wire.TypeGrant, wire.TypeErr, wire.TypePong, wire.TypeErr, wire.TypeGrant} {
		if h, _ := c.receive(); h.Type != want || h.Seq != first+uint64(i) || h.Session != c.session {
			t.Errorf("answer %d is %+v, want %s", i, h, want)
		}
	}
	eventually(t, "all are counted", func() bool { // an answer is sent before it is counted
		return b.requests("reserve", "ok") == 2 && b.requests("reserve", "gpu") == 1 &&
			b.requests("grant", "state") == 1 && b.requests("ping", "ok") == 2
	})
}

// TestNoDescriptors starts a broker that cannot accept. A client that connects waits, and is served when there is room.
func TestNoDescriptors(t *testing.T) {
	var limit unix.Rlimit
	fixture.Must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	b, err := New(Options{Socket: socket(t), Policy: book{}})
	fixture.Must(t, err)
	b.timing.poll = 5 * time.Millisecond
	c := connect(t, b.options.Socket)
	fixture.Must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 100, Max: limit.Max}))
	defer func() { _ = unix.Setrlimit(unix.RLIMIT_NOFILE, &limit) }()
	var filling []int
	for {
		fd, err := unix.Dup(int(os.Stderr.Fd()))
		if errors.Is(err, unix.EMFILE) {
			break
		}
		filling = append(filling, fd)
	}
	end := fixture.Running(t, b.Run)
	eventually(t, "no descriptor is free", func() bool { return b.counters.starved.Load() > 1 })
	for _, fd := range filling {
		_ = unix.Close(fd)
	}
	c.hello(wire.TypeHello, hello("a", 1))
	c.sync()
	end()
	c.gone()
}
