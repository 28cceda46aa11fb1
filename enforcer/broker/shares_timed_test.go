//go:build timed

package broker

import (
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gpusteward/internal/fixture"
	"gpusteward/internal/wire"
)

// TestShares has two tenants that always want the GPU and report what they do. They get parts by their
// weights: a tenant that is owed time has the GPU alone at times. While the GPU is tried with both open, they
// have the same: the parts of all the time come out later then.
func TestShares(t *testing.T) {
	const weight = 3
	b := start(t, Options{Policy: book{quotas: map[string]Quota{"a": {Weight: weight}}}}, nil)
	var gpu device
	var all sync.WaitGroup
	var launches [2]int
	clients := []*client{dial(t, b, "a", 1), dial(t, b, "b", 1)}
	for i, c := range clients {
		all.Go(func() { launches[i] = c.saturate(&gpu) })
	}
	const due = weight / (weight + 1.)
	near := func(x, y, by float64) bool { return math.Abs(x/(x+y)-due) <= by }
	eventually(t, "they have had their parts of two seconds or more, in turns", func() bool {
		x, y, g := b.tenant("a"), b.tenant("b"), b.first()
		return x.ServedSeconds+y.ServedSeconds > 2 && y.Turns >= 10 && g.Preempted >= 10 &&
			near(x.ServedSeconds, y.ServedSeconds, 0.08) && near(x.ChargedSeconds, y.ChargedSeconds, 0.08)
	})
	for _, c := range clients {
		c.close()
	}
	all.Wait()
	fixture.If(t, !near(float64(launches[0]), float64(launches[1]), 0.1),
		"launches %v, not %.3f of them", launches, due)
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
