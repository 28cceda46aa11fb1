package schedule

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// A crowdedHost has the same tenants on all GPUs. They always have work, in
// launches of a millisecond, and none waits for another.
type crowdedHost struct {
	*Scheduler
	seats  []*seat1
	random *rand.Rand
	now    time.Duration
	wake   time.Duration
	late   time.Duration // the longest that a process or the broker takes to notice
}

type seat1 struct {
	*tenant
	shown   State         // when the page was looked at last
	looks   time.Duration // at the page next; 0 when it changes
	says    time.Duration // when its message arrives; 0 it sent none
	read    State         // on which the message is based
	yielded uint64
}

func newCrowdedHost(gpus, tenants int) *crowdedHost {
	c := &crowdedHost{Scheduler: New(Config{}), random: rand.New(rand.NewPCG(3, 7)), wake: 1}
	for range gpus {
		g := c.Add()
		for i := range tenants {
			name := fmt.Sprint("t", i)
			g.Join(0, name, Share{})
			g.Want(0, name)
			c.seats = append(c.seats, &seat1{tenant: g.find(name)})
		}
	}
	return c
}

func (c *crowdedHost) delay() time.Duration {
	return 200*us + time.Duration(c.random.Int64N(int64(c.late)+1))
}

// run returns turns a second.
func (c *crowdedHost) run(d time.Duration) float64 {
	const step = 200 * us
	began, turns := c.now, c.turns
	for ; c.now < began+d; c.now += step {
		input := c.wake != 0 && c.now >= c.wake
		for _, s := range c.seats {
			if s.looks != 0 && s.looks <= c.now {
				s.looks = 0
				if s.read = s.state; s.read.Mode == Pause && s.read.Turn != s.yielded || s.read.Beside {
					s.says = c.now + c.delay()
				}
			}
			if s.says == 0 || s.says > c.now {
				continue
			}
			u := Usage{Launched: 1, Longest: ms}
			if input, s.says = true, 0; s.read.Mode != Pause {
				s.gpu.Report(c.now, s.name, u)
				s.looks = c.now + 10*ms
			} else if s.yielded = s.read.Turn; s.yielded == s.state.Turn {
				u.Solo, u.SoloTime = 1, ms
				s.gpu.Drained(c.now, s.name, u)
			} else { // as in the broker, the drain of another turn is none
				s.gpu.Report(c.now, s.name, u)
			}
		}
		if input {
			c.wake = c.Decide(c.now)
		}
		for _, s := range c.seats {
			if s.shown.Mode != s.state.Mode || s.shown.Turn != s.state.Turn || s.shown.Beside != s.state.Beside {
				s.shown = s.state
				if s.looks == 0 || s.looks > c.now+c.late {
					s.looks = c.now + c.delay()
				}
			}
		}
	}
	return float64(c.turns-turns) / d.Seconds()
}

// Drains that are late because the machine is busy cost a bounded number of
// turns, also where gangs are known. Gangs that are found by mistake end.
func TestBusyMachineMakesNoStorm(t *testing.T) {
	t.Parallel()
	for _, linked := range []bool{false, true} {
		c := newCrowdedHost(8, 16)
		for _, s := range c.seats {
			if linked {
				c.gpus[0].Link(0, s.gpu, s.name)
			}
		}
		for _, c.late = range []time.Duration{0, 3 * ms, 10 * ms, 30 * ms} {
			turns := c.run(500 * ms)
			t.Logf("linked %v, up to %v late: %.0f turns a second", linked, c.late, turns)
			if turns > 1500 {
				t.Errorf("linked %v, up to %v late: %.0f turns a second", linked, c.late, turns)
			}
		}
		if c.late = 0; linked {
			continue
		}
		if c.run(recent + time.Second); len(c.gpus[0].domain.gpus) > 1 {
			t.Errorf("%d GPUs are still decided together", len(c.gpus[0].domain.gpus))
		}
	}
}
