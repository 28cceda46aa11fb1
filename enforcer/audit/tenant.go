package audit

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"gpusteward/enforcer/policy"
)

// An auditedTenant is an audit's record of a tenant on a GPU.
type auditedTenant struct {
	name    string
	seen    time.Time
	refused time.Time // when one of its processes was last known to be refused a session because of others
	used
	looks    looks
	readings readings
	due      bool               // there is a new reading to judge
	judged   time.Time          // when charged time was, where there are no readings
	rules    [2]float64         // limit and bandwidth for which the windows hold
	row      bool               // the broker has books of it
	charged  float64            // seconds, by these books
	ran      int                // its processes that used the GPU, by the driver's new samples
	others   int                // the most processes of others that did, since the last reading
	works    []*auditedWorkload // by key
	nobody   auditedWorkload    // processes whose workload has no name yet: they count for the tenant

	drift, bus *float64 // of the last window
}

func (t *auditedTenant) begin(b *Books, sampled time.Duration) {
	t.row, t.due, t.ran = false, false, 0
	t.nobody.begin(b, sampled)
	for _, w := range t.works {
		w.begin(b, sampled)
	}
}

// restart starts new windows.
func (t *auditedTenant) restart() {
	t.looks, t.readings, t.drift, t.bus = t.looks[:0], t.readings[:0], nil, nil
	for _, w := range t.works {
		w.readings = w.readings[:0]
	}
}

func (t *auditedTenant) work(key string) *auditedWorkload {
	at, known := slices.BinarySearchFunc(t.works, key,
		func(w *auditedWorkload, key string) int { return cmp.Compare(w.key, key) })
	if !known {
		t.works = slices.Insert(t.works, at, &auditedWorkload{key: key})
	}
	return t.works[at]
}

// seated returns the number of processes with a session on the GPU.
func (t *auditedTenant) seated() (n int) {
	for _, w := range t.works {
		n += w.now.seated
	}
	return n + t.nobody.now.seated
}

// look takes over the broker's books. Without them nothing shows which
// processes have a session on the GPU; a session that did not mention the GPU
// is charged nothing.
func (t *auditedTenant) look(now time.Time, together float64) {
	if !t.row && t.seated() > 0 {
		t.restart()
		return
	}
	before := len(t.looks)
	// the broker's counters restarted
	if t.looks = t.looks.add(look{now, t.charged, together}); len(t.looks) < before {
		next := t.looks[0]
		t.restart()
		t.looks = t.looks.add(next)
	}
}

// sample takes a reading.
func (t *auditedTenant) sample(b *Books, at time.Time) {
	charged, together, ok := t.looks.at(at)
	if !ok {
		return
	}
	t.readings, t.due, t.others = t.readings.add(b.tick, reading{at, t.used, charged, together, t.others}), true, 0
	for _, w := range t.works {
		w.readings = w.readings.add(b.tick, reading{at: at, used: w.used})
	}
}

// judge finds the violations of a tenant's workloads on a GPU.
func (t *auditedTenant) judge(b *Books, g *auditedGPU, found *Audited) {
	q := b.Quota(t.name, g.uuid)
	timed := t.judgeTime(b, g, q, found)
	if g.fresh && !g.dark {
		t.judgeProcesses(g, found)
		t.judgeSlices(g, found)
		t.judgeMemory(g, q, found)
	}
	for _, w := range t.works {
		s := Subject{t.name, w.key}
		before, listed := found.Known[s]
		switch {
		case g.dark:
			found.Known[s] = false
		case w.now.all > 0:
			found.Known[s] = (before || !listed) && g.fresh && timed && !w.guilty && !w.now.partial
		}
	}
}

// forget forgets the workloads that left.
func (t *auditedTenant) forget(b *Books, crowded bool) {
	t.works = slices.DeleteFunc(t.works, func(w *auditedWorkload) bool {
		gone := b.Now.Sub(w.seen)
		return gone > b.tick.Of(auditForget) || crowded && gone > 0
	})
}

// judgeProcesses finds the processes that bypass the hook. It reports a process once
// that is certain. It also judges the processes of a workload together, by their GPU
// time, so that a process gains nothing by ending early.
func (t *auditedTenant) judgeProcesses(g *auditedGPU, found *Audited) {
	for _, w := range t.works {
		v := Violation{GPU: g.uuid, Objective: Unhooked, PIDs: w.now.sure}
		switch {
		case len(w.now.sure) > 0:
			v.Text = fmt.Sprintf("%d of the workload's %d processes on the GPU go around the hook.", len(v.PIDs),
				w.now.all)
			if w.around > tolerance {
				v.Text += fmt.Sprintf(" They had %s of the GPU's time.", percentage(w.around))
			}
		case len(w.now.without) > 0 && w.around > tolerance:
			v.PIDs = w.now.without
			v.Text = fmt.Sprintf("Processes of the workload that went around the hook, each briefly, had %s of "+
				"the GPU's time.", percentage(w.around))
		default:
			continue
		}
		v.Value = float64(len(v.PIDs))
		w.accuse(found, t, v)
	}
}

// judgeSlices finds the processes that gave themselves longer time slices than the driver's
// default while processes of others are on the GPU. The others then get less of the GPU,
// whatever the broker does.
func (t *auditedTenant) judgeSlices(g *auditedGPU, found *Audited) {
	if !slices.ContainsFunc(g.tenants, func(o *auditedTenant) bool { return o != t && o.present() }) && !g.strangers {
		return
	}
	for _, w := range t.works {
		if n := &w.now; len(n.sliced) > 0 {
			w.accuse(found, t, Violation{GPU: g.uuid, Objective: Sliced, Value: n.longest.Seconds(), PIDs: n.sliced,
				Text: fmt.Sprintf("%d of the workload's %d processes on the GPU gave themselves longer time slices by a "+
					"request to the driver, up to %v; others have less of the GPU for it.", len(n.sliced), n.all, n.longest)})
		}
	}
}

// present reports whether the tenant has processes on the GPU.
func (t *auditedTenant) present() bool {
	return t.nobody.now.all > 0 || slices.ContainsFunc(t.works, func(w *auditedWorkload) bool { return w.now.all > 0 })
}

// judgeMemory finds the workloads that have more memory than the books say, and
// those that take their tenant beyond its cap.
func (t *auditedTenant) judgeMemory(g *auditedGPU, q policy.Quota, found *Audited) {
	has := t.nobody.now.has()
	for _, w := range t.works {
		n := &w.now
		has += n.has()
		if len(n.under) > 0 {
			w.accuse(found, t, Violation{GPU: g.uuid, Objective: Underreported, Value: float64(n.had),
				Allowed: float64(n.reported), PIDs: n.under,
				Text: fmt.Sprintf("%d processes have %s of memory according to the driver, but no more than %s "+
					"according to their hooks, contexts included.", len(n.under), size(n.had), size(n.reported))})
		}
	}
	if q.Memory == 0 || has <= q.Memory {
		return
	}
	for _, w := range t.works {
		n := &w.now
		if n.unhooked+n.excess == 0 {
			continue
		}
		pids := slices.Concat(n.sure, n.under)
		w.accuse(found, t, Violation{GPU: g.uuid, Objective: OverMemory, Value: float64(has),
			Allowed: float64(q.Memory), PIDs: pids,
			Text: fmt.Sprintf("The tenant has %s of memory and may have %s; %s of this workload is in no books.",
				size(has), size(q.Memory), size(n.unhooked+n.excess))})
	}
}

// size formats bytes for people.
func size(bytes uint64) string { return fmt.Sprintf("%.2f GiB", float64(bytes)/(1<<30)) }
