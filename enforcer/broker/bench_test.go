package broker

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gpusteward/internal/fixture"
	"gpusteward/internal/wire"
)

// TestLoad is the load of BenchmarkLoad, in a process of its own, and not a test. It opens GS_TENANTS
// sessions of as many tenants on each of GS_GPUS GPUs; see saturate.
func TestLoad(t *testing.T) {
	path := os.Getenv("GS_LOAD")
	if path == "" {
		t.Skip("run by BenchmarkLoad")
	}
	number := func(name string) int { return fixture.Value(strconv.Atoi(os.Getenv(name)))(t) }
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

// BenchmarkLoad measures the broker's processor time under TestLoad for 20 s, independent of b.N. The load is
// a process of its own, so the time is the broker's alone. Either all tenants have the same part, which they
// have without the broker too, or the first one of each GPU has three times as much, so that they take turns.
func BenchmarkLoad(b *testing.B) {
	for _, c := range []struct {
		gpus, tenants int
		weight        float64
		name          string
	}{{8, 16, 3, "owed"}, {8, 16, 1, "equal"}, {1, 3, 3, "owed"}, {1, 3, 1, "equal"}, {1, 1, 1, "alone"}} {
		b.Run(fmt.Sprintf("%dx%d/%s", c.gpus, c.tenants, c.name), func(b *testing.B) { load(b, c.gpus, c.tenants, c.weight) })
	}
}

func load(b *testing.B, gpus, tenants int, weight float64) {
	br := start(b, Options{Policy: book{quotas: map[string]Quota{"t0": {Weight: weight}}}}, nil)
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

// processor returns this process's processor time, and how often its threads went to sleep.
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

// A device is a GPU that is divided equally among all that run at once.
type device struct{ running atomic.Int32 }

// saturate behaves as the hook does in a program that always has work for the first GPU, in launches of a
// millisecond, until the session ends. It returns the number of launches.
func (c *client) saturate(d *device) (launches int) {
	const launch = time.Millisecond
	var yielded uint64
	var done, solo, busy time.Duration // since the last report, in total, alone and open
	running, alone, open := false, false, false
	seen := time.Now()
	told, pinged := seen, seen
	tell := func(t wire.Type, why wire.Why, turn uint64) []byte {
		n := done / launch
		u := wire.Usage{Why: why, Turn: turn, Last: uint64(newClock().now()), Launched: uint64(n),
			Longest: uint64(launch), Busy: uint64(busy),
			Solo: uint64(solo / launch), SoloTime: uint64(solo / launch * launch)}
		launches += int(n)
		done, solo, busy, told = done-n*launch, solo%launch, 0, seen
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
		if running && alone && !open {
			solo += now.Sub(seen)
		}
		if open {
			busy += now.Sub(seen)
		}
		seen = now
		alone = turn.Flags&wire.Beside == 0
		runs := turn.Mode == wire.ModeOpen || turn.Mode == wire.ModeRun
		if runs && !running {
			d.running.Add(1)
		} else if running && !runs {
			d.running.Add(-1)
		}
		running = runs
		if opens := turn.Mode == wire.ModeOpen; opens != open {
			open = opens
			frame = tell(wire.TypeUsage, 0, turn.Turn)
			continue
		}
		rest, report := time.Second, 10*time.Millisecond
		if open {
			report = time.Second
		}
		switch {
		case turn.Mode == wire.ModeKill:
			return launches
		case turn.Mode == wire.ModePause && turn.Turn != yielded:
			yielded = turn.Turn
			frame = tell(wire.TypeYield, wire.WhyDrained, turn.Turn)
			continue
		case !alone || open:
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
