package audit

import (
	"cmp"
	"fmt"
	"time"

	"gpusteward/enforcer/policy"
)

// judgeTime finds the workloads that use more of a GPU's time or bandwidth than
// their quota allows or their hooks report. It returns whether the last
// window's result is reliable now.
func (t *auditedTenant) judgeTime(b *Books, g *auditedGPU, q policy.Quota, found *Audited) (known bool) {
	if rules := [2]float64{part(q.Limit), part(q.Bandwidth)}; rules != t.rules {
		t.rules = rules // use under the old rules is not judged by the new ones
		t.restart()
	}
	measured, ever := g.measured(b)
	from, to, enough := t.readings.window(b.tick)
	switch {
	case !measured || !enough:
		t.drift, t.bus = nil, nil
	case t.due:
		t.judgeWindow(b, g, from, to, found)
	}
	if !ever && b.Now.Sub(t.judged) >= b.tick.Of(chargedEvery) {
		t.judged = b.Now
		t.acquit()
		if ratio, ok := t.looks.ratio(b.tick); ok && ratio > t.rules[0]+chargedTolerance {
			t.accuseLargest(found, used.sm, time.Time{}, t.over(g, ratio))
		}
	}
	if !ever || !g.governed && b.Now.Sub(g.first) >= b.tick.Of(noSample) { // a driver that never counts it does not delay the audit
		return true
	}
	return measured && enough
}

// judgeWindow judges the use between two readings.
func (t *auditedTenant) judgeWindow(b *Books, g *auditedGPU, from, to reading, found *Audited) {
	t.acquit()
	long := to.at.Sub(from.at).Seconds()
	for _, w := range t.works {
		w.around = w.readings.since(from.at).unhooked / long
		w.guilty = w.around > tolerance // even if its processes changed
	}
	u := to.minus(from.used)
	together := max(to.together.most-from.together.least, 0)
	least, most := max(to.charged.least-from.charged.most, 0), to.charged.most-from.charged.least

	// The tenant gets the benefit of the doubt: when others ran too, it may
	// have had the whole GPU and been charged its part. That part depends on
	// the number of processes: launches of one that is charged less do not
	// arrive.
	together = min(together, company*float64(t.readings.others(from.at))*most)
	drift, bus := max(u.hooked-most-together, 0)/long, u.busy/long
	t.drift, t.bus = &drift, &bus
	if !g.governed {
		t.drift = nil // there are no charges on that GPU
	} else if drift > tolerance {
		w := t.accuseLargest(found, func(u used) float64 { return u.hooked }, from.at,
			Violation{GPU: g.uuid, Objective: Underreported, Value: u.hooked / long, Allowed: (most + together) / long,
				Text: fmt.Sprintf("The tenant's processes had %s of the GPU's time according to the driver, but no "+
					"more than %s according to their hooks.", percentage(u.hooked/long),
					percentage((most+together)/long))})
		if w != nil {
			w.lied = true
		}
	}
	if limit, bandwidth := t.rules[0], t.rules[1]; limit < 1 || bandwidth < 1 {
		sm := (max(u.hooked-together, min(u.hooked, least)) + u.lapsed + u.unhooked) / long
		if charged, ok := t.looks.ratio(b.tick); sm > limit+tolerance {
			t.accuseUnhooked(found, from.at, long, t.over(g, sm))
		} else if ok && charged > limit+chargedTolerance {
			t.accuseLargest(found, used.sm, from.at, t.over(g, charged))
		}
		if bus > bandwidth+tolerance {
			t.accuseLargest(found, func(u used) float64 { return u.busy }, from.at,
				Violation{GPU: g.uuid, Objective: OverBandwidth, Value: bus, Allowed: bandwidth,
					Text: fmt.Sprintf("The tenant kept the GPU's memory busy for %s of the time and may for %s.",
						percentage(bus), percentage(bandwidth))})
		}
	}
}

// over is the violation of a tenant that used more of a GPU's time than its
// limit.
func (t *auditedTenant) over(g *auditedGPU, ratio float64) Violation {
	return Violation{GPU: g.uuid, Objective: OverCompute, Value: ratio, Allowed: t.rules[0],
		Text: fmt.Sprintf("The tenant had %s of the GPU's time and may have %s.", percentage(ratio),
			percentage(t.rules[0]))}
}

// acquit withdraws the last window's verdict on the tenant's workloads.
func (t *auditedTenant) acquit() {
	for _, w := range t.works {
		w.guilty, w.lied, w.around = false, false, 0
	}
}

// accuseUnhooked accuses the workloads that used a GPU around the hook or, if
// none did, the largest user.
func (t *auditedTenant) accuseUnhooked(found *Audited, from time.Time, long float64, v Violation) {
	some := false
	for _, w := range t.works {
		if u := w.readings.since(from); u.unhooked < trace*long {
			continue
		}
		if some = true; w.now.all > 0 {
			w.guilty = true
			v.PIDs = w.now.pids
			if len(w.now.sure) > 0 {
				v.PIDs = w.now.sure
			}
			w.accuse(found, t, v)
		}
	}
	if !some {
		t.accuseLargest(found, used.sm, from, v)
	}
}

// accuseLargest accuses the workload with the largest part of the use since a
// moment, and returns it; nil if it has left.
func (t *auditedTenant) accuseLargest(found *Audited, part func(used) float64, from time.Time,
	v Violation) *auditedWorkload {
	var worst *auditedWorkload
	largest := 0.0
	for _, w := range t.works {
		p := part(w.readings.since(from))
		if worst == nil || cmp.Or(cmp.Compare(p, largest), cmp.Compare(w.now.hooked, worst.now.hooked),
			cmp.Compare(worst.key, w.key)) > 0 {
			worst, largest = w, p
		}
	}
	if worst == nil || worst.now.all == 0 {
		return nil
	}
	worst.guilty = true
	v.PIDs = worst.now.pids
	worst.accuse(found, t, v)
	return worst
}

// percentage formats a ratio for people.
func percentage(ratio float64) string { return fmt.Sprintf("%.1f %%", ratio*100) }
