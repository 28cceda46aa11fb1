// Package audit compares the broker's books with the driver's, and counts
// whether tenants got what they are guaranteed. It is pure.
//
// An audit looks for processes on a GPU without a session, for memory and SM
// time that the driver counts beyond the books, and for tenants beyond a limit.
// The driver's samples are whole percents of a sixth of a second, read every 5
// s, so time is judged over at least 10 s (window.go). Processes without a
// session that end before the audit is sure of them are judged together, by the
// time of their workload (workload.go). QoS counts the windows in which a tenant
// wanted what it is guaranteed, and those in which it did not get it; idle
// tenants and those that the escalation holds miss nothing (qos.go).
//
// What the enforcer itself holds back is passed in as Holds, each with its
// cause, and excuses what the cause explains (hold.go).
//
// Invariants:
//
//   - A fact that cannot be known is neither a violation nor clean.
//   - A process gets time to connect, and to connect again, before it counts as
//     unhooked.
//   - What the driver may wrongly count for a process because others run beside
//     it is no violation.
//
// Begin with Books in books.go, which is the input, and Look in this file.
package audit

import (
	"cmp"
	"slices"
	"time"

	"gpusteward/collectors"
	"gpusteward/enforcer/policy"
	"gpusteward/internal/wire"
)

// Tolerances of an audit. Times are at a tick of a second.
const (
	// contextBytes is the GPU memory that a process may have beyond what its
	// hook reports: contexts, kernels' code and stacks are not charged. A
	// context on an H100 takes about half of it.
	contextBytes = 1 << 30

	// part of the GPU's time: the error of the driver's samples, which are
	// whole percents of sixths of a second
	tolerance        = 0.05
	chargedTolerance = 0.02 // by which charges may exceed a limit: a long kernel is not interrupted
	// times the charge: what the driver may count beyond it for each process of
	// others that runs at the same time
	company = 2
	trace   = 0.01 // less of the GPU's time than this is nobody's fault

	oldDeviceProcess = 5 * time.Second  // an older one says nothing about now
	lapse            = 10 * time.Second // in which a process that lost its session may reconnect or end
	lapseEvery       = time.Minute      // in each, all lapses of a process together; or so much GPU time of a workload
	refusal          = time.Minute      // for which a process that got no session because of others excuses its tenant
	oldSample        = 20 * time.Second // if it is older, the driver stopped sampling
	noSample         = 15 * time.Second // without one for so long, the driver never samples
	chargedEvery     = 5 * time.Second  // how often charged time is judged where it never does

	auditForget  = 10 * time.Minute // for tenants and workloads that left
	maxWorkloads = 4096             // more are forgotten as soon as they leave
	maxPIDs      = 16               // of a violation
	excesses     = 10               // readings of memory in a row that must be above the books
)

// An Audit compares the processes that the driver and the kernel report with
// the broker's books and the quotas. It is pure; its zero value is ready. One
// goroutine may use it.
type Audit struct {
	Tick Tick // from one look to the next

	began    time.Time     // of the first audit
	age      time.Duration // since then
	gpus     map[string]*auditedGPU
	sessions map[int]Session // by PID
	earlier  map[int]Session // as of the last audit
	last     Audited         // how long its lists were
}

// Audited is the result of one audit.
type Audited struct {
	// Violations are the evidence, by tenant, workload, GPU and objective. A
	// violation of GPU time is reported once for each window of the driver's
	// samples, about every 5 s.
	Violations []Violation

	// Known has the workloads on GPUs now. True: this audit looked at
	// everything that can be known of the workload. False: the absence of a
	// violation does not mean that there was none.
	Known map[Subject]bool

	// Refused has the tenants of which a process was Starved, now or within the windows. A use beyond
	// the tenant's quota may be that process's, which nobody could restrain.
	Refused map[string]bool

	// Partial means that nothing is known of some GPU: a subject that is not in
	// Known may be there.
	Partial bool

	Quotas    []wire.QuotaStats // for each tenant of the policy and GPU, without QoS and Holders
	Workloads []wire.WorkloadStats
}

// Look audits the books.
func (a *Audit) Look(b Books) Audited {
	if a.gpus == nil {
		a.gpus, a.began = map[string]*auditedGPU{}, b.Now
		a.sessions, a.earlier = map[int]Session{}, map[int]Session{}
	}
	a.sessions, a.earlier = a.earlier, a.sessions
	clear(a.sessions)
	a.age = max(b.Now.Sub(a.began), 0) // by the monotonic clock
	b.Now = b.Now.Round(0)             // the driver's times are the wall clock's
	b.tick = a.Tick
	b.sessions(a.sessions)
	found := Audited{Known: make(map[Subject]bool, len(a.last.Known)), Refused: map[string]bool{}}

	a.open(&b)
	for i := range b.GPUs {
		if g := a.gpus[b.GPUs[i].GPU]; g != nil {
			g.together, g.governed = b.GPUs[i].TogetherSeconds, true
		}
	}
	for i := range b.DeviceProcesses {
		a.enter(&b, &b.DeviceProcesses[i])
	}
	a.read(&b)
	crowded := len(a.last.Workloads) > maxWorkloads
	for _, silent := range b.Silent {
		found.Partial = found.Partial || silent
	}
	for uuid, g := range a.gpus {
		found.Partial = found.Partial || g.dark
		g.sample(&b)
		for _, t := range g.tenants {
			if b.Moving[uuid] {
				t.restart()
			}
			t.judge(&b, g, &found)
			if !t.refused.IsZero() && b.Now.Sub(t.refused) < b.tick.Of(refusal) {
				found.Refused[t.name] = true
			}
			t.forget(&b, crowded)
		}
		g.forget(&b)
		if len(g.tenants) == 0 && b.Now.Sub(g.at) > b.tick.Of(auditForget) {
			delete(a.gpus, uuid)
		}
	}
	a.list(&b, &found)
	a.last = found
	return found
}

// open begins an audit of each GPU.
func (a *Audit) open(b *Books) {
	for _, g := range a.gpus {
		g.begin(b)
	}
	for i := range b.DeviceProcesses {
		h := &b.DeviceProcesses[i]
		g := a.gpus[h.UUID]
		if g == nil {
			g = &auditedGPU{uuid: h.UUID, first: b.Now, names: map[string]*auditedTenant{},
				processes: map[processKey]*auditedProcess{}}
			a.gpus[h.UUID] = g
		}
		g.listed = true
		if h.At.After(g.at) {
			g.at, g.fresh = h.At, true
		}
		if h.Sampled.After(g.sampled) {
			g.sampled = h.Sampled
		}
	}
	for _, g := range a.gpus {
		if b.ahead(g.at) || b.ahead(g.sampled) { // the clock was set back
			g.restart(b)
		}
		g.dark = b.Silent[g.uuid] || g.listed && b.Now.Sub(g.at) > b.tick.Of(oldDeviceProcess)
	}
	for i := range b.Sessions {
		for _, s := range b.Sessions[i].GPUs {
			// the books have memory there, and the driver lists nobody
			if g := a.gpus[s.UUID]; g != nil && !g.listed && s.Committed > 0 {
				g.dark = true
			}
		}
	}
}

// enter records a device process.
func (a *Audit) enter(b *Books, h *collectors.DeviceProcess) {
	g := a.gpus[h.UUID]
	if h.Unknown || h.Kind == "server" || g.dark {
		return
	}
	p, young := g.process(h)
	s, hooked := session(a.sessions, h)
	tenant, governed := s.Tenant, s.Tenant != policy.DefaultTenant && s.Tenant != ""
	if !hooked {
		tenant, governed = b.Tenant(*h)
	}
	hold := b.Holds.OfProcess(h.Process.PID, tenant)
	excused := hold.Has(Starved) || hold.Has(NoSession) && p.status != isUnhooked
	if young {
		_, had := session(a.earlier, h)
		p.status, p.followed, p.gone = a.first(h, hooked, had || excused || hold.Has(Filled)), b.Now, b.Now
		if p.status == isLapsed {
			p.lapsed = b.Now
		}
	} else {
		p.follow(b, hooked, excused)
	}
	if g.fresh {
		p.seen++
	}
	sum, after := p.sum(g, h, young)
	ran := 0
	if sum.sm() > 0 {
		ran = 1
	}
	g.ran += ran
	if !governed || tenant == policy.DefaultTenant {
		g.strangers = true
		return
	}
	t := g.tenant(tenant)
	t.seen, t.ran = b.Now, t.ran+ran
	if hold.Has(Starved) {
		t.refused = b.Now
	}
	t.add(sum)
	w := &t.nobody
	if h.Process.Workload != nil {
		w = t.work(h.Process.Workload.Key)
		w.seen = b.Now
	}
	w.add(sum)
	w.now.lapsed += after
	if p.status == isLapsed && h.At.After(p.gone) && w.spent >= b.tick.Of(lapse).Seconds() {
		p.status = isUnhooked
	}
	if p.status == isHooked {
		committed, seated := s.on(h.UUID)
		p.remember(committed, seated)
		if slice := s.slice(h.UUID); slice > 0 {
			w.now.sliced, w.now.longest = append(w.now.sliced, h.Process.PID), max(w.now.longest, slice)
		}
	}
	w.enter(p, h, g)
}

// first returns the hook status of a new process; had says that it had a
// session or was refused one. A process that is older than the audit may not
// have found the new broker yet.
func (a *Audit) first(h *collectors.DeviceProcess, hooked, had bool) hookStatus {
	switch {
	case hooked:
		return isHooked
	case had || a.age < a.Tick.Of(lapse) && !h.Process.Began.After(a.began):
		return isLapsed
	}
	return isUnhooked
}

// read takes over the tenants' GPU time from the broker's books.
func (a *Audit) read(b *Books) {
	for i := range b.Tenants {
		row := &b.Tenants[i]
		if g := a.gpus[row.GPU]; g != nil && row.Tenant != policy.DefaultTenant {
			t := g.tenant(row.Tenant)
			t.charged, t.row, t.seen = row.ChargedSeconds, true, b.Now
		}
	}
	for _, g := range a.gpus {
		for _, t := range g.tenants {
			t.look(b.Now, g.together)
			t.others = max(t.others, g.ran-t.ran)
		}
	}
}

// list makes the statistics, in order.
func (a *Audit) list(b *Books, found *Audited) {
	slices.SortFunc(found.Violations, func(x, y Violation) int {
		return cmp.Or(cmp.Compare(x.Tenant, y.Tenant), cmp.Compare(x.Workload, y.Workload), cmp.Compare(x.GPU, y.GPU),
			cmp.Compare(x.Objective, y.Objective), cmp.Compare(x.Text, y.Text))
	})
	uuids := make([]string, 0, len(a.gpus)+len(b.GPUs))
	for uuid := range a.gpus {
		uuids = append(uuids, uuid)
	}
	for i := range b.GPUs {
		uuids = append(uuids, b.GPUs[i].GPU)
	}
	slices.Sort(uuids)
	uuids = slices.Compact(uuids)
	found.Quotas = make([]wire.QuotaStats, 0, len(b.Names)*len(uuids))
	found.Workloads = make([]wire.WorkloadStats, 0, len(a.last.Workloads))
	var drifts []float64
	for _, uuid := range uuids {
		g := a.gpus[uuid]
		for _, name := range b.Names {
			if name == policy.DefaultTenant {
				continue
			}
			q := b.Quota(name, uuid)
			q.Bandwidth = part(q.Bandwidth)
			row := wire.QuotaStats{Tenant: name, GPU: uuid, Quota: q}
			if g != nil {
				if t := g.names[name]; t != nil {
					row.Charge, row.Bus = t.drift, t.bus
				}
			}
			found.Quotas = append(found.Quotas, row)
		}
		if g == nil {
			continue
		}
		for _, t := range g.tenants {
			for _, w := range t.works {
				if len(drifts) == 0 {
					drifts = make([]float64, 128)
				}
				found.Workloads = append(found.Workloads, w.stats(t.name, uuid, &drifts[0]))
				drifts = drifts[1:]
			}
		}
	}
}

// part returns a ratio of a quota, or 0 if the quota is 0.
func part(of float64) float64 {
	if of <= 0 {
		return 1
	}
	return min(of, 1)
}
