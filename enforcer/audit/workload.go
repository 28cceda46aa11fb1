package audit

import (
	"maps"
	"slices"
	"time"

	"gpusteward/collectors"
	"gpusteward/internal/wire"
)

// An auditedWorkload is an audit's record of a tenant's workload on a GPU.
type auditedWorkload struct {
	key  string
	seen time.Time
	used
	readings readings
	minute   time.Time // start of the minute that spent covers
	spent    float64   // seconds of the GPU that its processes had after their sessions were gone
	guilty   bool      // by the last window: it is not clean until the next
	lied     bool      // in that window its hooks reported too little GPU time
	around   float64   // part of the GPU's time in that window that processes without a session used
	// audits with a violation, by objective; immutable once it was handed out
	counts map[string]uint64
	now    auditedProcesses
}

// auditedProcesses are a workload's processes on a GPU in one audit.
type auditedProcesses struct {
	all, hooked int
	seated      int     // of the hooked ones, those that said that they use the GPU
	lapsed      float64 // seconds of the GPU after their sessions were gone, by the driver's new samples
	partial     bool    // something about them is not known
	blind       bool    // it is not known how much memory one with a session has
	drift       float64
	committed   uint64 // bytes, by the books
	unhooked    uint64 // bytes of those without a session
	excess      uint64 // bytes above the books of those in under
	had         uint64 // bytes of those in under, by the driver
	reported    uint64 // bytes that their hooks say, contexts included

	longest time.Duration // time slice that one of those in sliced gave itself

	pids, without, under, sure []int    // sure: without a session for more than a reading
	sliced                     []int    // gave themselves a time slice
	accused                    []string // objectives
}

// has returns the bytes of the processes: those in the books, and those that
// should be.
func (n *auditedProcesses) has() uint64 { return n.committed + n.unhooked + n.excess }

// begin begins an audit; sampled is the time that the last audit's samples
// covered.
func (w *auditedWorkload) begin(b *Books, sampled time.Duration) {
	n := &w.now
	if past := b.Now.Sub(w.minute); past < 0 || past >= b.tick.Of(lapseEvery) {
		w.minute, w.spent = b.Now, 0
	}
	w.spent += min(n.lapsed, max(sampled.Seconds(), 0)) // the GPU's time passes for all of them at once
	*n = auditedProcesses{pids: n.pids[:0], without: n.without[:0], under: n.under[:0], sure: n.sure[:0],
		sliced: n.sliced[:0], accused: n.accused[:0]}
}

// enter counts a process.
func (w *auditedWorkload) enter(p *auditedProcess, h *collectors.DeviceProcess, g *auditedGPU) {
	n, pid := &w.now, h.Process.PID
	n.all++
	n.pids = append(n.pids, pid)
	n.partial = n.partial || !h.Known || p.status == isLapsed
	switch p.status {
	case isHooked:
		n.hooked++
		if p.seated {
			n.seated++
		}
		if p.seated || g.governed { // else nobody keeps books there
			w.compare(p, h, g.fresh)
		}
	case isUnhooked:
		n.without = append(n.without, pid)
		if p.seen < 2 { // it may have ended since the driver was asked, and its session with it
			n.partial = true
			break
		}
		n.sure = append(n.sure, pid)
		if h.Known {
			n.unhooked += h.Memory
		}
	}
}

// compare compares a process's memory with the books.
func (w *auditedWorkload) compare(p *auditedProcess, h *collectors.DeviceProcess, fresh bool) {
	n := &w.now
	committed, most := p.books()
	n.committed += committed
	if !h.Known {
		n.blind = true
		return
	}
	n.drift += float64(h.Memory) - float64(committed)
	if above := p.above(h, fresh); above > 0 {
		n.excess += above
		n.had += h.Memory
		n.reported += most + contextBytes
		n.under = append(n.under, h.Process.PID)
	}
}

// accuse adds a violation of a tenant's workload, and counts it.
func (w *auditedWorkload) accuse(found *Audited, t *auditedTenant, v Violation) {
	v.Subject = Subject{t.name, w.key}
	v.PIDs = slices.Sorted(slices.Values(v.PIDs))
	v.PIDs = slices.Clip(v.PIDs[:min(len(v.PIDs), maxPIDs)])
	found.Violations = append(found.Violations, v)
	if slices.Contains(w.now.accused, v.Objective) {
		return
	}
	w.now.accused = append(w.now.accused, v.Objective)
	counts := make(map[string]uint64, len(w.counts)+1)
	maps.Copy(counts, w.counts)
	counts[v.Objective]++
	w.counts = counts
}

// stats returns the workload's statistics; drift is storage for that number.
func (w *auditedWorkload) stats(tenant, gpu string, drift *float64) wire.WorkloadStats {
	n := &w.now
	s := wire.WorkloadStats{Tenant: tenant, Workload: w.key, GPU: gpu,
		Processes: n.all, Unhooked: len(n.without), Under: len(n.under), Violations: w.counts}
	if w.lied {
		s.Under = n.hooked
	}
	if n.hooked > 0 && !n.blind {
		*drift = n.drift
		s.Drift = drift
	}
	return s
}
