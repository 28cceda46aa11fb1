package health

import (
	"fmt"
	"math"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/workloads"
)

// A tenancy is a tenant on a board whose enforcer works: the tenant gets its guarantee in all but one window in ten
// thousand, and takes no more than it may.
type tenancy struct {
	team  string
	board *board

	guarantee, weight float64 // parts of the board's time
	kept, most        float64 // bytes; 0 is no limit

	wants, held         float64 // now: a part of the board's time, and bytes
	used, share, target float64
	drift, noise        float64
	convoy              float64 // seconds
	windows, missed     [len(qosObjectives)]float64
	lags                time.Duration // until then the driver reports later than the broker charges
}

// A conduct is a task's with the enforcer.
type conduct struct {
	over  float64 // audits that found too much
	level string  // of the escalation
	down  time.Duration
	fresh bool // its process has no session yet
}

var (
	qosObjectives = [...]string{"compute", "launch_wait", "memory"}
	escalation    = [...]string{"observe", "warn", "throttle", "pause", "suspend", "terminate"}
)

// tenancy returns that of a slot's team on a board, with a quota that leaves room for the others.
func (s *site) tenancy(l *slot, b *board) *tenancy {
	for _, t := range s.tenancies {
		if t.board == b && t.team == l.team {
			return t
		}
	}
	n := 0.0
	for _, o := range s.slots {
		for _, ob := range o.boards {
			n += collectors.Bool(ob == b)
		}
	}
	all := b.number("memory") - b.number("reserved")
	t := &tenancy{team: l.team, board: b, guarantee: (0.3 + 0.6*s.r.Float64()) / n, kept: 0.05 * s.r.Float64() * all / n}
	t.weight = t.guarantee + 0.1/n
	if n == 1 || l.gi != "" { // otherwise another tenant could have taken an unused guarantee
		t.kept = 0.9 * s.r.Float64() * all / n
	}
	if s.chance(70) {
		t.most = 0.97 * all
	}
	s.tenancies = append(s.tenancies, t)
	return t
}

// enforce computes the enforcer's values from the tasks.
func (s *site) enforce(dt time.Duration) {
	for _, t := range s.tenancies {
		t.wants, t.held, t.target = 0, 0, 0
	}
	for _, l := range s.slots {
		if l.task == nil {
			continue
		}
		for i, b := range l.boards {
			t := s.tenancy(l, b)
			t.wants, t.held = t.wants+l.task.use[i], t.held+l.task.held[i]
		}
		l.task.climb(s, dt)
	}
	for _, b := range s.boards {
		s.divide(b)
	}
	for _, t := range s.tenancies {
		t.goOn(s, dt)
	}
}

// climb lets a task take slightly too much now and then, and receive a warning for a while. In shadow mode, it may
// reach the higher levels too.
func (st *conduct) climb(s *site, dt time.Duration) {
	st.fresh = s.r.Float64() < dt.Hours()
	if st.level == "" || s.clock >= st.down {
		st.level = escalation[0]
	}
	if s.r.Float64() < 0.5*dt.Hours()/24 {
		st.over++
		st.level, st.down = escalation[1], s.clock+time.Minute
		if s.shadow == 1 {
			st.level = escalation[1+s.r.IntN(4)]
		}
	}
}

// divide divides the board's time by weight among the tenants that want it.
func (s *site) divide(b *board) {
	left := 1.0
	for range 4 { // unwanted time goes to the others
		weights, given := 0.0, 0.0
		for _, t := range s.tenancies {
			if t.board == b && t.target < t.wants {
				weights += t.weight
			}
		}
		for _, t := range s.tenancies {
			if t.board == b && t.target < t.wants {
				more := min(left*t.weight/weights, t.wants-t.target)
				t.target, given = t.target+more, given+more
			}
		}
		left -= given
	}
}

func (t *tenancy) goOn(s *site, dt time.Duration) {
	t.noise = 0.9*t.noise + 0.43*s.r.NormFloat64()
	t.used = math.Round(t.held*(1-0.005*math.Abs(bounded(s.r)))/512) * 512
	t.share = clamp(t.target * (1 + 0.02*t.noise))
	if s.r.Float64() < 2*dt.Hours()/24 { // a moment with a long kernel of another tenant
		t.share *= s.r.Float64()
	}
	t.drift = t.share*(0.015*bounded(s.r)-0.05) + 0.003*s.r.NormFloat64() // nothing runs between kernels
	t.convoy += dt.Seconds() * t.share * 0.006 * math.Abs(t.noise)        // ranks are slightly apart
	if s.r.Float64() < dt.Hours()/24 {
		t.lags = s.clock + s.some(0, 3*step)
	}
	if s.clock < t.lags {
		t.drift += 0.2 * s.r.Float64()
	}
	if t.held == 0 || t.target < t.guarantee {
		return
	}
	for i, each := range [...]float64{1, 1, 0.1} { // windows of a second
		t.windows[i] += each * dt.Seconds()
		t.missed[i] += times(s.r, each*dt.Seconds()/10000)
	}
}

// enforced adds the enforcer's samples.
func (s *site) enforced(out []collectors.Sample) []collectors.Sample {
	put := func(m *collectors.Metric, b *board, v float64, labels ...string) {
		if b != nil {
			if !s.answers(b) || b.missing[m] {
				return
			}
			labels = append([]string{b.gpu, b.uuid}, labels...)
		}
		out = append(out, collectors.Sample{Metric: m, Labels: labels, Value: v})
	}
	put(workloads.BrokerUp, nil, 1)
	put(workloads.BrokerStarved, nil, 0)
	for _, of := range []func(*tenancy){ // families come together
		func(t *tenancy) { put(workloads.QuotaGuarantee, t.board, t.guarantee, t.team) },
		func(t *tenancy) { put(workloads.QuotaMemoryGuarantee, t.board, t.kept, t.team) },
		func(t *tenancy) { put(workloads.QuotaShare, t.board, t.share, t.team, "10s") },
		func(t *tenancy) { put(workloads.QuotaTarget, t.board, t.target, t.team, "10s") },
		func(t *tenancy) { put(workloads.QuotaMemoryUsed, t.board, t.used, t.team) },
		func(t *tenancy) { put(workloads.QuotaBackend, t.board, 1, t.team, "memory", "hook") },
		func(t *tenancy) {
			if t.most > 0 {
				put(workloads.QuotaMemoryLimit, t.board, t.most, t.team)
			}
		},
		func(t *tenancy) { put(workloads.QuotaChargeDrift, t.board, t.drift, t.team) },
		func(t *tenancy) { put(workloads.QuotaConvoy, t.board, t.convoy, t.team) },
		func(t *tenancy) {
			for i, objective := range qosObjectives {
				put(workloads.QoSWindows, t.board, t.windows[i], t.team, objective)
			}
		},
		func(t *tenancy) {
			for i, objective := range qosObjectives {
				put(workloads.QoSViolations, t.board, t.missed[i], t.team, objective)
			}
		},
	} {
		for _, t := range s.tenancies {
			if t.held > 0 || t.kept > 0 {
				of(t)
			}
		}
	}
	for _, of := range []func(*slot, *board){
		func(l *slot, b *board) {
			put(workloads.QuotaViolations, b, l.task.over, l.team, l.task.workload, "memory")
		},
		func(l *slot, b *board) {
			put(workloads.UnhookedProcesses, b, collectors.Bool(l.task.fresh), l.team, l.task.workload)
		},
		func(l *slot, b *board) {
			put(workloads.UnderreportingProcesses, b, collectors.Bool(l.task.fresh), l.team, l.task.workload)
		},
	} {
		s.eachTask(func(l *slot) {
			for _, b := range l.boards {
				of(l, b)
			}
		})
	}
	s.eachTask(func(l *slot) {
		for _, level := range escalation {
			put(workloads.QuotaLevel, nil, collectors.Bool(l.task.level == level), l.team, l.task.workload, level)
		}
	})
	s.eachTask(func(l *slot) { put(workloads.QuotaShadow, nil, s.shadow, l.team, l.task.workload) })
	return out
}

// eachTask visits one slot for each team and workload that runs.
func (s *site) eachTask(do func(*slot)) {
	seen := map[string]bool{}
	for _, l := range s.slots {
		if l.task == nil {
			continue
		}
		if key := fmt.Sprint(l.team, " ", l.task.workload, " ", l.boards[0].gpu); !seen[key] {
			seen[key] = true
			do(l)
		}
	}
}
