package workloads

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"gpusteward/collectors"
	"gpusteward/internal/wire"
)

// What programs under the hook do, by their traces. A job is a workload on a
// GPU: its processes there add up.
var (
	JobSteps = jobCounter("nvgpu_job_steps_total", "Steps that the workload's processes have finished on the GPU.")
	JobStep  = collectors.NewHistogram("nvgpu_job_step_seconds", "Seconds that a step of the workload took.",
		"tenant", "workload")
	JobParts = jobCounter("nvgpu_job_step_part_seconds_total",
		"Seconds of the workload's steps by part; the parts add up to the steps: launching, waiting (for the GPU), "+
			"copying, held (by the quota), host (no call of the driver).", "part")
	JobOutside = jobCounter("nvgpu_job_outside_seconds_total",
		"Seconds between the workload's steps, such as evaluations and checkpoints, and those without a step.")
	JobStepping = collectors.Gauge("nvgpu_job_stepping",
		"Whether a process of the workload repeats a step now.", "tenant", "workload")
	JobMedian = collectors.Gauge("nvgpu_job_step_median_seconds",
		"Median of the last steps in seconds; of several processes, the slowest one's.", "tenant", "workload")
	JobLaunches    = jobCounter("nvgpu_job_launches_total", "Kernels that the workload launched.")
	JobGraphs      = jobCounter("nvgpu_job_graph_launches_total", "Graphs that the workload launched.")
	JobWaits       = jobCounter("nvgpu_job_waits_total", "Times the workload waited for the GPU.")
	JobCopied      = jobCounter("nvgpu_job_copied_bytes_total", "Bytes that the workload requested to copy.")
	JobAllocations = jobCounter("nvgpu_job_allocations_total", "Allocations of GPU memory by the workload.")
	JobCollectives = jobCounter("nvgpu_job_collectives_total",
		"Collectives of NCCL that the workload's processes called.")
	JobCollectiveBytes = jobCounter("nvgpu_job_collective_bytes_total", "Bytes of the collectives of NCCL that the workload's processes called.")
	JobBusy            = jobCounter("nvgpu_job_busy_seconds_total",
		"Seconds in which the GPU had work of the workload, by sampling; processes add up.")
	JobSlow = jobCounter("nvgpu_job_slow_steps_total",
		"Steps that took at least 1.2 times as long as usual, by cause.", "cause")
	JobSlowdown = collectors.Gauge("nvgpu_job_slowdown_ratio",
		"Part of the time of the workload's steps that is beyond their usual time, over the last 20 s, by cause and "+
			"with the evidence at the time it was first told; of several processes, the slowest one's. Absent while "+
			"steps take as long as usual.", "tenant", "workload", "cause", "evidence").Explain("cause", wire.SlowCauses)
	JobLost = jobCounter("nvgpu_job_events_lost_total",
		"Events of the workload that its trace had no room for; its steps may be incomplete.")

	RankCollectives = rankCounter("nvgpu_rank_collectives_total", "Collectives of the communicator that the rank called.")
	RankMeasured    = rankCounter("nvgpu_rank_collectives_measured_total",
		"Collectives of the rank whose time on the GPU was measured.")
	RankSeconds = rankCounter("nvgpu_rank_collective_seconds_total",
		"Seconds that the measured collectives took on the GPU, with the wait for other ranks; "+
			"the rank that comes last has the least.")
	RankPaused = rankCounter("nvgpu_rank_paused_seconds_total",
		"Seconds of nvgpu_rank_collective_seconds_total in collectives longer than the median step: another rank saved, or "+
			"compiled.")

	JobHang = collectors.Gauge("nvgpu_job_hang",
		"Seconds since a workload that hangs last made progress; the GPU, the rank, the reason and the place are those of "+
			"the process for which the others wait.", "tenant", "workload", "rank", "reason", "where").Explain("reason", wire.HangReasons)
	WorkloadUnread = collectors.Gauge("nvgpu_workload_unread_seconds",
		"Seconds for which input of a workload that serves clients has waited unread, unaccepted or unanswered "+
			"while it neither used its GPU nor computed; 0 while none waits.", "tenant", "workload")
)

// WorkloadKernels are the kernels of a workload that have the most GPU time.
var WorkloadKernels = jobCounter("nvgpu_workload_kernel_seconds_total",
	"GPU seconds of the workload's ten kernels with the most, estimated from one second in about twenty; a graph counts "+
		"as one kernel. Absent unless enforcer.kernel_times is set.", "kernel")

func jobCounter(name, help string, labels ...string) *collectors.Metric {
	return collectors.Counter(name, help, append([]string{"tenant", "workload"}, labels...)...)
}

func rankCounter(name, help string) *collectors.Metric {
	return jobCounter(name, help, "communicator", "rank")
}

// jobMetrics holds the metrics of jobs.
var jobMetrics = []*collectors.Metric{JobSteps, JobStep, JobParts, JobOutside, JobStepping, JobMedian, JobLaunches,
	JobGraphs, JobWaits, JobCopied, JobAllocations, JobCollectives, JobCollectiveBytes, JobBusy, JobSlow,
	JobSlowdown, JobLost, RankCollectives, RankMeasured, RankSeconds, RankPaused, JobHang, WorkloadUnread, WorkloadKernels, JobStraggler}

// Limits on what is shown of jobs, and on what is kept of those that left.
const (
	maxJobs  = 64  // workloads on a GPU
	maxRanks = 256 // processes in communicators
	maxHangs = 64
	keepJob  = 10 * time.Minute
)

// A job is a workload on a GPU.
type job struct{ gpu, tenant, workload string }

// worker is a process of a job.
type worker struct {
	job
	pid int
}

// jobs keeps what processes that have ended did, so that no counter of a
// workload falls.
type jobs struct {
	workers map[worker]jobCounts // as last seen
	ended   map[job]*endedJob
}

// endedJob is what a job's processes that have ended did.
type endedJob struct {
	jobCounts
	seen time.Time // when the job last had a process
}

func newJobs() *jobs { return &jobs{workers: map[worker]jobCounts{}, ended: map[job]*endedJob{}} }

// jobCounts are the counters of a process or of a job.
type jobCounts struct {
	values map[jobCount]float64
	steps  collectors.Histogram
}

// A jobCount is one counter, with the value of its own label if it has one.
type jobCount struct {
	metric *collectors.Metric
	label  string
}

func countsOf(j *wire.JobStats) jobCounts {
	c := jobCounts{values: map[jobCount]float64{
		{JobSteps, ""}: float64(j.Steps), {JobOutside, ""}: j.Outside, {JobLaunches, ""}: float64(j.Launches),
		{JobGraphs, ""}: float64(j.Graphs), {JobWaits, ""}: float64(j.Waits), {JobCopied, ""}: float64(j.CopiedBytes),
		{JobAllocations, ""}: float64(j.Allocations), {JobCollectives, ""}: float64(j.Collectives),
		{JobCollectiveBytes, ""}: float64(j.CollectiveBytes), {JobBusy, ""}: j.Busy, {JobLost, ""}: float64(j.Lost),
	}, steps: j.Seconds}
	for part, seconds := range j.Parts {
		c.values[jobCount{JobParts, part}] = seconds
	}
	for cause, n := range j.Slow {
		c.values[jobCount{JobSlow, cause}] = float64(n)
	}
	return c
}

// add adds o to c.
func (c *jobCounts) add(o jobCounts) {
	if c.values == nil {
		c.values, c.steps.Buckets = map[jobCount]float64{}, map[int]uint64{}
	}
	for key, v := range o.values {
		c.values[key] += v
	}
	for i, n := range o.steps.Buckets {
		c.steps.Buckets[i] += n
	}
	c.steps.Count += o.steps.Count
	c.steps.Sum += o.steps.Sum
}

// follows reports whether c is later than before. Otherwise it belongs to another
// process with the same PID, or the enforcer was restarted.
func (c *jobCounts) follows(before jobCounts) bool {
	for _, calls := range []*collectors.Metric{JobLaunches, JobGraphs, JobWaits} {
		if key := (jobCount{calls, ""}); c.values[key] < before.values[key] {
			return false
		}
	}
	return true
}

// keep keeps c from falling below before: the enforcer may correct a figure.
func (c *jobCounts) keep(before jobCounts) {
	for key, v := range before.values {
		c.values[key] = max(c.values[key], v)
	}
}

// update returns what each job has done by now. Processes whose workload is not
// known yet are left out.
func (j *jobs) update(now time.Time, stats []wire.JobStats) map[job]*jobCounts {
	workers, sums := map[worker]jobCounts{}, map[job]*jobCounts{}
	for i := range stats {
		s := &stats[i]
		w := worker{job{s.GPU, s.Tenant, s.Workload}, s.PID}
		if s.Workload == "" {
			continue
		}
		counts := countsOf(s)
		if before, known := j.workers[w]; known && counts.follows(before) {
			counts.keep(before)
			delete(j.workers, w)
		}
		if workers[w] = counts; sums[w.job] == nil {
			sums[w.job] = new(jobCounts)
		}
		sums[w.job].add(counts)
	}
	for w, last := range j.workers { // those that have ended
		if j.ended[w.job] == nil {
			j.ended[w.job] = &endedJob{seen: now}
		}
		j.ended[w.job].add(last)
	}
	j.workers = workers
	for name, e := range j.ended {
		switch sum := sums[name]; {
		case now.Sub(e.seen) > keepJob:
			delete(j.ended, name)
		case sum != nil:
			e.seen = now
			sum.add(e.jobCounts)
		}
	}
	return sums
}

// put puts the metrics of jobs. index maps UUIDs to the GPUs' indices.
func (j *jobs) put(out *collectors.Readings, s *wire.EnforcerStats, index map[string]string) {
	sums := j.update(out.Now, s.Jobs)
	stepping, median, slowest := map[job]bool{}, map[job]float64{}, map[job]*wire.Slowdown{}
	for i := range s.Jobs {
		w := &s.Jobs[i]
		name := job{w.GPU, w.Tenant, w.Workload}
		stepping[name] = stepping[name] || w.Stepping
		median[name] = max(median[name], w.Median)
		if w.Slowdown != nil && (slowest[name] == nil || slowest[name].Part() < w.Slowdown.Part()) {
			slowest[name] = w.Slowdown
		}
	}
	for i, name := range byTurns(slices.SortedFunc(maps.Keys(sums), job.compare), func(j *job) job { return *j }) {
		if i >= maxJobs {
			out.Drop(JobSteps)
			continue
		}
		labels := []string{index[name.gpu], name.gpu, name.tenant, name.workload}
		for count, v := range sums[name].values {
			all := labels
			if count.label != "" {
				all = append(slices.Clone(labels), count.label)
			}
			out.Set(count.metric, v, all...)
		}
		if sums[name].steps.Count > 0 {
			out.SetHistogram(JobStep, &sums[name].steps, labels...)
		}
		out.Set(JobStepping, collectors.Bool(stepping[name]), labels...)
		if median[name] > 0 {
			out.Set(JobMedian, median[name], labels...)
		}
		if s := slowest[name]; s != nil {
			out.Set(JobSlowdown, s.Part(), append(slices.Clone(labels), s.Cause, s.Evidence)...)
		}
	}
	putRanks(out, byTurns(s.Jobs, func(p *wire.JobStats) job { return job{tenant: p.Tenant, workload: p.Workload} }), index)
	putHangs(out, byTurns(s.Hangs, func(h *wire.HangStats) job { return job{tenant: h.Tenant, workload: h.Workload} }), index)
	putUnread(out, s.Unread, index)
	for _, k := range s.Kernels {
		out.Set(WorkloadKernels, k.Seconds, index[k.GPU], k.GPU, k.Tenant, k.Workload, k.Kernel)
	}
	putStragglers(out, byTurns(s.Stragglers, func(r *wire.StragglerStats) job { return job{tenant: r.Tenant, workload: r.Workload} }), index)
}

func (j job) compare(o job) int {
	return cmp.Or(cmp.Compare(j.gpu, o.gpu), cmp.Compare(j.tenant, o.tenant), cmp.Compare(j.workload, o.workload))
}

// whose returns what the containers of a user or a pod have in common.
func (j job) whose() job {
	of, _, _ := strings.Cut(j.workload, "/")
	return job{tenant: j.tenant, workload: of}
}

// byTurns returns rows with the first of each job, pod or user before the second of any. Not all may be shown, and who
// has many must not hide those of others.
func byTurns[T any](all []T, of func(*T) job) []T {
	n, turns := map[job]int{}, [][]T{}
	for i := range all {
		whose := of(&all[i]).whose()
		if n[whose] == len(turns) {
			turns = append(turns, nil)
		}
		turns[n[whose]] = append(turns[n[whose]], all[i])
		n[whose]++
	}
	return slices.Concat(turns...)
}

// putRanks puts what ranks did in their communicators.
func putRanks(out *collectors.Readings, all []wire.JobStats, index map[string]string) {
	type membership struct {
		job
		communicator string
		rank         int
	}
	shown := map[membership]bool{}
	for i := range all {
		p := &all[i]
		for _, c := range p.Communicators {
			m := membership{job{p.GPU, p.Tenant, p.Workload}, c.ID, c.Rank}
			switch {
			case p.Workload == "" || shown[m]:
				continue
			case len(shown) >= maxRanks:
				out.Drop(RankCollectives)
				continue
			}
			shown[m] = true
			labels := []string{index[p.GPU], p.GPU, p.Tenant, p.Workload, c.ID, strconv.Itoa(c.Rank)}
			out.Set(RankCollectives, float64(c.Entered), labels...)
			out.Set(RankMeasured, float64(c.Measured), labels...)
			out.Set(RankSeconds, c.Seconds, labels...)
			out.Set(RankPaused, c.Paused, labels...)
		}
	}
}

// putUnread puts for how long input waits. Of several servers of a workload it puts the longest time.
func putUnread(out *collectors.Readings, all []wire.UnreadStats, index map[string]string) {
	longest := map[job]float64{}
	for _, s := range all {
		name := job{s.GPU, s.Tenant, s.Workload}
		longest[name] = max(longest[name], s.Seconds)
	}
	for name, v := range longest {
		out.Set(WorkloadUnread, v, index[name.gpu], name.gpu, name.tenant, name.workload)
	}
}

// putHangs puts the hangs. Of several with one culprit it puts the longest.
func putHangs(out *collectors.Readings, all []wire.HangStats, index map[string]string) {
	type culprit struct {
		job
		rank, reason string
	}
	longest := map[culprit]wire.HangStats{}
	for _, h := range all {
		c := culprit{job: job{h.GPU, h.Tenant, h.Workload}, reason: h.Reason}
		if h.Rank >= 0 {
			c.rank = strconv.Itoa(h.Rank)
		}
		known, is := longest[c]
		switch {
		case !is && len(longest) >= maxHangs:
			out.Drop(JobHang)
		case !is || h.Seconds > known.Seconds:
			longest[c] = h
		}
	}
	for c, h := range longest {
		out.Set(JobHang, h.Seconds, index[c.gpu], c.gpu, c.tenant, c.workload, c.rank, c.reason, h.Where)
	}
}
