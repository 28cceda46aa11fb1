package broker

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gpusteward/enforcer/wire"
)

// BenchmarkReserve is a round trip over the real socket: from a client that
// blocks in recv as the hook does, and from one in Go.
func BenchmarkReserve(b *testing.B) {
	br := start(b, Options{}, func(br *Broker) { br.timing.perSession, br.timing.perUser = 1e9, 1e9 })
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
		if err != nil {
			b.Fatal(err)
		}
		defer file.Close()
		fd := int(file.Fd()) // blocks from here on
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

// exchange returns what sends RESERVE, and ABORT of what was granted.
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

// TestLoad is no test but the load of BenchmarkLoad, in a process of its own:
// 16 sessions on each of 8 GPUs that always want it and behave as the hook
// does, but for a GPU: they drain at once.
func TestLoad(t *testing.T) {
	path := os.Getenv("GS_LOAD")
	if path == "" {
		t.Skip("run by BenchmarkLoad")
	}
	var all sync.WaitGroup
	for g := range 8 {
		for s := range 16 {
			c := connect(t, path)
			c.hello(wire.TypeHello, hello(fmt.Sprintf("t%d", s), byte(g+1)))
			all.Go(c.saturate)
		}
	}
	fmt.Println("ready")
	all.Wait() // it is killed
}

// saturate asks once, and then runs and yields until the connection ends.
func (c *client) saturate() {
	var yielded uint64
	asked := false
	beat := time.Now()
	for {
		bell := c.page.Bell()
		turn := c.page.Turn(0)
		if turn.Mode == wire.ModePause {
			var err error
			switch {
			case !asked:
				asked = true
				_, err = c.conn.Write(c.frame(wire.TypeAcquire, &wire.Acquire{}))
			case turn.Turn != yielded: // and goes on wanting
				yielded = turn.Turn
				_, err = c.conn.Write(c.frame(wire.TypeYield, &wire.Usage{Why: wire.WhyDrained, Turn: turn.Turn, Launched: 1}))
			}
			if err != nil {
				return
			}
		}
		if time.Since(beat) > time.Second {
			beat = time.Now()
			if _, err := c.conn.Write(c.frame(wire.TypePing, nil)); err != nil {
				return
			}
			_, _ = c.conn.Read(c.in[:])
		}
		c.page.Wait(bell, int64(time.Second))
	}
}

// BenchmarkLoad measures the broker's processor time under TestLoad, for 5 s
// whatever b.N: the load is a process of its own, so this is the broker's alone.
func BenchmarkLoad(b *testing.B) {
	br := start(b, Options{}, nil)
	cmd := exec.Command(os.Args[0], "-test.run=^TestLoad$")
	cmd.Env = append(os.Environ(), "GS_LOAD="+br.options.Socket)
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	if _, err := out.Read(make([]byte, 6)); err != nil {
		b.Fatal(err)
	}
	before, turns, began := processor(), br.turns(), time.Now()
	time.Sleep(5 * time.Second)
	seconds := time.Since(began).Seconds()
	now := processor()
	used := now.user + now.system - before.user - before.system
	b.ReportMetric(100*used.Seconds()/seconds, "%core")
	b.ReportMetric(100*(now.system-before.system).Seconds()/seconds, "%core-in-kernel")
	b.ReportMetric(float64(br.turns()-turns)/seconds, "turns/s")
	b.ReportMetric(float64(now.switches-before.switches)/float64(max(br.turns()-turns, 1)), "switches/turn")
	b.ReportMetric(float64(used.Nanoseconds())/float64(max(br.turns()-turns, 1)), "ns/turn")
}

func (b *Broker) turns() (n uint64) {
	for _, t := range b.Stats().Tenants {
		n += t.Turns
	}
	return n
}

// processor returns the processor time that this process has used, and how
// often its threads went to sleep.
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
