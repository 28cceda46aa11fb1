// Package broker simulates a broker and an enforcer: the books of the tenants on
// each GPU, the escalation of their violations, and the traces of their
// programs.
package broker

import (
	"iter"
	"slices"
	"time"

	"gpusteward/collectors/gpu/sim/scenarios"
)

// GPU has the books of the tenants on one GPU. Its methods do not lock.
type GPU struct {
	options  Options
	books    []*books
	steps    int64   // so far
	work     Work    // in this step
	handover float64 // seconds spent on switching between tenants
	together float64 // seconds with several tenants at once
}

// Options describe a GPU.
type Options struct {
	UUID      string
	Tenants   []scenarios.Tenant // of the host
	Training  *Training          // nil: no program trains
	Processes iter.Seq[*Process]
	Noise     func(channel uint64) float64 // from -1 to 1, new in each step
}

// Process is a process as the broker sees it.
type Process struct {
	PID      int
	Name     string
	Workload string
	Memory   uint64  // bytes
	Own      float64 // weight of its part of the work
	Share    float64 // the same, while a tenant's fault moves parts

	books  *books // of its tenant, or nobody; nil until known
	hooked bool   // it has a session with the broker
	trace  *trace // nil until it did something under the hook
}

// Work is what a GPU did in a step.
type Work struct {
	Busy   float64 // ratio of time with a kernel
	Weight float64 // of all processes
	DRAM   float64 // ratio of the memory's bandwidth
	PCIe   float64 // bytes per second in both directions
}

const (
	second = int64(time.Second / scenarios.Step) // in steps
	dt     = float64(scenarios.Step) / float64(time.Second)
)

// New returns a GPU with empty books.
func New(o Options) *GPU {
	g := &GPU{options: o}
	for i := range o.Tenants {
		g.books = append(g.books, &books{Tenant: &o.Tenants[i]})
	}
	return g
}

// nobody is the books of processes without a tenant.
var nobody = new(books)

// Enrol assigns each process to a tenant and gives it its part of the work.
// Faults of tenants move parts between processes, and leave the sum unchanged.
func (g *GPU) Enrol() {
	for _, b := range g.books {
		b.members, b.sessions, b.held = 0, 0, 0
		for _, s := range b.workloads {
			s.processes, s.unhooked, s.drift = 0, 0, 0
		}
	}
	for p := range g.options.Processes {
		if p.books == nil {
			p.books = g.booksOf(p.Workload)
		}
		if p.Share = p.Own; p.books != nobody {
			p.books.admit(p)
		}
	}
	for _, b := range g.books {
		if part := b.pressed(); part > 0 {
			g.press(b, part)
		}
	}
}

// booksOf returns the books of a workload's tenant, or nobody.
func (g *GPU) booksOf(workload string) *books {
	at := slices.IndexFunc(g.books, func(b *books) bool { return b.Owns(workload) })
	if at < 0 {
		return nobody
	}
	return g.books[at]
}

// Charge books a step. It reports whether a window ended, after which tenants
// may have other parts: Enrol gives them.
func (g *GPU) Charge(w Work) (audited bool) {
	if len(g.books) == 0 {
		return false
	}
	g.steps++
	g.work, audited = w, g.steps%auditEvery == 0
	for _, b := range g.books {
		b.used, b.charged = 0, 0
	}
	active := 0.0
	for p := range g.options.Processes {
		if p.Share == 0 {
			continue
		}
		part := w.Busy * p.Share / w.Weight
		active += part
		if p.books == nobody {
			continue
		}
		p.books.used += part
		if p.hooked {
			p.books.charged += part
		}
	}
	g.trace()
	for _, b := range g.books {
		if b.members > 0 {
			g.chargeTenant(b, active-b.used)
		}
		g.together += min(b.charged, max(active-b.used, 0)) / 2 * dt
		if audited {
			b.audit()
		}
	}
	return audited
}
