package health

import (
	"strconv"

	"gpusteward/collectors"
	"gpusteward/collectors/workloads"
)

// show returns the host's current samples.
func (h *healthyHost) show() []collectors.Sample {
	out := h.out[:0]
	for _, s := range h.kernel {
		out = append(out, collectors.Sample{Metric: s.metric, Labels: s.labels, Value: *s.value})
	}
	if h.away > 0 {
		h.out = out
		return out
	}
	out = append(out, collectors.Sample{Metric: collectors.Devices, Value: float64(len(h.gpus))})
	gaps := len(h.absent)+len(h.late) > 0
	for g := range h.late {
		g.seen.up = 0
		out = append(out, collectors.Sample{Metric: collectors.WorkerStuck, Labels: []string{g.gpu, g.uuid,
			"late"}, Value: 1})
	}
	for _, s := range h.series {
		if gaps && h.missing(s) {
			continue
		}
		out = append(out, collectors.Sample{Metric: s.metric, Labels: s.labels, Value: *s.value})
	}
	h.out = h.workloads(out)
	for a, left := range h.absent {
		if h.absent[a]--; left <= 1 {
			delete(h.absent, a)
		}
	}
	for g, left := range h.late {
		g.seen.up = 1
		if h.late[g]--; left <= 1 {
			delete(h.late, g)
		}
	}
	return h.out
}

// missing reports whether a series is absent this time.
func (h *healthyHost) missing(s series) bool {
	return h.absent[absence{s.metric, s.gpu}] > 0 || h.late[s.gpu] > 0 && !s.with
}

// workloads adds the users of the GPUs.
func (h *healthyHost) workloads(out []collectors.Sample) []collectors.Sample {
	for _, g := range h.gpus {
		most := (g.seen.used + g.seen.free) / 4
		for i := range g.seen.migUsed {
			g.seen.migUsed[i], g.seen.migFree[i] = 0, most
		}
	}
	for _, j := range h.jobs {
		if gi, err := strconv.Atoi(j.gi); err == nil {
			v := &j.gpus[0].seen
			v.migUsed[gi-1] += j.held[0]
			v.migFree[gi-1] -= j.held[0]
		}
	}
	each := func(m *collectors.Metric, value func(*job, int) float64, labels func(*job) []string) {
		for _, j := range h.jobs {
			for i, g := range j.gpus {
				if j.held[i] > 0 && h.late[g] == 0 && h.absent[absence{m, g}] == 0 {
					out = append(out, collectors.Sample{Metric: m, Labels: append([]string{g.gpu, g.uuid, j.name},
						labels(j)...), Value: value(j, i)})
				}
			}
		}
	}
	each(workloads.WorkloadMemory, func(j *job, i int) float64 { return j.held[i] },
		func(j *job) []string { return []string{j.gi} })
	sm := []string{"sm"}
	each(workloads.WorkloadUse, func(j *job, i int) float64 { return j.use[i] }, func(*job) []string { return sm })
	if h.quotas {
		return h.enforced(out)
	}
	return out
}
