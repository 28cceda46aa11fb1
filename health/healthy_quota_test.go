package health

import (
	"math"

	"gpusteward/collectors"
	"gpusteward/collectors/workloads"
)

// A healthyTenant is a tenant on a GPU under a working enforcer. It gets its
// guarantee in all but one window in ten thousand, and takes no more than it
// may.
type healthyTenant struct {
	name string
	gpu  *healthyGPU

	guarantee, weight float64 // of the GPU's time
	kept, most        float64 // bytes

	wants, held          float64 // now: part of the GPU's time, and bytes
	used, share, target  float64
	drift                float64
	convoy               float64 // seconds
	level, pace, charged wander
	windows, missed      [len(qosObjectives)]float64
	late                 int // steps for which the driver lags
}

var (
	qosObjectives = [...]string{"compute", "launch_wait", "memory"}
	levels        = [...]string{"observe", "warn", "throttle", "pause", "suspend", "terminate"}
)

// tenant returns the tenant of a job, with a quota that leaves room for all on
// the GPU.
func (h *healthyHost) tenant(j *job, g *healthyGPU) *healthyTenant {
	on := 0
	for _, t := range h.tenants {
		if t.gpu == g && t.name == j.team {
			return t
		}
	}
	for _, o := range h.jobs {
		for _, og := range o.gpus {
			if og == g {
				on++
			}
		}
	}
	all := g.number["memory_bytes"] - g.number["reserved_bytes"]
	n := float64(on)
	t := &healthyTenant{name: j.team, gpu: g, guarantee: (0.3 + 0.6*h.q.Float64()) / n,
		kept: 0.05 * h.q.Float64() * all / n}
	t.weight = t.guarantee + 0.1/n
	if on == 1 || j.gi != "" { // otherwise another tenant could have taken an unused guarantee
		t.kept = 0.9 * h.q.Float64() * all / n
	}
	if h.q.Float64() < 0.7 {
		t.most = 0.97 * all
	}
	h.tenants = append(h.tenants, t)
	return t
}

// enforce computes the enforcer's values from the jobs.
func (h *healthyHost) enforce() {
	for _, t := range h.tenants {
		t.wants, t.held = 0, 0
	}
	for _, j := range h.jobs {
		here := 0.0
		for i, g := range j.gpus {
			if j.held[i] > 0 {
				t := h.tenant(j, g)
				t.wants, t.held, here = t.wants+j.use[i], t.held+j.held[i], here+1
			}
		}
		j.climb(h, here > 0)
	}
	for _, g := range h.gpus {
		h.divide(g)
	}
	for _, t := range h.tenants {
		t.go10s(h)
	}
}

// climb lets a job take slightly too much now and then, and receive a warning
// for a while. In shadow mode, it may reach the higher levels too.
func (j *job) climb(h *healthyHost, here bool) {
	j.new = here && h.q.Float64() < 1.0/stepsHour // a process that has not sent HELLO yet
	if h.n >= j.down {
		j.level = levels[0]
	}
	if here && h.q.Float64() < 0.5/stepsDay {
		j.over++
		j.level, j.down = levels[1], h.n+6
		if h.shadow {
			j.level = levels[1+h.q.IntN(4)]
		}
	}
}

// divide divides the GPU's time by weight among the tenants that want it.
func (h *healthyHost) divide(g *healthyGPU) {
	left := 1.0
	for _, t := range h.tenants {
		if t.gpu == g {
			t.target = 0
		}
	}
	for range 4 { // unwanted time goes to the others
		weights := 0.0
		for _, t := range h.tenants {
			if t.gpu == g && t.target < t.wants {
				weights += t.weight
			}
		}
		given := 0.0
		for _, t := range h.tenants {
			if t.gpu == g && t.target < t.wants {
				more := min(left*t.weight/weights, t.wants-t.target)
				t.target, given = t.target+more, given+more
			}
		}
		left -= given
	}
}

// go10s advances by ten windows.
func (t *healthyTenant) go10s(h *healthyHost) {
	most := t.most
	if most == 0 {
		most = math.Inf(1)
	}
	t.used = math.Round(min(most, t.held*(1-0.01*math.Abs(t.level.next(h.q, 0.99, 0.5))))/512) * 512
	t.share = clamp(t.target * (1 + 0.02*t.pace.next(h.q, 0.9, 1)))
	if h.q.Float64() < 2.0/stepsDay { // a moment with a long kernel of another tenant
		t.share *= h.q.Float64()
	}
	t.drift = t.share*(0.015*t.charged.next(h.q, 0.5, 1)-0.05) + 0.003*heavy(h.q) // nothing runs between kernels
	t.convoy += 10 * t.share * 0.006 * math.Abs(t.pace.v)                         // ranks are slightly apart
	if t.late--; t.late <= 0 && h.q.Float64() < 1.0/stepsDay {
		t.late = 1 + h.q.IntN(3)
	}
	if t.late > 0 { // the driver reports a moment later than the broker charges
		t.drift += 0.2 * h.q.Float64()
	}
	if t.held == 0 || t.target < t.guarantee {
		return
	}
	for i, windows := range [...]float64{10, 10, 1} {
		t.windows[i] += windows
		t.missed[i] += poisson(h.q, windows/10000*stepsDay)
	}
}

// enforced adds the enforcer's samples.
func (h *healthyHost) enforced(out []collectors.Sample) []collectors.Sample {
	var g *healthyGPU
	put := func(m *collectors.Metric, v float64, labels ...string) {
		if h.absent[absence{m, g}] == 0 {
			out = append(out, collectors.Sample{Metric: m, Labels: append([]string{g.gpu, g.uuid}, labels...),
				Value: v})
		}
	}
	for _, of := range []func(t *healthyTenant){ // families come together
		func(t *healthyTenant) { put(workloads.QuotaGuarantee, t.guarantee, t.name) },
		func(t *healthyTenant) { put(workloads.QuotaMemoryGuarantee, t.kept, t.name) },
		func(t *healthyTenant) { put(workloads.QuotaShare, t.share, t.name, "10s") },
		func(t *healthyTenant) { put(workloads.QuotaTarget, t.target, t.name, "10s") },
		func(t *healthyTenant) { put(workloads.QuotaMemoryUsed, t.used, t.name) },
		func(t *healthyTenant) {
			if t.most > 0 {
				put(workloads.QuotaMemoryLimit, t.most, t.name)
			}
		},
		func(t *healthyTenant) { put(workloads.QuotaChargeDrift, t.drift, t.name) },
		func(t *healthyTenant) { put(workloads.QuotaConvoy, t.convoy, t.name) },
		func(t *healthyTenant) {
			for i, objective := range qosObjectives {
				put(workloads.QoSWindows, t.windows[i], t.name, objective)
			}
		},
		func(t *healthyTenant) {
			for i, objective := range qosObjectives {
				put(workloads.QoSViolations, t.missed[i], t.name, objective)
			}
		},
	} {
		for _, t := range h.tenants {
			if g = t.gpu; t.held > 0 || t.kept > 0 {
				of(t)
			}
		}
	}
	for _, of := range []func(j *job){
		func(j *job) { put(workloads.QuotaViolations, j.over, j.team, j.name, "memory") },
		func(j *job) { put(workloads.UnhookedProcesses, collectors.Bool(j.new), j.team, j.name) },
		func(j *job) { put(workloads.UnderreportingProcesses, collectors.Bool(j.new), j.team, j.name) },
	} {
		for _, j := range h.jobs {
			for i := range j.gpus {
				if g = j.gpus[i]; j.held[i] > 0 {
					of(j)
				}
			}
		}
	}
	for _, j := range h.jobs {
		for _, level := range levels {
			out = append(out, collectors.Sample{Metric: workloads.QuotaLevel, Labels: []string{j.team, j.name, level},
				Value: collectors.Bool(j.level == level)})
		}
	}
	for _, j := range h.jobs {
		out = append(out, collectors.Sample{Metric: workloads.QuotaShadow, Labels: []string{j.team, j.name},
			Value: collectors.Bool(h.shadow)})
	}
	return out
}
