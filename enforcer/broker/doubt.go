package broker

import (
	"errors"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"gpusteward/internal/wire"
)

// doubt knows when the broker could not serve all processes, or was not there: they get the benefit
// of the doubt. Any goroutine may use it.
type doubt struct {
	*common
	starved atomic.Int64 // clock: when it last lacked a resource to serve a process; 0 never
	back    atomic.Int64 // clock: when it last started, or resumed after standing still
	said    seldom       // that it starves
}

// all is Broker.Doubtful.
func (d *doubt) all() bool {
	now := d.clock.now()
	return d.starves(now) || d.lately(time.Duration(d.back.Load()), now)
}

// starves reports whether the broker starved recently.
func (d *doubt) starves(now time.Duration) bool {
	return d.lately(time.Duration(d.starved.Load()), now)
}

// starve records that the broker lacked a resource to serve a process. It does
// not log each time.
func (d *doubt) starve(err error) {
	d.counters.starved.Add(1)
	d.starved.Store(int64(d.clock.now()))
	if d.said.again(d.common) {
		d.log.Error("the broker cannot serve all clients: meanwhile no process counts as going around the "+
			"hook, and the enforcer only warns", "err", err)
	}
}

// want refuses a message that the broker lacks a resource to answer.
func (d *doubt) want(err error) *refusal {
	if starving(err) {
		d.starve(err)
	}
	return refuse(wire.CodeLimit, err)
}

// starving reports whether an error is a lack of descriptors or memory.
func starving(err error) bool {
	for _, e := range []error{unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.ENOBUFS, unix.ETOOMANYREFS} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// A seldom is when something was last logged that processes can cause any number of times.
type seldom struct{ at atomic.Int64 } // clock

// again reports whether it is to be logged now.
func (l *seldom) again(c *common) bool {
	now, was := c.clock.now(), l.at.Load()
	return !c.lately(time.Duration(was), now) && l.at.CompareAndSwap(was, int64(now))
}
