package workloads

import (
	"fmt"
	"testing"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/gpu"
	"gpusteward/collectors/hosttest"
	"gpusteward/internal/fixture"
	"gpusteward/internal/wire"
)

// stepped is a process that has done steps of a second.
func stepped(pid int, workload string, steps uint64) wire.JobStats {
	return wire.JobStats{Tenant: "t", Workload: workload, GPU: "G", PID: pid, Steps: steps, Launches: 10 * steps,
		Seconds: wire.Exponential{Buckets: map[int]uint64{0: steps}, Count: steps, Sum: float64(steps)},
		Parts:   map[string]float64{"host": float64(steps)}, Slow: map[string]uint64{"cpu": steps}}
}

// readJobs returns the series of jobs after a pass.
func readJobs(t *testing.T, j *jobs, now time.Time, s wire.EnforcerStats) (map[string]float64, *collectors.Readings) {
	t.Helper()
	out := &collectors.Readings{Now: now, Known: func() []gpu.ID { return nil }}
	j.put(out, &s, map[string]string{"G": "0"})
	got := hosttest.Series(out.Samples)
	fixture.Equal(t, len(got), len(out.Samples), "a scrape with duplicates is refused: the different series are")
	return got, out
}

// TestCountersOfAJobNeverFall lets processes of a job come and go.
func TestCountersOfAJobNeverFall(t *testing.T) {
	j, began := newJobs(), time.Now()
	for _, c := range []struct {
		name  string
		after time.Duration
		jobs  []wire.JobStats
		steps float64 // -1: not shown
	}{
		{"one process", 0, []wire.JobStats{stepped(1, "w", 5)}, 5},
		{"two add up", time.Second, []wire.JobStats{stepped(1, "w", 6), stepped(2, "w", 3)}, 9},
		{"one ends", 2 * time.Second, []wire.JobStats{stepped(2, "w", 4)}, 10},
		{"another has its PID", 3 * time.Second, []wire.JobStats{stepped(2, "w", 1)}, 11},
		{"all have ended", 4 * time.Second, nil, -1},
		{"it returns in time", 9 * time.Minute, []wire.JobStats{stepped(3, "w", 2)}, 13},
		{"it leaves again", 10 * time.Minute, nil, -1},
		{"it returns too late", 20 * time.Minute, []wire.JobStats{stepped(4, "w", 2)}, 2},
		{"its workload is not known yet", 21 * time.Minute, []wire.JobStats{stepped(4, "w", 2), stepped(5, "", 9)}, 2},
	} {
		got, out := readJobs(t, j, began.Add(c.after), wire.EnforcerStats{Jobs: c.jobs})
		const labels = `gpu="0",tenant="t",uuid="G",workload="w"}`
		want := map[string]float64{
			"nvgpu_job_steps_total{" + labels: c.steps, "nvgpu_job_launches_total{" + labels: 10 * c.steps,
			"nvgpu_job_step_seconds{" + labels: c.steps, `nvgpu_job_slow_steps_total{cause="cpu",` + labels: c.steps,
			`nvgpu_job_step_part_seconds_total{gpu="0",part="host",tenant="t",uuid="G",workload="w"}`: c.steps,
		}
		for name, v := range want {
			if is, shown := got[name]; shown != (c.steps >= 0) || shown && is != v {
				t.Errorf("%s: %s is %v (shown: %v), want %v", c.name, name, is, shown, v)
			}
		}
		for _, s := range out.Samples {
			if h := s.Histogram; s.Metric == JobStep &&
				(h == nil || float64(h.Buckets[0]) != c.steps || h.Sum != c.steps || float64(h.Count) != c.steps) {
				t.Errorf("%s: the histogram is %+v", c.name, h)
			}
		}
	}
	fixture.Equal(t, fmt.Sprint(len(j.workers), len(j.ended)), "1 0", "processes and jobs that are kept")
}

// TestCorrectedCounterDoesNotFall: the enforcer may find that time belongs elsewhere.
func TestCorrectedCounterDoesNotFall(t *testing.T) {
	j, one := newJobs(), stepped(1, "w", 5)
	for i, outside := range []float64{7, 6, 8} {
		one.Outside, one.Launches = outside, one.Launches+1
		got, _ := readJobs(t, j, time.Now(), wire.EnforcerStats{Jobs: []wire.JobStats{one}})
		want := []float64{7, 7, 8}[i]
		fixture.Equal(t, got[`nvgpu_job_outside_seconds_total{gpu="0",tenant="t",uuid="G",workload="w"}`], want,
			"%v s are outside of steps, then", outside)
	}
}

// TestJobStepIsThatOfItsSlowestProcess: of a job's processes, one that steps
// makes it step, and the slowest has its median.
func TestJobStepIsThatOfItsSlowestProcess(t *testing.T) {
	one, two := stepped(1, "w", 5), stepped(2, "w", 5)
	one.Stepping, one.Median, two.Median = true, 0.1, 0.3
	got, _ := readJobs(t, newJobs(), time.Now(), wire.EnforcerStats{Jobs: []wire.JobStats{one, two, stepped(3, "v", 0)}})
	for name, want := range map[string]float64{
		`nvgpu_job_stepping{gpu="0",tenant="t",uuid="G",workload="w"}`:            1,
		`nvgpu_job_stepping{gpu="0",tenant="t",uuid="G",workload="v"}`:            0,
		`nvgpu_job_step_median_seconds{gpu="0",tenant="t",uuid="G",workload="w"}`: 0.3,
	} {
		v, shown := got[name]
		fixture.If(t, !shown || v != want, "%s is %v (shown: %v), want %v", name, v, shown, want)
	}
	for _, name := range []string{"nvgpu_job_step_median_seconds", "nvgpu_job_step_seconds"} {
		_, shown := got[name+`{gpu="0",tenant="t",uuid="G",workload="v"}`]
		fixture.If(t, shown, "a job without steps has %s", name)
	}
}

// TestManyJobsAreBounded checks that jobs, ranks and hangs beyond the limits
// are counted, and that equal ones make one series.
func TestManyJobsAreBounded(t *testing.T) {
	var s wire.EnforcerStats
	for i := range 400 {
		one := stepped(i, fmt.Sprint("w", i), 1)
		one.Communicators = []wire.CommunicatorStats{{ID: "c", Rank: i}, {ID: "c", Rank: i}}
		s.Jobs = append(s.Jobs, one)
		s.Hangs = append(s.Hangs, wire.HangStats{Tenant: "t", Workload: one.Workload, GPU: "G", Rank: -1,
			Reason: "kernel", Where: "a", Seconds: 3})
		for range 2 { // ranks in one workload on a GPU are one
			s.Stragglers = append(s.Stragglers, wire.StragglerStats{Tenant: "t", Workload: one.Workload, GPU: "G", Cause: "gpu"})
		}
	}
	longer := s.Hangs[0]
	longer.Where, longer.Seconds = "b", 4
	s.Hangs = append(s.Hangs, longer)
	s.Unread = []wire.UnreadStats{{Tenant: "t", Workload: "w0", GPU: "G"}, {Tenant: "t", Workload: "w0", GPU: "G", Seconds: 31},
		{Tenant: "t", Workload: "w1", GPU: "G"}}
	got, out := readJobs(t, newJobs(), time.Now(), s)
	for m, want := range map[*collectors.Metric]int{JobSteps: 400 - maxJobs, RankCollectives: 2 * (400 - maxRanks),
		JobHang: 400 - maxHangs, JobStraggler: 2 * (400 - maxStragglers)} {
		fixture.Equal(t, out.Dropped[m], want, "%v: dropped", m)
	}
	fixture.Equal(t, got[`nvgpu_job_hang{gpu="0",rank="",reason="kernel",tenant="t",uuid="G",where="b",workload="w0"}`], 4,
		"the longest of two hangs of one culprit is")
	fixture.Equal(t, got[`nvgpu_workload_unread_seconds{gpu="0",tenant="t",uuid="G",workload="w0"}`], 31, "clients of w0 wait for")
	zero, shown := got[`nvgpu_workload_unread_seconds{gpu="0",tenant="t",uuid="G",workload="w1"}`]
	fixture.Equal(t, zero == 0 && shown, true, "w1 is shown with 0:")
}

// TestNobodysManyHideOthers shows the rank and the hang of a job beside more of a user's containers than are shown.
func TestNobodysManyHideOthers(t *testing.T) {
	var s wire.EnforcerStats
	for i := range 400 {
		one := stepped(i, map[bool]string{true: "few", false: fmt.Sprint("container:1000/", i)}[i == 399], 1)
		one.Communicators = []wire.CommunicatorStats{{ID: "c", Rank: i}}
		s.Jobs = append(s.Jobs, one)
		s.Hangs = append(s.Hangs, wire.HangStats{Tenant: "t", Workload: one.Workload, GPU: "G", Rank: i, Reason: "absent"})
		s.Stragglers = append(s.Stragglers, wire.StragglerStats{Tenant: "t", Workload: one.Workload, GPU: "G", Rank: i})
	}
	got, _ := readJobs(t, newJobs(), time.Now(), s)
	for _, name := range []string{`nvgpu_rank_collectives_total{communicator="c",gpu="0",rank="399",tenant="t",uuid="G",workload="few"}`,
		`nvgpu_job_hang{gpu="0",rank="399",reason="absent",tenant="t",uuid="G",where="",workload="few"}`,
		`nvgpu_job_stepping{gpu="0",tenant="t",uuid="G",workload="few"}`, `nvgpu_job_straggler_ratio{cause="",gpu="0",rank="399",tenant="t",uuid="G",workload="few"}`} {
		_, shown := got[name]
		fixture.If(t, !shown, "%s is hidden", name)
	}
}
