package audit

import (
	"cmp"
	"slices"
	"time"

	"gpusteward/collectors"
)

// An auditedGPU is an audit's record of a GPU.
type auditedGPU struct {
	uuid     string
	first    time.Time // when it was first looked at
	at       time.Time // of its latest device processes
	fresh    bool      // they are newer than in the last audit
	dark     bool      // its present processes are unknown
	listed   bool      // processes use it
	governed bool      // by the broker
	together float64   // seconds that tenants ran together
	ran      int       // processes that used it, by the driver's new samples

	strangers bool // processes without a tenant use it

	sampled, before time.Time // by the driver, and as of the last audit
	read            time.Time // of the last reading

	tenants   []*auditedTenant // in order
	names     map[string]*auditedTenant
	processes map[processKey]*auditedProcess
}

// begin begins an audit. Processes on a GPU that does not answer are kept: they
// are not new when it answers again.
func (g *auditedGPU) begin(b *Books) {
	for key, p := range g.processes {
		if !p.here && !g.dark {
			delete(g.processes, key)
		}
		p.here = false
	}
	for _, t := range g.tenants {
		t.begin(b, g.sampled.Sub(g.before))
	}
	g.fresh, g.listed, g.governed, g.strangers, g.ran, g.before = false, false, false, false, 0, g.sampled
}

// restart starts new windows after the clock was set back.
func (g *auditedGPU) restart(b *Books) {
	g.at, g.fresh = time.Time{}, true
	if g.first.After(b.Now) {
		g.first = b.Now
	}
	g.sampled, g.before, g.read = time.Time{}, time.Time{}, time.Time{}
	for i := range b.DeviceProcesses {
		if h := &b.DeviceProcesses[i]; h.UUID == g.uuid && !b.ahead(h.At) {
			g.at = h.At
			if !b.ahead(h.Sampled) {
				g.sampled = h.Sampled
			}
		}
	}
	for _, p := range g.processes {
		p.sampled, p.since = time.Time{}, time.Time{}
		if p.lapsed.After(b.Now) {
			p.lapsed = b.Now
		}
	}
	for _, t := range g.tenants {
		t.restart()
	}
}

func (g *auditedGPU) process(h *collectors.DeviceProcess) (p *auditedProcess, young bool) {
	key := processKey{h.Process.PID, h.Process.Start}
	p = g.processes[key]
	if young = p == nil; young {
		p = &auditedProcess{}
		g.processes[key] = p
	}
	p.here = true
	return p, young
}

func (g *auditedGPU) tenant(name string) *auditedTenant {
	t := g.names[name]
	if t == nil {
		t = &auditedTenant{name: name}
		at, _ := slices.BinarySearchFunc(g.tenants, name,
			func(t *auditedTenant, name string) int { return cmp.Compare(t.name, name) })
		g.tenants, g.names[name] = slices.Insert(g.tenants, at, t), t
	}
	return t
}

// forget forgets tenants that left, and those that are no longer in the policy.
func (g *auditedGPU) forget(b *Books) {
	g.tenants = slices.DeleteFunc(g.tenants, func(t *auditedTenant) bool {
		gone := len(t.works) == 0 && b.Now.Sub(t.seen) > b.tick.Of(auditForget) ||
			t.seen.Before(b.Now) && !slices.Contains(b.Names, t.name)
		if gone {
			delete(g.names, t.name)
		}
		return gone
	})
}

// sample takes a reading of all tenants if the driver has new samples.
func (g *auditedGPU) sample(b *Books) {
	if g.dark || g.sampled.Sub(g.read) < b.tick.Of(readingEvery) { // in the dark nothing was added up
		return
	}
	g.read = g.sampled
	for _, t := range g.tenants {
		t.sample(b, g.sampled)
	}
}

// measured reports whether the GPU time of the processes is known, and whether
// it ever will be: some drivers do not sample at all.
func (g *auditedGPU) measured(b *Books) (known, ever bool) {
	if g.sampled.IsZero() {
		return false, b.Now.Sub(g.first) < b.tick.Of(noSample)
	}
	return b.Now.Sub(g.sampled) <= b.tick.Of(oldSample), true
}
