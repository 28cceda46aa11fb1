package broker

import (
	"time"

	"gpusteward/internal/wire"
)

// Times after which the enforcer reports trouble.
const (
	reportsSlow      = 15 * time.Second
	reportsHang      = 10 * time.Second
	reportsStraggler = 25 * time.Second
)

// slowdown returns why the job's steps take longer than usual, if they do.
func (j *Training) slowdown() *wire.Slowdown {
	f, since := j.Fault("job_slow")
	if f == nil || since < reportsSlow {
		return nil
	}
	usual := time.Duration(j.Job.Step).Seconds()
	return &wire.Slowdown{Seconds: usual * (1 + f.Part()), Usual: usual, Cause: f.Value, Evidence: f.Line}
}

// trouble adds the hang and the straggler whose culprit a process is.
func (g *GPU) trouble(p *Process, e *wire.EnforcerStats) {
	j, uuid := g.options.Training, g.options.UUID
	hang, hangs := j.Fault("job_hang")
	if hang != nil && hang.GPU == j.GPU && hangs >= reportsHang {
		e.Hangs = append(e.Hangs, wire.HangStats{Tenant: p.books.Name, Workload: p.Workload, GPU: uuid, PID: p.PID,
			Rank: j.Rank, Reason: hang.Value, Where: hang.Line, Seconds: hangs.Seconds(), Waiting: j.Ranks - 1})
	}
	f, since := j.Fault("job_straggler")
	if f != nil && f.GPU == j.GPU && since >= reportsStraggler && hang == nil {
		e.Stragglers = append(e.Stragglers, wire.StragglerStats{Tenant: p.books.Name, Workload: p.Workload, GPU: uuid,
			PID: p.PID, Rank: j.Rank, Cause: f.Value, Lost: f.Part()})
	}
}
