package incident

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/host"
)

// A Holder is a process that was on a GPU.
type Holder struct {
	PID      int    `json:"pid"`
	Comm     string `json:"comm,omitempty"`
	Workload string `json:"workload,omitempty"` // whose the process is
}

// Of who was on a GPU when something happened to it.
const (
	lingers      = 5 * time.Second // after a process has left, the driver may still log what it did
	exact        = time.Second     // to which it is known when a process began
	mostPresent  = 16              // that an event lists
	mostMentions = 8               // processes of one incident
)

// wasThere reports whether a process may have been on the GPU at a time.
func wasThere(s collectors.Stay, at time.Time) bool {
	return at.After(s.After) && (s.Until.IsZero() || !at.After(s.Until.Add(lingers))) && !s.Process.Began.After(at.Add(exact))
}

// A mention is a process that a line of the kernel names, and when. The driver
// writes the process that the channel belongs to where it knows that, and
// else whoever happens to be in the driver, such as the agent, which asks for
// readings there.
type mention struct {
	pid  int
	comm string
	time time.Time
}

// attribute finds out whose the process is, for as long as nobody knows. An
// XID or SXid is a process's only if that was on the GPU.
func (c *Correlator) attribute(i *openIncident) {
	switch {
	case i.Workload != "":
	case i.isCode():
		stays := c.Stays(i.Entity.UUID)
		for _, m := range i.mentions {
			if p, ok := c.culprit(stays, m); ok {
				i.blame(p, m.comm)
				return
			}
		}
		i.meet(c.present(stays, i.First))
	case i.PID > 0:
		if p, ok := c.Process(i.PID, i.First); ok {
			i.blame(p, i.Comm)
		}
	}
}

// culprit returns the process that a line names; false where that was not on
// the GPU then, or another has its PID by now.
func (c *Correlator) culprit(stays []collectors.Stay, m mention) (host.Process, bool) {
	if m.pid == c.Self || c.Foreign {
		return host.Process{}, false
	}
	for _, s := range slices.Backward(stays) {
		if s.Process.PID == m.pid && wasThere(s, m.time) {
			p, known := c.Process(m.pid, m.time)
			if !known || s.Process.Start == 0 {
				return s.Process, true
			}
			return p, p.Start == s.Process.Start
		}
	}
	return host.Process{}, false
}

// present returns who but the agent was on a GPU at a time.
func (c *Correlator) present(stays []collectors.Stay, at time.Time) (all []Holder) {
	for _, s := range stays {
		if wasThere(s, at) && s.Process.PID != c.Self && len(all) < mostPresent {
			h := Holder{PID: s.Process.PID, Comm: Clean(s.Process.Comm, longestComm)}
			if s.Process.Workload != nil {
				h.Workload = s.Process.Workload.Key
			}
			all = append(all, h)
		}
	}
	return all
}

// blame makes p the process of i; comm is what it is called where p does not
// say.
func (i *openIncident) blame(p host.Process, comm string) {
	comm = cmp.Or(Clean(p.Comm, longestComm), comm)
	if i.PID != p.PID || i.Comm != comm || p.Workload != nil {
		i.PID, i.Comm, i.Present, i.news = p.PID, comm, nil, true
	}
	if p.Workload != nil {
		i.Workload, i.Owner = p.Workload.Key, p.Owner()
	}
}

// meet notes who was there, where nobody knows whose doing i was.
func (i *openIncident) meet(present []Holder) {
	if i.wanted() && !slices.Equal(present, i.Present) {
		i.Present, i.news = present, true
	}
}

// wanted reports whether somebody will ask whose doing i was.
func (i *openIncident) wanted() bool { return len(i.mentions) > 0 || XIDs()[i.Code].Tenant() }

// whose says that nobody knows whose doing i was, and who was there.
func (i *openIncident) whose() string {
	if i.What != WhatXID || i.PID != 0 || !i.wanted() {
		return ""
	}
	text := ", by an unknown process"
	for n, h := range i.Present {
		between := ", "
		if n == 0 {
			between = "; on the GPU: "
		}
		text += fmt.Sprintf("%s%s (pid %d)", between, cmp.Or(h.Comm, "unknown"), h.PID)
	}
	return text
}
