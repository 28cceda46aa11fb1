package broker

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gpusteward/internal/fixture"
	"gpusteward/internal/wire"
)

// BenchmarkReserve measures a round trip over the real socket: from a client
// that blocks in recv as the hook does, and from a client in Go.
func BenchmarkReserve(b *testing.B) {
	br := start(b, Options{}, func(br *Broker) { br.timing.perSession, br.timing.perOwner = 1e9, 1e9 })
	trip := func(b *testing.B, send func(frame []byte), receive func() wire.Header) {
		took := make([]time.Duration, 0, b.N)
		b.ResetTimer()
		for range b.N {
			began := time.Now()
			send(nil)
			if h := receive(); h.Type != wire.TypeGrant {
				b.Fatal(h.Type)
			}
			took = append(took, time.Since(began))
			send([]byte{1})
		}
		b.StopTimer()
		slices.Sort(took)
		b.ReportMetric(float64(took[len(took)/2].Nanoseconds()), "ns/median")
		b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds()), "ns/p99")
	}
	b.Run("go", func(b *testing.B) {
		c := dial(b, br, "a", 1)
		_ = c.conn.SetReadDeadline(time.Time{})
		trip(b, c.exchange(func(f []byte) { c.write(f) }), func() wire.Header {
			n, err := c.conn.Read(c.in[:])
			h, _, err2 := wire.Decode(c.in[:n])
			if err != nil || err2 != nil {
				b.Fatal(err, err2)
			}
			return h
		})
	})
	b.Run("blocking", func(b *testing.B) {
		c := dial(b, br, "b", 1)
		file, err := c.conn.File()
		fixture.Must(b, err)
		defer file.Close()
		fd := int(file.Fd()) // Fd makes the socket blocking
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		trip(b, c.exchange(func(f []byte) {
			if _, err := unix.Write(fd, f); err != nil {
				b.Fatal(err)
			}
		}), func() wire.Header {
			n, err := unix.Read(fd, c.in[:])
			h, _, err2 := wire.Decode(c.in[:n])
			if err != nil || err2 != nil {
				b.Fatal(err, err2)
			}
			return h
		})
	})
}

// exchange returns a function that sends RESERVE, and then ABORT for the
// granted bytes.
func (c *client) exchange(write func([]byte)) func(abort []byte) {
	return func(abort []byte) {
		m := wire.Memory{Bytes: 1 << 20}
		if abort == nil {
			write(c.frame(wire.TypeReserve, &m))
			return
		}
		m.Decode(c.in[wire.HeaderSize:])
		write(c.frame(wire.TypeAbort, &m))
	}
}

// TestLoad is the load of BenchmarkLoad, in a process of its own, and not a
// test. It opens GS_TENANTS sessions of as many tenants on each of GS_GPUS
// GPUs; see saturate.
func TestLoad(t *testing.T) {
	path := os.Getenv("GS_LOAD")
	if path == "" {
		t.Skip("run by BenchmarkLoad")
	}
	number := func(name string) int {
		return fixture.Value(strconv.Atoi(os.Getenv(name)))(t)
	}
	gpus, tenants := number("GS_GPUS"), number("GS_TENANTS")
	var all sync.WaitGroup
	for g := range gpus {
		var gpu device
		for s := range tenants {
			c := connect(t, path)
			c.hello(wire.TypeHello, hello(fmt.Sprintf("t%d", s), byte(g+1)))
			all.Go(func() { c.saturate(&gpu) })
		}
	}
	fmt.Println("ready")
	all.Wait() // until the process is killed
}

// BenchmarkLoad measures the broker's processor time under TestLoad for 20 s,
// independent of b.N. The load is a process of its own, so the time is the
// broker's alone.
func BenchmarkLoad(b *testing.B) {
	for _, size := range []struct{ gpus, tenants int }{{8, 16}, {1, 3}, {1, 1}} {
		b.Run(fmt.Sprintf("%dx%d", size.gpus, size.tenants), func(b *testing.B) { load(b, size.gpus, size.tenants) })
	}
}

func load(b *testing.B, gpus, tenants int) {
	br := start(b, Options{}, nil)
	cmd := exec.Command(os.Args[0], "-test.run=^TestLoad$")
	cmd.Env = append(os.Environ(), "GS_LOAD="+br.options.Socket, fmt.Sprintf("GS_GPUS=%d", gpus),
		fmt.Sprintf("GS_TENANTS=%d", tenants))
	out, err := cmd.StdoutPipe()
	fixture.Must(b, err)
	fixture.Must(b, cmd.Start())
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	if _, err := out.Read(make([]byte, 6)); err != nil {
		b.Fatal(err)
	}
	before, turns, told, began := processor(), br.turns(), br.told(), time.Now()
	time.Sleep(20 * time.Second)
	seconds := time.Since(began).Seconds()
	now := processor()
	used := now.user + now.system - before.user - before.system
	turns, told = br.turns()-turns, br.told()-told
	b.ReportMetric(100*used.Seconds()/seconds, "%core")
	b.ReportMetric(100*(now.system-before.system).Seconds()/seconds, "%core-in-kernel")
	b.ReportMetric(float64(turns)/seconds, "turns/s")
	b.ReportMetric(float64(told)/seconds, "messages/s")
	b.ReportMetric(float64(now.switches-before.switches)/float64(max(told, 1)), "switches/message")
	b.ReportMetric(float64(used.Nanoseconds())/float64(max(told, 1)), "ns/message")
	if n := br.counters.slowed.Load(); n > 0 {
		b.Errorf("%d messages were more than the broker takes", n)
	}
}

// told returns the number of messages that reported work.
func (b *Broker) told() uint64 {
	return b.requests("acquire", "ok") + b.requests("yield", "ok") + b.requests("usage", "ok")
}

func (b *Broker) turns() (n uint64) {
	for _, t := range b.Stats().Tenants {
		n += t.Turns
	}
	return n
}

// processor returns this process's processor time, and how often its threads
// went to sleep.
func processor() (used struct {
	user, system time.Duration
	switches     int64
}) {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &u)
	used.switches = u.Nvcsw
	used.user, used.system = time.Duration(u.Utime.Nano()), time.Duration(u.Stime.Nano())
	return used
}

// BenchmarkSiege measures how long a new process waits for its WELCOME while
// five users attack: they hold all the sessions that they can get, have left
// 20,000 sockets unread, and keep connecting.
func BenchmarkSiege(b *testing.B) {
	path := open(b)
	br := start(b, Options{Socket: path}, func(br *Broker) { br.timing.callsOfOwner = 1e6 })
	calls := func(n int) { br.mu.Lock(); defer br.mu.Unlock(); br.timing.callsOfProcess = n }
	calls(1e6) // one process opens all of a user's sessions
	held := 0
	for uid := 4711; uid < 4716; uid++ {
		held += strange(b, "idle", path, 3000, uid, "").number(b)
	}
	calls(defaults.callsOfProcess)
	var all []*stranger
	for uid := 4711; uid < 4716; uid++ {
		for range 4 {
			all = append(all, strange(b, "unread", path, 1000, uid, ""))
		}
	}
	for _, s := range all {
		s.number(b)
	}
	for uid := 4711; uid < 4716; uid++ {
		strange(b, "connect", path, 1<<30, uid, "")
	}
	time.Sleep(2 * time.Second) // until all users are active
	before, began := processor(), time.Now()
	var took []time.Duration
	for time.Since(began) < 10*time.Second {
		at := time.Now()
		c := connect(b, path)
		c.hello(wire.TypeHello, hello("honest", 1))
		took = append(took, time.Since(at))
		c.close()
		time.Sleep(40 * time.Millisecond) // limits the rate
	}
	now := processor()
	slices.Sort(took)
	b.ReportMetric(float64(held), "sessions")
	b.ReportMetric(took[len(took)/2].Seconds()*1e3, "ms/median")
	b.ReportMetric(took[len(took)*99/100].Seconds()*1e3, "ms/p99")
	b.ReportMetric(100*(now.user+now.system-before.user-before.system).Seconds()/time.Since(began).Seconds(), "%core")
	b.ReportMetric(float64(br.requests("unknown", "limit")), "refused")
}

// A device is a GPU that is divided equally among all that run at once.
type device struct{ running atomic.Int32 }

// saturate behaves as the hook does in a program that always has work for the
// first GPU, in launches of a millisecond, until the session ends. It returns
// the number of launches.
func (c *client) saturate(d *device) (launches int) {
	const launch, report = time.Millisecond, 10 * time.Millisecond
	var yielded uint64
	var done, solo time.Duration // since the last report, in total and alone
	running, alone := false, false
	seen := time.Now()
	told, pinged := seen, seen
	tell := func(t wire.Type, why wire.Why, turn uint64) []byte {
		n := done / launch
		u := wire.Usage{Why: why, Turn: turn, Last: uint64(newClock().now()), Launched: uint64(n),
			Longest: uint64(launch),
			Solo:    uint64(solo / launch), SoloTime: uint64(solo / launch * launch)}
		launches += int(n)
		done, solo, told = done-n*launch, solo%launch, seen
		return c.frame(t, &u)
	}
	frame := c.frame(wire.TypeAcquire, &wire.Acquire{})
	for {
		if frame != nil {
			if _, err := c.conn.Write(frame); err != nil {
				return launches
			}
		}
		frame = nil
		bell := c.page.Bell()
		turn := c.page.Turn(0)
		now := time.Now()
		if running {
			done += now.Sub(seen) / time.Duration(d.running.Load())
		}
		if running && alone {
			solo += now.Sub(seen)
		}
		alone = turn.Flags&wire.Beside == 0
		seen = now
		runs := turn.Mode == wire.ModeOpen || turn.Mode == wire.ModeRun
		if runs && !running {
			d.running.Add(1)
		} else if running && !runs {
			d.running.Add(-1)
		}
		running = runs
		rest := time.Second
		switch {
		case turn.Mode == wire.ModeKill:
			return launches
		case turn.Mode == wire.ModePause && turn.Turn != yielded:
			yielded = turn.Turn
			frame = tell(wire.TypeYield, wire.WhyDrained, turn.Turn)
			continue
		case turn.Flags&wire.Beside != 0:
			if rest = report - now.Sub(told); rest <= 0 {
				frame = tell(wire.TypeUsage, 0, turn.Turn)
				continue
			}
		case now.Sub(pinged) > time.Second:
			pinged = now
			if _, err := c.conn.Write(c.frame(wire.TypePing, nil)); err != nil {
				return launches
			}
			_, _ = c.conn.Read(c.in[:])
		}
		c.page.Wait(bell, int64(rest))
	}
}
