package response

import (
	"flag"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	"gpusteward/enforcer/audit"
	"gpusteward/enforcer/escalation"
	"gpusteward/enforcer/policy"
)

var (
	dayHours = flag.Float64("day.hours", .05, "simulated `hours` of a host with 100 tenants")
	daySeed  = flag.Uint64("day.seed", 1, "of the simulated host")
)

// These constants bound the simulated host's behaviour.
const (
	dayPoint  = .01 // part of a GPU by which a tenant may miss its guarantee
	dayWindow = 10  // seconds over which a guarantee is measured
	// age of what an audit finds, at most: a window of 30 s, and the driver's delay
	dayLag   = 45 * time.Second
	dayGrace = 4 * time.Second  // until a process without a session is found
	dayFound = 24               // seconds until hidden time is found: a window and three readings
	dayTick  = 5 * time.Second  // lag of the escalation's clock, which stops over a restart
	dayTold  = 17 * time.Second // until hidden memory is found: ten readings
)

// dayFigures summarise a day.
type dayFigures struct {
	audits, violations, restarts, silences, hardware, broken, braked int
	faults                                                           [dayFaults]int
	up                                                               [len(policy.Levels)]map[string]int // steps by level and result
	down                                                             int
	// violations of a tenant that were attributed to another of its workloads than the guilty one
	others            int
	slowest           [len(policy.Levels)]time.Duration
	longest           time.Duration // return to the ground, beyond the levels' holds
	short             float64       // largest shortfall of a guarantee
	windows, promised int           // windows of QoS; seconds in which a guarantee was owed
	late              int           // violated windows of compute of tenants that come and go
	// audits of a tenant that was paced below its part of the bandwidth
	overpaced int
	least     float64 // smallest fraction of that part
	// allocations that the driver had no memory for; windows in which guaranteed memory was refused
	aborts, missed           int
	counted                  map[[2]string][2]uint64 // windows and violations of QoS at the last report
	taken                    []time.Duration         // actions of the last 10 minutes
	rows, known, works, most int
}

// heap returns the live bytes.
func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// note adds a second to the truth about a tenant, and checks its guarantee.
func (d *day) note(t *dayTenant) {
	has, hidden := uint64(0), false
	for _, w := range t.workloads {
		lies, bypasses := false, false
		for _, p := range w.processes {
			has += max(p.memory, p.told+p.lies) // guaranteed memory must be available at any moment
			switch {
			case p.hooked:
				lies = lies || p.lies > 0 && d.now-p.born > 2*time.Second
			default:
				has += p.context
				bypasses = true
			}
		}
		hidden = hidden || lies || bypasses
		if lies {
			w.lastLie = d.now
		} else if d.now-w.lastLie <= 2*time.Second { // the driver may have listed it a moment before
			has, hidden = has+w.lied, true
		}
		if bypasses {
			w.lastBypass = d.now
		}
	}
	for _, p := range d.dead {
		// the driver may have listed it a moment before
		if p.workload.tenant == t && !p.hooked && d.now-p.died <= 2*time.Second {
			has, hidden = has+p.memory+p.context, true
		}
	}
	t.truth.over = hidden && t.quota.Memory > 0 && has > t.quota.Memory
	charged := t.gpu.turns.Stats(t.name).Charged.Seconds()
	t.truth.charged, t.charged = max(charged-t.charged, 0), charged
	t.past[int(d.now/time.Second)%len(t.past)] = t.truth
	inside := t.truth.inside
	t.truth = dayTruth{}

	// A guarantee is owed to a tenant that always wants it, is not punished,
	// and shares the GPU with no process outside the hook.
	terms := d.terms.now.Load()
	_, paced := terms.paced[place{t.name, t.gpu.uuid}]
	if t.pauses++; !t.always {
		t.pauses = 0
	}
	if t.wanted++; !t.always || t.sessions == 0 || d.terms.Holds()[t.name].Has(audit.Shortfall) || paced || t.gpu.outside > 0 ||
		inside == 0 && t.wanted <= 1 {
		t.wanted = 0
	}
	if t.quota.Guarantee == 0 || t.wanted <= dayWindow {
		return
	}
	d.promised++
	got := t.mean(dayWindow, 0, func(s dayTruth) float64 { return s.inside })
	short := t.quota.Guarantee - got
	if d.short = max(d.short, short); short > dayPoint {
		d.fail("%s had %.2f %% of its GPU and is guaranteed %.2f %%", t.name, 100*got, 100*t.quota.Guarantee)
	}
}

// mean returns the mean of a figure over some seconds, which ended some seconds ago.
func (t *dayTenant) mean(long, ago int, of func(dayTruth) float64) (sum float64) {
	now := int(t.gpu.now / time.Second)
	for i := range long {
		sum += of(t.past[(now-ago-i+len(t.past))%len(t.past)])
	}
	return sum / float64(long)
}

// most returns the largest mean of a figure over the windows that an audit may have used.
func (t *dayTenant) most(of func(dayTruth) float64) (most float64) {
	for long := 10; long <= 32; long += 2 {
		for ago := 0; ago+long <= int(dayLag/time.Second); ago++ {
			most = max(most, t.mean(long, ago, of))
		}
	}
	return most
}

// holds reports whether a finding of the audit is true.
func (d *day) holds(v audit.Violation) bool {
	w := d.workload(v.Subject)
	if w == nil || !w.tenant.governed || v.GPU != w.tenant.gpu.uuid || len(v.PIDs) == 0 {
		return false
	}
	t := w.tenant
	for _, pid := range v.PIDs {
		if p := d.pids[pid]; p == nil || p.workload != w || p.died > 0 && d.now-p.died > 2*time.Second {
			return false
		}
	}
	all := func(is func(p *dayProcess) bool) bool {
		return !slices.ContainsFunc(v.PIDs, func(pid int) bool { return !is(d.pids[pid]) })
	}
	switch v.Objective {
	case audit.Unhooked:
		return all(func(p *dayProcess) bool { return !p.hooked })
	case audit.Underreported:
		if v.Value > 1000 { // bytes
			return d.now-w.lastLie <= 3*time.Second
		}
		return t.most(func(s dayTruth) float64 { return s.stolen }) > 0
	case audit.OverMemory:
		over := false
		for ago := range 4 {
			over = over || t.past[(int(d.now/time.Second)-ago+len(t.past))%len(t.past)].over
		}
		return over && (d.now-w.lastLie <= 3*time.Second || d.now-w.lastBypass <= 3*time.Second)
	case audit.OverCompute:
		return t.most(func(s dayTruth) float64 { return s.sm }) > t.quota.Limit
	case audit.OverBandwidth:
		return t.most(func(s dayTruth) float64 { return s.busy }) > t.quota.Bandwidth
	}
	return false
}

// checkFound compares the audit's findings with the truth.
func (d *day) checkFound(found audit.Audited) {
	d.audits++
	for _, v := range found.Violations {
		d.violations++
		if !d.holds(v) {
			d.fail("false: %s %s of %s on %s: %s (fault %v)", v.Tenant, v.Objective, v.Workload, v.GPU, v.Text,
				d.workload(v.Subject).fault)
		}
		if w := d.workload(v.Subject); w.fault == dayObeys && d.now-w.lastBypass > dayLag && d.now-w.lastLie > dayLag {
			d.others++
		}
	}
	d.known, d.works = max(d.known, len(found.Known)), max(d.works, len(found.Workloads))
}

// checkQoS adds the windows of guarantees, and holds that no guarantee of compute was violated: a tenant that has its
// turn keeps it. Guaranteed memory can be missed because of processes outside the hook. A tenant that comes and goes
// can be late by one turn each time, and turns are longer here than on a real GPU.
func (d *day) checkQoS(found audit.Audited) {
	if d.counted == nil {
		d.counted = map[[2]string][2]uint64{}
	}
	for _, q := range found.Quotas {
		for _, o := range q.QoS {
			key := [2]string{q.Tenant + " on " + q.GPU, o.Objective}
			before := d.counted[key]
			if o.Windows < before[0] { // after a restart
				before = [2]uint64{}
			}
			d.counted[key] = [2]uint64{o.Windows, o.Violations}
			d.windows += int(o.Windows - before[0])
			switch more := int(o.Violations - before[1]); {
			case o.Objective == "memory":
				d.missed += more
			case more > 0 && o.Objective == "compute" && d.bursts(q.Tenant):
				d.late += more
			case more > 0:
				d.fail("%s: a window of %s was violated; guarantee %.3f, paced to %v", key[0], o.Objective, q.Guarantee,
					d.terms.pacer[place{q.Tenant, q.GPU}])
			}
		}
	}
}

// bursts reports whether a tenant came and went within the last window.
func (d *day) bursts(tenant string) bool {
	for _, g := range d.gpus {
		for _, t := range g.tenants {
			if t.name == tenant {
				return t.pauses < 2*dayWindow
			}
		}
	}
	return false
}

// checkStep holds that each action has evidence, and counts it.
func (d *day) checkStep(s escalation.Step) {
	w := d.workload(s.Subject)
	if w == nil || !w.tenant.governed {
		d.fail("%s %s, which is nobody's, moves to %v", s.Tenant, s.Workload, s.To)
		return
	}
	delay := w.known
	w.known, w.bad = 0, 0
	if s.Result == escalation.Missed {
		w.retry = d.now + 12*time.Second
	}
	if s.To < s.From {
		d.down++
		return
	}
	if d.up[s.To] == nil {
		d.up[s.To] = map[string]int{}
	}
	d.up[s.To][s.Result]++
	if s.Result == escalation.Braked {
		d.braked++
		return
	}
	d.slowest[s.To] = max(d.slowest[s.To], delay)
	if len(s.Evidence) == 0 || s.To > w.tenant.steps.Mode {
		d.fail("%s %s moves to %v, of %v at most, with evidence %v", s.Tenant, s.Workload, s.To, w.tenant.steps.Mode,
			s.Evidence)
	}
	for _, v := range s.Evidence {
		if v.Subject != s.Subject || !d.holds(v) || w.tenant.gpu.excused > d.now || w.tenant.gpu.silent > d.now {
			d.fail("%s %s moves to %v by false evidence: %s", s.Tenant, s.Workload, s.To, v.Text)
		}
	}
	if (s.Result == escalation.Shadowed) != (w.tenant.steps.Shadow && s.To > policy.Warn) {
		d.fail("%s %s moves to %v: %s", s.Tenant, s.Workload, s.To, s.Result)
	}
	if s.To > policy.Warn && s.Result == escalation.Done {
		d.taken = append(d.taken, d.now)
	}
}

// checkAll holds that a workload that continues to violate a quota climbs, that
// an innocent one comes down, and that the brake works.
func (d *day) checkAll(found audit.Audited) {
	d.taken = slices.DeleteFunc(d.taken, func(at time.Duration) bool { return d.now-at >= 10*time.Minute+dayTick })
	within := 0
	for _, at := range d.taken {
		if d.now-at < 10*time.Minute {
			within++
		}
	}
	if d.most = max(d.most, within); within > dayActions {
		d.fail("%d actions in 10 minutes", within)
	}
	guilty := map[audit.Subject]bool{}
	for _, v := range found.Violations {
		guilty[v.Subject] = true
	}
	rows, _ := d.escalation.Stats()
	d.rows = max(d.rows, len(rows))
	for _, g := range d.gpus {
		for _, t := range g.tenants {
			d.finds(t, found.Violations)
			for _, w := range t.workloads {
				d.climbs(w, guilty[w.subject()], found.Known[w.subject()])
				d.falls(w, guilty[w.subject()])
			}
		}
	}
}

// climbs holds that a workload climbs after findings in Confirm audits in a row. It also holds that processes outside
// the hook, or with hidden memory, are found in each audit.
func (d *day) climbs(w *dayWorkload, guilty, known bool) {
	t, s := w.tenant, w.tenant.steps
	level, _ := d.escalation.Level(w.subject())
	// it is at its highest level, or the brake holds it
	held := level >= s.Mode || level >= policy.Warn && !s.Shadow && len(d.taken) >= dayActions
	excused, silent := t.gpu.excused > d.now, t.gpu.silent > d.now
	switch {
	case held, !guilty && known:
		w.bad = 0
	case guilty && !excused:
		w.bad++
	}
	if w.bad > s.Confirm && d.now > w.retry {
		d.fail("%s %s is at %v after %d audits in a row that found something; %d of %d, up to %v", t.name, w.key, level,
			w.bad, s.Confirm, s.Of, s.Mode)
		w.bad = 0
	}
	seen := w.lying > 0 && d.now-w.lying > dayTold
	for _, p := range w.processes {
		seen = seen || !p.hooked && t.governed && d.now-p.born > dayGrace
	}
	switch {
	case !seen:
		w.known = 0
	case !held && !excused && !silent && t.unclear <= d.now && d.now > w.retry:
		w.known += time.Second
	}
	if w.known > time.Duration(s.Confirm+1)*time.Second {
		d.fail("%s %s lies or goes around the hook for %v and is at %v; %d of %d, up to %v", t.name, w.key, w.known,
			level, s.Confirm, s.Of, s.Mode)
		w.known = 0
	}
}

// finds holds that a tenant is found if its processes take much time that their hooks do not report.
func (d *day) finds(t *dayTenant, found []audit.Violation) {
	t.steals++
	accused := slices.ContainsFunc(found, func(v audit.Violation) bool {
		return v.Tenant == t.name && v.Objective == audit.Underreported
	})
	if t.mean(5, 0, func(s dayTruth) float64 { return s.inside + s.stolen - s.charged }) < .15 || !t.governed ||
		t.unclear > d.now || accused {
		t.steals = 0
	}
	if t.steals > dayFound {
		d.fail("%s takes what its hooks do not tell of for %d s, and nobody finds it", t.name, t.steals)
		t.steals = 0
	}
}

// falls holds that an innocent workload is on the ground after its levels' holds and the length of a window.
func (d *day) falls(w *dayWorkload, guilty bool) {
	t := w.tenant
	switch {
	case guilty:
		w.innocent = 0
	case t.unclear <= d.now && (!d.blind || len(w.processes) > 0): // otherwise it may stay while nothing is known
		w.innocent += time.Second
	}
	level, _ := d.escalation.Level(w.subject())
	most := time.Duration(t.steps.Mode) * (t.steps.Hold + time.Second)
	if level == policy.Observe {
		return
	}
	d.longest = max(d.longest, w.innocent-most)
	if w.innocent > most+dayLag {
		d.fail("%s %s is at %v, %v after it was last guilty; %d levels of %v", t.name, w.key, level, w.innocent,
			t.steps.Mode, t.steps.Hold)
		w.innocent = 0
	}
}

// sum formats the day's summary.
func (d *day) sum(took time.Duration) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%.2f simulated hours of %d tenants on %d GPUs in %.0f s: %d audits, %d violations found, %d of "+
		"them put down to another workload of the guilty tenant\n",
		d.now.Hours(), dayTenants, dayGPUs, took.Seconds(), d.audits, d.violations, d.others)
	fmt.Fprintf(&b, "  faults:")
	for kind := dayFault(1); kind < dayFaults; kind++ {
		fmt.Fprintf(&b, " %s %d,", dayFaultNames[kind], d.faults[kind])
	}
	fmt.Fprintf(&b, " restarts %d, silent GPUs %d, hardware faults %d\n", d.restarts, d.silences, d.hardware)
	for level := policy.Warn; level <= policy.Terminate; level++ {
		fmt.Fprintf(&b, "  up to %v: %v, at most %v after an audit could know\n", level, d.up[level], d.slowest[level])
	}
	fmt.Fprintf(&b, "  down: %d, at most %v beyond the holds; actions in 10 minutes: %d of %d at most\n", d.down,
		d.longest, d.most, dayActions)
	fmt.Fprintf(&b, "  guarantees: %d windows of %d s, %.2f points short at worst; %d windows of QoS, violated %d of "+
		"memory and %d of compute of who came and went; %d allocations that the driver had nothing for\n", d.promised,
		dayWindow, 100*d.short, d.windows, d.missed, d.late, d.aborts)
	fmt.Fprintf(&b, "  bandwidth: paced below the part that is allowed in %d audits of a tenant, to %.2f of it at "+
		"least\n", d.overpaced, d.least)
	fmt.Fprintf(&b, "  at most: %d escalated, %d known, %d workloads told of; %d checks failed\n", d.rows, d.known,
		d.works, d.broken)
	return b.String()
}
