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
	Workload string `json:"workload,omitempty"` // the owner of the process
}

// Limits for the processes that were on a GPU at a fault.
const (
	lingers      = 5 * time.Second // the driver may log a fault of a process so long after it has left
	exact        = time.Second     // the precision of the start of a process
	mostPresent  = 16              // processes that an event lists
	mostMentions = 8               // processes of one incident
)

// wasThere reports whether a process may have been on the GPU at a time.
func wasThere(s collectors.Stay, at time.Time) bool {
	return at.After(s.After) && (s.Until.IsZero() || !at.After(s.Until.Add(lingers))) &&
		!s.Process.Began.After(at.Add(exact))
}

// attribute looks for the workload of the process until it is known. An XID or
// SXid belongs to a process only if that process was on the GPU. In a line the
// driver writes the process that owns the channel if it knows that process.
// Otherwise it writes the process that happens to be in the driver, such as the
// agent, which asks for readings, or another program on the same GPU.
func (c *Correlator) attribute(i *openIncident) {
	switch {
	case i.Workload != "" && (i.sure || len(i.mentions) == 0 || !i.mentions[0].Owned):
	case i.isCode():
		stays := c.Stays(i.Entity.UUID)
		owned := len(i.mentions) > 0 && i.mentions[0].Owned
		if owned && !i.sure && i.PID != 0 { // so far one was blamed who was only in the driver
			i.PID, i.Comm, i.Workload, i.Owner, i.news = 0, "", "", "", true
		}
		for _, m := range i.mentions {
			if owned && !m.Owned {
				break
			}
			if p, ok := c.culprit(stays, m); ok {
				i.sure = m.Owned
				i.blame(p, Clean(m.Comm, longestComm))
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

// culprit returns the process that a line names; false if that process was not
// on the GPU then, or if another process has its PID now.
func (c *Correlator) culprit(stays []collectors.Stay, m Observation) (host.Process, bool) {
	if m.PID == c.Self || c.Foreign {
		return host.Process{}, false
	}
	for _, s := range slices.Backward(stays) {
		if s.Process.PID == m.PID && wasThere(s, m.Time) {
			p, known := c.Process(m.PID, m.Time)
			if !known || s.Process.Start == 0 {
				p = s.Process
			}
			if p.Start == s.Process.Start && s.Kind == collectors.KindServer {
				return served(p, stays, m.Time)
			}
			return p, p.Start == s.Process.Start
		}
	}
	return host.Process{}, false
}

// served returns an MPS server as a process of its clients' workload: the driver
// names the server for a fault of each client. It is false if the clients at the
// time were of several workloads.
func served(server host.Process, stays []collectors.Stay, at time.Time) (host.Process, bool) {
	of := map[string][]host.Process{}
	for _, s := range stays {
		if wasThere(s, at) {
			of[s.Kind] = append(of[s.Kind], s.Process)
		}
	}
	server.Workload = collectors.Serves(server, of[collectors.KindServer], of[collectors.KindClient])
	return server, server.Workload != nil
}

// present returns the processes that were on a GPU at a time, without the agent.
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

// blame makes p the process of i. If p has no name, comm is its name.
func (i *openIncident) blame(p host.Process, comm string) {
	comm = cmp.Or(Clean(p.Comm, longestComm), comm)
	workload, owner := "", ""
	if p.Workload != nil {
		workload, owner = p.Workload.Key, p.Owner()
	}
	if i.PID != p.PID || i.Comm != comm || i.Workload != workload {
		i.PID, i.Comm, i.Present, i.news = p.PID, comm, nil, true
	}
	i.Workload, i.Owner = workload, owner
}

// meet notes the processes on the GPU if the cause of i is unknown.
func (i *openIncident) meet(present []Holder) {
	if i.wanted() && !slices.Equal(present, i.Present) {
		i.Present, i.news = present, true
	}
}

// wanted reports whether the process that caused i is of interest, or those
// that it harmed: in a MIG instance, only its processes. No process causes a
// fault of the hardware: the line names one that was in the driver, such as
// nvidia-smi.
func (i *openIncident) wanted() bool {
	x := XIDs()[i.Code]
	return len(i.mentions) > 0 && !x.Hardware() || x.Tenant() || i.GI != ""
}

// whose says that the process that caused i is unknown, if one did, and which
// processes were on the GPU.
func (i *openIncident) whose() string {
	if i.What != WhatXID || i.PID != 0 || !i.wanted() {
		return ""
	}
	text := ", by an unknown process"
	if XIDs()[i.Code].Hardware() {
		text = ""
	}
	for n, h := range i.Present {
		between := ", "
		if n == 0 {
			between = "; on the GPU: "
		}
		whose := ""
		if i.GI != "" && h.Workload != "" { // a GPU with instances has several owners
			whose = " of " + h.Workload
		}
		text += fmt.Sprintf("%s%s (pid %d)%s", between, cmp.Or(h.Comm, "unknown"), h.PID, whose)
	}
	return text
}
