// Package incident makes incidents of what the driver's events and the kernel's
// lines are signs of: which device has which fault, how bad it is, who caused
// it and what to do. It defines what all of health speaks of: entities, events,
// severities and states.
package incident

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/host"
)

// Bounds of a Correlator.
const (
	mostOpen  = 256              // incidents
	late      = 2 * time.Minute  // for which an XID waits for its other source: the driver may be too stuck to be asked
	disagreed = 30 * time.Second // after which the other source missed it
)

// CorrelatorOptions are what a Correlator needs to know of its host. The functions
// must not wait; each may be nil.
type CorrelatorOptions struct {
	Boot    string                                           // the kernel's boot id
	Node    string                                           // name of the host
	GPU     func(host.PCI) (Entity, bool)                    // the GPU at an address, also one that is lost
	Process func(pid int, at time.Time) (host.Process, bool) // who had a PID
	Stays   func(uuid string) []collectors.Stay              // who is on a GPU, and who was within the last minutes
	Self    int                                              // the agent's own PID, which is to blame for nothing
	Foreign bool                                             // the PIDs are not those of the kernel's log: the agent is in another PID namespace
	Works   func(source string, e Entity) bool               // whether a source sees what happens to a GPU
}

// A Correlator makes incidents of observations: the same thing seen on the same
// device within 5 s, in several lines or by several sources, is one. It is
// pure: the time is handed in. It belongs to one goroutine.
//
// An incident is told at once, and again with the same ID when more is known
// of it. One that comes along with another names that in Follows, and is no
// incident of its own.
type Correlator struct {
	CorrelatorOptions
	since   time.Time
	open    []*openIncident // the one that was seen last comes last
	counter int             // of those that the kernel did not number
	losses  Losses
}

// Losses are what a Correlator has reason to believe was not seen.
type Losses struct {
	MissedByNVML   uint64 // XIDs that the kernel logged and the driver raised no event for
	MissedByKernel uint64 // XIDs that the driver raised an event for and the kernel did not log
	ClosedEarly    uint64 // incidents that might have been seen again, for want of room
}

// NewCorrelator returns an empty correlator. What happened before now is history:
// one source is enough for it.
func NewCorrelator(o CorrelatorOptions, now time.Time) *Correlator {
	if o.GPU == nil {
		o.GPU = func(host.PCI) (Entity, bool) { return Entity{}, false }
	}
	if o.Process == nil {
		o.Process = func(int, time.Time) (host.Process, bool) { return host.Process{}, false }
	}
	if o.Stays == nil {
		o.Stays = func(string) []collectors.Stay { return nil }
	}
	if o.Works == nil {
		o.Works = func(string, Entity) bool { return false }
	}
	return &Correlator{CorrelatorOptions: o, since: now}
}

// Losses returns what was counted so far.
func (c *Correlator) Losses() Losses { return c.losses }

// Add takes an observation, and returns the incidents that are new or of which
// something new is known.
func (c *Correlator) Add(s Observation, now time.Time) []Event {
	if at, ok := host.ParsePCI(s.Entity.Device); ok {
		if gpu, ok := c.GPU(at); ok {
			s.Entity = gpu
		}
	}
	var told []Event
	if s.What == whatDriverStack {
		c.trace(s)
		return c.tell(c.open, now, false)
	}
	i := c.take(s)
	if i == nil {
		if len(c.open) == mostOpen {
			told = c.tell(c.open[:1], now, true)
			if s.Time.Sub(c.open[0].Last) <= together {
				c.losses.ClosedEarly++
			}
			c.open = slices.Delete(c.open, 0, 1)
		}
		i = c.begin(s, now)
	}
	c.open = append(c.open, i)
	i.add(s)
	i.touched = now
	c.attribute(i)
	if i.Count == 1 {
		c.relate(i)
	}
	return append(told, c.tell(c.open, now, false)...)
}

// trace takes a line of a stack that leads through the driver: a task that
// hangs there is the driver's matter. Elsewhere a task waits for a disk or a
// file server, which is nobody's fault here; and a stack alone says nothing.
func (c *Correlator) trace(s Observation) {
	for _, i := range slices.Backward(c.open) {
		if driver := happenings()[whatHungDriverTask]; i.What == WhatHungTask && i.includes(s) && i.Check != driver.check {
			i.title, i.Class, i.Severity, i.Check, i.news = driver.text, driver.class, driver.severity, driver.check, true
			return
		}
	}
}

// take takes the incident that s is of out of those that are open; nil if it
// is of none.
func (c *Correlator) take(s Observation) *openIncident {
	k := keyOf(s)
	for n, i := range slices.Backward(c.open) {
		if i.key == k && i.includes(s) {
			c.open = slices.Delete(c.open, n, n+1)
			return i
		}
	}
	return nil
}

// Tick closes incidents that are over, and returns those of which something
// new is known. It is to be called each second or so.
func (c *Correlator) Tick(now time.Time) (told []Event) {
	c.open = slices.DeleteFunc(c.open, func(i *openIncident) bool {
		if now.Before(i.touched) {
			i.touched = now // the clock was set back
		}
		if i.began.After(now) {
			i.began = now
		}
		c.attribute(i)
		c.Compare(i, now)
		idle := now.Sub(i.touched)
		over := idle > together && (i.other() == "" || idle > late)
		told = append(told, c.tell([]*openIncident{i}, now, over)...)
		return over
	})
	return told
}

// compare counts an XID that one source saw and the other, which works, did
// not.
func (c *Correlator) Compare(i *openIncident, now time.Time) {
	other := i.other()
	if !i.fair || other == "" || now.Sub(i.began) < disagreed {
		return
	}
	i.fair = false // once is enough
	switch {
	case !c.Works(other, i.Entity):
	case other == SourceNVML:
		c.losses.MissedByNVML++
	default:
		c.losses.MissedByKernel++
	}
}

// begin opens an incident.
func (c *Correlator) begin(s Observation, now time.Time) *openIncident {
	i := &openIncident{key: keyOf(s), began: now, news: true, Event: Event{
		Version: EventVersion, Kind: KindIncident, Boot: c.Boot, Node: c.Node, Entity: s.Entity, What: s.What, Code: s.Code, First: s.Time, Last: s.Time,
	}}
	boot := cmp.Or(c.Boot, "boot")
	boot = boot[:min(len(boot), 8)]
	if s.Source == SourceKernel {
		i.ID = fmt.Sprintf("%s-%d", boot, s.Sequence)
	} else {
		c.counter++
		i.ID = fmt.Sprintf("%s-%x-%d", boot, s.Time.UnixMilli(), c.counter)
	}
	i.judge()
	i.fair = !s.Time.Before(c.since) && c.Works(SourceNVML, s.Entity) && c.Works(SourceKernel, s.Entity)
	return i
}

// tell returns those of which there is news. That only more of the same came
// is news when there is twice as much, and at the end.
func (c *Correlator) tell(all []*openIncident, now time.Time, end bool) (told []Event) {
	for _, i := range all {
		if i.news || i.Count >= 2*i.told || end && i.Count > i.told {
			i.news, i.told = false, i.Count
			e := i.Event
			e.Time, e.Message, e.Sources = now, i.message(), slices.Clone(i.Sources)
			told = append(told, e)
		}
	}
	return told
}
