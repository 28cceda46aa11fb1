package audit

import (
	"slices"
	"time"

	"gpusteward/enforcer/policy"
	"gpusteward/internal/quota"
	"gpusteward/internal/wire"
)

// Times are at a tick of a second.
const (
	qosWindow = 10 * time.Second
	qosHole   = 2 * qosWindow // a longer window has a hole: the host slept, or the clock was set
	qosSlack  = 0.01          // of a window, that a tenant may get less than its guarantee
	qosLate   = 0.01          // of its waits, that may be longer than the objective
)

// QoS counts the windows of 10 s in which tenants wanted what they are
// guaranteed, and those in which they did not get it. It is pure; its zero
// value is ready. One goroutine may use it.
//
//   - compute: a window in which the tenant wanted the GPU, by having work or
//     waiting for it, for at least its guarantee of the time. It is violated
//     if it was served less than its guarantee of the time in which it wanted,
//     by more than 0.01 of the window. Service is the time that it would have
//     needed alone for what it did: a tenant that runs beside others at a small
//     part of its lone pace is not served, though it never waits.
//   - launch_wait: a window with a wait, in which the tenant was served no more
//     than its guarantee. It is violated where more than 1 % of the waits were
//     longer than the objective.
//   - memory: a window in which the tenant asked for memory within its
//     guarantee. It is violated where it did not get some of that.
//
// A window does not count if the tenant came or its quota changed in it, the
// broker's counters restarted, or the escalation held the tenant.
type QoS struct {
	Tick Tick // from one look to the next

	tenants map[qosKey]*qosTenant
}

type qosKey struct{ tenant, gpu string }

type qosTenant struct {
	quota    quota.Quota
	open     bool // there is a window
	began    time.Time
	from     qosBooks // at its begin
	last     qosBooks // at the last look
	seen     time.Time
	windows  [quota.Objectives]uint64
	violated [quota.Objectives]uint64
}

// qosBooks are the broker's counters that make up windows.
type qosBooks struct {
	served, wanted float64 // seconds
	waits, late    uint64
	asked, missed  uint64
}

// back reports whether a counter is less than before: the counters restarted.
func (n qosBooks) back(before qosBooks) bool {
	return n.served < before.served || n.wanted < before.wanted || n.waits < before.waits ||
		n.late < before.late || n.asked < before.asked || n.missed < before.missed
}

// Look counts the windows that end now, and writes all counts into the rows of
// their tenants and GPUs. Counts of tenants without a row are kept for 10
// minutes, as long as the policy has the tenant.
func (q *QoS) Look(b Books, rows []wire.QuotaStats) {
	if q.tenants == nil {
		q.tenants = map[qosKey]*qosTenant{}
	}
	for i := range b.Tenants {
		row := &b.Tenants[i]
		if row.Tenant == policy.DefaultTenant {
			continue
		}
		t := q.tenant(qosKey{row.Tenant, row.GPU})
		t.look(b.Now, q.Tick, row, b.Quota(row.Tenant, row.GPU), b.Holds.Tenants[row.Tenant].Has(Shortfall))
		t.seen = b.Now
	}
	all := make([]wire.QoSStats, 0, len(rows)*int(quota.Objectives))
	for i := range rows {
		r := &rows[i]
		t := q.tenants[qosKey{r.Tenant, r.GPU}]
		if t == nil {
			t = &qosTenant{}
		} else if t.seen.Before(b.Now) { // the broker has no books of it now
			t.open, t.seen = false, b.Now
		}
		from := len(all)
		for o := range quota.Objectives {
			if r.Promises(o) || t.windows[o] > 0 {
				all = append(all, wire.QoSStats{Objective: o.String(), Windows: t.windows[o],
					Violations: t.violated[o]})
			}
		}
		r.QoS = slices.Clip(all[from:])
	}
	for key, t := range q.tenants {
		if gone := b.Now.Sub(t.seen); gone > q.Tick.Of(auditForget) || gone > 0 && !slices.Contains(b.Names, key.tenant) {
			delete(q.tenants, key)
		} else if gone > 0 {
			t.open = false
		}
	}
}

func (q *QoS) tenant(key qosKey) *qosTenant {
	t := q.tenants[key]
	if t == nil {
		t = &qosTenant{}
		q.tenants[key] = t
	}
	return t
}

// look ends the window if it is due.
func (t *qosTenant) look(now time.Time, tick Tick, row *wire.TenantStats, promise quota.Quota, punished bool) {
	books := qosBooks{row.ServedSeconds, row.WantedSeconds, row.Waits, row.LateWaits, row.MemoryAsked, row.MemoryMissed}
	long := now.Sub(t.began)
	switch {
	case row.Sessions == 0 || punished:
		t.open = false
		return
	case !t.open || promise != t.quota || books.back(t.last) || long < 0 || long > tick.Of(qosHole):
	case long < tick.Of(qosWindow):
		t.last = books
		return
	default:
		t.count(long.Seconds(), books)
	}
	t.open, t.quota, t.began, t.from, t.last = true, promise, now, books, books
}

// count judges a window of this many seconds.
func (t *qosTenant) count(long float64, now qosBooks) {
	served, waits := now.served-t.from.served, now.waits-t.from.waits
	wanted := min(now.wanted-t.from.wanted, long)
	if g := t.quota.Guarantee; g > 0 && wanted >= g*long {
		t.tell(quota.Compute, served < g*wanted-qosSlack*long)
	}
	if t.quota.LaunchWait > 0 && waits > 0 && served <= t.quota.Guarantee*long {
		t.tell(quota.LaunchWait, float64(now.late-t.from.late) > qosLate*float64(waits))
	}
	if t.quota.Reserved > 0 && now.asked > t.from.asked {
		t.tell(quota.Memory, now.missed > t.from.missed)
	}
}

// tell counts a window.
func (t *qosTenant) tell(objective quota.Objective, violated bool) {
	t.windows[objective]++
	if violated {
		t.violated[objective]++
	}
}
