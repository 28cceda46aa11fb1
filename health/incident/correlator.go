// Package incident turns the driver's events and the kernel's lines into
// incidents: which device has which fault, how bad it is, who caused it and what
// to do. It defines what all of health speaks of: entities, events,
// severities and states.
//
// For one fault the driver raises one event, and the kernel logs one to three
// lines. The Correlator merges them. A fault that accompanies another one, as
// XID 45 does, is attached to that one. The kernel's log needs no NVML, and is
// read on from where the last agent stopped: nothing is missed while the agent is
// down, and nothing is reported twice. The XIDs are rows of data/xid.tsv, the
// messages of the kernel rows of data/kernel.tsv: the severity, who is to blame,
// what ends it, and what to do.
package incident

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/host"
)

// Bounds of a Correlator.
const (
	mostOpen  = 256              // incidents
	late      = 2 * time.Minute  // an XID waits so long for its other source: a stuck driver cannot be asked
	disagreed = 30 * time.Second // after this time the other source has missed it
)

// CorrelatorOptions describe the host to a Correlator. The functions must not
// wait; each may be nil.
type CorrelatorOptions struct {
	Boot    string                                           // the kernel's boot id
	Node    string                                           // name of the host
	GPU     func(host.PCI) (Entity, bool)                    // the GPU at an address, even if it is lost
	Port    func(address string) (Entity, bool)              // the only GPU below a PCIe port; may be nil
	Process func(pid int, at time.Time) (host.Process, bool) // the process that had a PID
	Stays   func(uuid string) []collectors.Stay              // processes on a GPU now and in the last minutes
	Self    int                                              // the agent's own PID, which is never to blame
	// the agent's PIDs are not those of the kernel's log: it is in another PID namespace
	Foreign bool
	Works   func(source string, e Entity) bool // whether a source sees the faults of a GPU
}

// A Correlator merges observations into incidents: observations of the same
// fault on the same device within 5 s are one incident, in several lines or by
// several sources. It is pure: the caller passes the time. It belongs to one
// goroutine.
//
// An incident is reported at once, and again with the same ID when more is
// known. An incident that accompanies another one names that in Follows, and
// does not count by itself.
type Correlator struct {
	CorrelatorOptions
	since   time.Time
	open    []*openIncident // in the order of the last observation
	counter int             // of incidents that the kernel did not number
	losses  Losses
}

// Losses count the events that a source probably missed.
type Losses struct {
	MissedByNVML   uint64 // XIDs that the kernel logged and the driver raised no event for
	MissedByKernel uint64 // XIDs that the driver raised an event for and the kernel did not log
	ClosedEarly    uint64 // incidents that were closed for lack of room and might have been observed again
}

// NewCorrelator returns an empty correlator. Events before now are history: one
// source is enough for them.
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

// Losses returns the counts so far.
func (c *Correlator) Losses() Losses { return c.losses }

// Add takes an observation, and returns the incidents that are new or have
// changed.
func (c *Correlator) Add(s Observation, now time.Time) []Event {
	if at, ok := host.ParsePCI(s.Entity.Device); ok {
		if gpu, ok := c.GPU(at); ok {
			s.Entity = gpu
		} else if gpu, ok := c.below(s.Entity.Device); ok {
			s.Entity = gpu
		} else if !strings.Contains(s.Entity.Device, ".") {
			s.Entity.Device += ".0" // XIDs lack the function, other lines have it
		}
	}
	var told []Event
	switch s.What {
	case whatDriverStack:
		c.trace(s)
		return c.tell(c.open, now, false)
	case whatHardwarePart:
		c.name(s)
		return c.tell(c.open, now, false)
	}
	i := c.take(s)
	if i == nil {
		if len(c.open) >= mostOpen {
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
	c.part(i, now)
	if i.Count == 1 || i.parts() {
		c.relate(i)
	}
	return append(told, c.tell(c.open, now, false)...)
}

// below returns the GPU below a port.
func (c *Correlator) below(port string) (Entity, bool) {
	if c.Port == nil {
		return Entity{}, false
	}
	return c.Port(port)
}

// trace takes a line of a stack that leads through the driver: a task that
// hangs there is a fault of the driver. Elsewhere a task waits for a disk or a
// file server, which is no fault of a GPU. A stack without a task says nothing.
func (c *Correlator) trace(s Observation) {
	for _, i := range slices.Backward(c.open) {
		if driver := happenings()[whatDriverStack]; i.What == WhatHungTask && i.includes(s) &&
			i.Check != driver.check {
			i.title, i.Class, i.Severity, i.Check, i.Action, i.news = driver.text, driver.class, driver.severity,
				driver.check, driver.action, true
			return
		}
	}
}

// name takes a line that names the part which a record of the firmware is about,
// such as a memory module.
func (c *Correlator) name(s Observation) {
	for _, what := range []string{whatHardware, whatCorrected} {
		for _, i := range slices.Backward(c.open) {
			if i.What == what && i.includes(s) && slices.Contains(i.records, recordOf(s.Text)) {
				i.names(s.Part)
				return
			}
		}
	}
}

// take removes the incident that s belongs to from the open ones and returns
// it; nil if there is none.
func (c *Correlator) take(s Observation) *openIncident {
	k := keyOf(s)
	for n, i := range slices.Backward(c.open) {
		switch {
		case i.key != k || !i.includes(s) || i.isElsewhere(s):
		case i.turns(s):
			return nil // what came before that is over
		default:
			c.open = slices.Delete(c.open, n, n+1)
			return i
		}
	}
	return nil
}

// part gives each owner of a channel who is known to be of another workload an
// incident of its own: programs of two tenants can fail at the same time.
func (c *Correlator) part(i *openIncident, now time.Time) {
	if !i.sure || i.Workload == "" || !i.tenants() || len(i.mentions) < 2 {
		return
	}
	stays := c.Stays(i.Entity.UUID)
	for n := len(i.mentions) - 1; n >= 0; n-- {
		m := i.mentions[n]
		p, ok := c.culprit(stays, m)
		if !ok || !m.Owned || p.Workload == nil || p.Workload.Key == i.Workload {
			continue
		}
		at := slices.IndexFunc(c.open, func(o *openIncident) bool {
			return o.key == i.key && o.Workload == p.Workload.Key && o.includes(m)
		})
		if at < 0 && len(c.open) >= mostOpen {
			return
		}
		own := c.begin(m, now)
		own.ID += fmt.Sprintf("-%d", m.PID) // the line may have begun the other one
		if at >= 0 {
			own = c.open[at]
			c.open = slices.Delete(c.open, at, at+1)
		}
		c.open = append(c.open, own)
		own.add(m)
		own.touched = now
		i.mentions, i.Count = slices.Delete(i.mentions, n, n+1), max(1, i.Count-1)
		i.fair, own.fair = false, false // the driver's event names no process
		if i.text == m.Text {
			i.text, i.news = i.mentions[0].Text, true
		}
		if c.attribute(own); own.Count == 1 {
			c.relate(own)
		}
	}
}

// Tick closes incidents that are over, and returns those that have changed. The
// caller calls it about once a second.
func (c *Correlator) Tick(now time.Time) (told []Event) {
	for _, i := range slices.Clone(c.open) {
		c.attribute(i)
		c.part(i, now)
		if i.parts() {
			c.relate(i)
		}
	}
	c.open = slices.DeleteFunc(c.open, func(i *openIncident) bool {
		if now.Before(i.touched) {
			i.touched = now // the clock was set back
		}
		if i.began.After(now) {
			i.began = now
		}
		c.Compare(i, now)
		idle := now.Sub(i.touched)
		over := idle > together && (i.other() == "" || idle > late)
		told = append(told, c.tell([]*openIncident{i}, now, over)...)
		return over
	})
	return told
}

// Compare counts an XID that one source saw and the other source, although it
// works, did not see.
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
		Version: EventVersion, Kind: KindIncident, Boot: c.Boot, Node: c.Node, Entity: s.Entity, What: s.What,
		Code: s.Code, First: s.Time, Last: s.Time,
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

// tell returns the incidents that have news. Repetition alone is news when the
// count has doubled, and at the end.
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
