package workloads

import (
	"strconv"

	"gpusteward/collectors"
	"gpusteward/internal/wire"
)

// JobStraggler names the ranks for which others on the host wait.
var JobStraggler = collectors.Gauge("nvgpu_job_straggler_ratio",
	"Part of a step by which the other ranks on the host wait longer in collectives than this rank, which comes last "+
		"again and again, by cause; absent if no rank does.", "tenant", "workload", "rank", "cause").
	Explain("cause", wire.StragglerCauses)

const maxStragglers = 64

// putStragglers puts the stragglers. The enforcer names a process once.
func putStragglers(out *collectors.Readings, all []wire.StragglerStats, index map[string]string) {
	type straggler struct {
		job
		rank int
	}
	shown := map[straggler]bool{}
	for _, s := range all {
		is := straggler{job{s.GPU, s.Tenant, s.Workload}, s.Rank}
		switch {
		case s.Workload == "" || shown[is]:
		case len(shown) >= maxStragglers:
			out.Drop(JobStraggler)
		default:
			shown[is] = true
			out.Set(JobStraggler, s.Lost, index[s.GPU], s.GPU, s.Tenant, s.Workload, strconv.Itoa(s.Rank), s.Cause)
		}
	}
}
