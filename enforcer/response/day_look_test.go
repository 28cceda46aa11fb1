package response

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"time"

	"gpusteward/collectors"
	"gpusteward/enforcer/audit"
	"gpusteward/enforcer/broker"
	"gpusteward/enforcer/escalation"
	"gpusteward/enforcer/policy"
	"gpusteward/enforcer/schedule"
)

// A day is a host with its tenants and the enforcer. Everything about it is known, and its time is simulated.
type day struct {
	random  *rand.Rand
	start   time.Time
	now     time.Duration
	gpus    []*dayGPU
	policy  *policy.Policy
	pids    map[int]*dayProcess // includes the dead of the last minute
	dead    []*dayProcess
	pid     int
	session uint64

	terms      *Terms
	groups     *groups
	audit      *audit.Audit
	qos        *audit.QoS
	escalation *escalation.Escalation

	blind bool // a GPU does not answer
	dayFigures
	wrong []string
}

// at converts simulated time to the wall clock.
func (d *day) at(since time.Duration) time.Time { return d.start.Add(since) }

func (d *day) fail(format string, args ...any) {
	if d.broken++; len(d.wrong) < 20 {
		d.wrong = append(d.wrong, fmt.Sprintf("%v: ", d.now)+fmt.Sprintf(format, args...))
	}
}

// begin starts the enforcer.
func (d *day) begin() {
	d.terms = NewTerms(d.policy, func(string) (float64, float64, bool) { return 0, 0, false }, false, nil)
	d.groups = &groups{terms: d.terms}
	d.audit, d.qos, d.escalation = &audit.Audit{}, &audit.QoS{}, &escalation.Escalation{}
	for _, g := range d.gpus {
		for _, t := range g.tenants {
			d.apply(t)
		}
	}
}

// restart empties the broker's books, and mostly restarts the enforcer. The escalation's state is kept.
func (d *day) restart() {
	d.restarts++
	whole := !d.chance(3)
	for _, g := range d.gpus {
		for _, t := range g.tenants {
			t.unclear = d.now + 50*time.Second
			for _, w := range t.workloads {
				w.known, w.bad = 0, 0
				for _, p := range w.processes {
					if !p.hooked {
						continue
					}
					p.session, p.ended, p.lapsed, p.back = 0, 0, d.now,
						d.now+time.Duration(1+d.random.IntN(3))*time.Second
					if !whole && d.now-p.born < 3*time.Second { // a running audit has not seen its session
						p.back = d.now
					}
				}
			}
		}
		g.newTurns()
	}
	if whole {
		state := d.escalation.Save()
		d.begin()
		d.escalation.Restore(d.at(d.now), state)
	}
	for _, g := range d.gpus {
		for _, t := range g.tenants {
			d.apply(t)
			for _, w := range t.workloads {
				for _, p := range w.processes {
					if p.back == d.now {
						d.connect(p)
					}
				}
			}
		}
	}
}

// apply puts a tenant's terms in force.
func (d *day) apply(t *dayTenant) {
	q := d.terms.Quota(t.name, t.gpu.uuid)
	t.share = schedule.Share{Weight: q.Weight, Limit: q.Limit, Class: q.Class, Wait: time.Duration(q.LaunchWait),
		Held: q.Held}
	t.gpu.turns.Change(t.gpu.now, t.name, t.share)
	t.gpu.memory.SetCap(t.name, q.Memory)
	t.gpu.memory.SetReserved(t.name, q.Reserved)
	t.gpu.wake = max(t.gpu.now, 1)
}

// second advances the day by one second. At random moments in it the workloads
// act and the driver is asked; then comes the audit.
func (d *day) second() {
	lives, pass := d.random.IntN(6), d.random.IntN(6)
	from := d.now
	for slot := range 6 {
		d.now = from + time.Duration(slot)*daySlot
		if slot == lives {
			d.live()
		}
		end := from + time.Duration(slot+1)*daySlot
		if slot == 5 {
			end = from + time.Second
		}
		for _, g := range d.gpus {
			g.run(d, end)
			g.account(end - d.now)
			if slot == pass && g.silent <= end {
				g.collect(d)
			}
		}
	}
	d.now = from + time.Second
	d.trouble()
	for _, g := range d.gpus {
		for _, t := range g.tenants {
			d.note(t)
		}
	}
	d.look()
	d.bury()
}

// trouble causes faults that no tenant is to blame for.
func (d *day) trouble() {
	d.blind = false
	if d.chance(6 * 3600) {
		d.restart()
	}
	for _, g := range d.gpus {
		if d.chance(4*3600) && g.silent <= d.now {
			g.silent = d.now + d.long(5*time.Second, 5*time.Minute)
			d.silences++
		}
		if d.chance(4*3600) && g.excused <= d.now {
			g.excused = d.now + excuse
			d.hardware++
		}
		if g.silent > d.now {
			d.blur(g, 40*time.Second)
			d.blind = true
		}
		if g.excused > d.now {
			d.blur(g, time.Second)
		}
		if !d.chance(600) {
			continue
		}
		t := g.tenants[d.random.IntN(len(g.tenants))]
		for _, w := range t.workloads {
			for _, p := range w.processes {
				if p.session != 0 && d.now-p.lapsed > 90*time.Second && d.now-p.born > 5*time.Second {
					d.disconnect(p)
					p.lapsed, p.back = d.now, d.now+time.Duration(1+d.random.IntN(3))*time.Second
				}
			}
		}
	}
}

// blur records that too little is known about the processes on a GPU.
func (d *day) blur(g *dayGPU, long time.Duration) {
	for _, t := range g.tenants {
		t.unclear = max(t.unclear, d.now+long)
	}
}

// look is Enforcer.look, without the broker and the kernel.
func (d *day) look() {
	b := d.books()
	found := d.audit.Look(b)
	d.qos.Look(b, found.Quotas)
	d.groups.look(b, nil)
	d.checkFound(found)
	d.checkQoS(found)

	shares := map[place]float64{}
	for _, row := range b.Tenants {
		shares[place{row.Tenant, row.GPU}] = row.Share10s.Actual
	}
	for _, q := range found.Quotas {
		if at := (place{q.Tenant, q.GPU}); q.Bus != nil {
			d.terms.pacer.look(at, b.Quota(q.Tenant, q.GPU), *q.Bus, shares[at])
		}
	}
	for at, limit := range d.terms.pacer { // the memory is busy for at most the time of the kernels
		if part := limit / b.Quota(at.tenant, at.gpu).Bandwidth; part < .95 {
			if d.overpaced++; d.least == 0 || part < d.least {
				d.least = part
			}
		}
	}
	d.judge(b, found)
	d.settle()
	d.checkAll(found)
}

// books returns an audit's input.
func (d *day) books() audit.Books {
	t := d.terms.now.Load()
	b := audit.Books{Now: d.at(d.now), Silent: map[string]bool{}, Names: t.Tenants(), Quota: d.policy.Quota,
		Holds: audit.Holds{Tenants: d.terms.Holds()}}
	for _, g := range d.gpus {
		g.books(&b)
		if g.silent > d.now {
			b.Silent[g.uuid] = true
			continue
		}
		b.DeviceProcesses = append(b.DeviceProcesses, g.deviceProcesses...)
		capacity := g.free()
		for _, t := range g.tenants {
			u := g.memory.Usage(t.name)
			capacity += u.Committed + u.Dead + u.Reserved
		}
		g.memory.SetCapacity(capacity)
	}
	b.Tenant = func(h collectors.DeviceProcess) (string, bool) {
		name := t.Whose(broker.Facts{PID: h.Process.PID, UID: uint32(h.Process.UID)}, h.Process.Workload)
		return name, t.Governed(name)
	}
	return b
}

// judge is Response.Look.
func (d *day) judge(b audit.Books, found audit.Audited) {
	t := d.terms.now.Load()
	f := escalation.Findings{Violations: found.Violations, Seen: map[audit.Subject]escalation.Status{},
		Partial: found.Partial,
		Excused: map[string]bool{}, Actions: t.Actions(), Steps: t.steps}
	for s, known := range found.Known {
		status := escalation.Status{Known: known}
		if c := d.groups.all[s]; c != nil {
			status.GPUs = c.gpus
		}
		f.Seen[s] = status
	}
	for _, g := range d.gpus {
		f.Excused[g.uuid] = g.excused > d.now
	}
	for _, s := range d.escalation.Judge(d.at(d.now), f) {
		if s.Result == "" {
			s.Result = escalation.Done
			if !d.take(&s) {
				s.Result = escalation.Missed
			}
			d.escalation.Settle(s)
		}
		d.checkStep(s)
	}
}

// take carries out a step, and reports whether there was a process to act on.
func (d *day) take(s *escalation.Step) bool {
	w := d.workload(s.Subject)
	if w == nil || s.To > s.From && len(w.processes) == 0 {
		return false
	}
	hold := func(on bool) {
		if delete(d.terms.held, s.Subject); on {
			d.terms.held[s.Subject] = true
		}
	}
	switch c := d.groups.all[s.Subject]; {
	case s.To < s.From:
		w.still = false
		hold(false)
	case s.To == policy.Pause:
		w.still = true
		hold(c != nil && c.Hold != nil && len(c.Unhooked) == 0)
	case s.To == policy.Suspend:
		s.Result = escalation.Refused // the simulated day has no driver that suspends
	case s.To == policy.Terminate:
		w.still = false
		hold(false)
		d.end(w, d.long(20*time.Second, 10*time.Minute))
	}
	d.tally(w.tenant.gpu)
	return true
}

// settle is Response.settle: it puts the levels in force.
func (d *day) settle() {
	throttled, held := map[string]float64{}, map[string]bool{}
	rows, _ := d.escalation.Stats()
	for _, row := range rows {
		if level, shadow := d.escalation.Level(audit.Subject{Tenant: row.Tenant, Workload: row.Workload}); !shadow &&
			level >= policy.Throttle {
			throttled[row.Tenant] = d.terms.now.Load().steps(row.Tenant).Throttle
		}
	}
	for s := range d.terms.held {
		held[s.Tenant] = true
	}
	was := d.terms.now.Load()
	if maps.Equal(was.throttled, throttled) && maps.Equal(was.held, held) && maps.Equal(was.paced, d.terms.pacer) {
		return
	}
	is := *was
	is.throttled, is.held, is.paced = throttled, held, d.terms.pacer.clone()
	d.terms.now.Store(&is)
	for _, g := range d.gpus {
		for _, t := range g.tenants {
			at := place{t.name, g.uuid}
			if was.throttled[t.name] != throttled[t.name] || was.held[t.name] != held[t.name] ||
				was.paced[at] != is.paced[at] {
				d.apply(t)
			}
		}
	}
}

// workload returns a subject's workload.
func (d *day) workload(s audit.Subject) *dayWorkload {
	for _, g := range d.gpus {
		for _, t := range g.tenants {
			if t.name != s.Tenant {
				continue
			}
			for _, w := range t.workloads {
				if w.key == s.Workload {
					return w
				}
			}
		}
	}
	return nil
}

// bury removes processes that died a while ago.
func (d *day) bury() {
	for len(d.dead) > 0 && d.now-d.dead[0].died > time.Minute {
		delete(d.pids, d.dead[0].PID)
		d.dead = d.dead[1:]
	}
}

// subject returns the workload's name in the escalation.
func (w *dayWorkload) subject() audit.Subject {
	return audit.Subject{Tenant: w.tenant.name, Workload: w.key}
}
