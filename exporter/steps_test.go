package exporter

import (
	"encoding/json"
	"fmt"
	"math"
	"testing"
	"time"

	"gpusteward/collectors/workloads"
	"gpusteward/internal/fixture"
)

// steps adds what a workload's process on a GPU has counted: so many steps of a second, a quarter of it on the host.
func (s *samples) steps(workload, gpu string, n, outside, slow float64) {
	labels := func(more ...string) []string {
		return append([]string{gpu, "GPU-" + gpu, "default", workload}, more...)
	}
	s.job(workload, gpu, 1, 1)
	s.put(workloads.JobSteps, n, labels()...)
	s.put(workloads.JobOutside, outside, labels()...)
	s.put(workloads.JobParts, .75*n, labels("waiting")...)
	s.put(workloads.JobParts, .25*n, labels("host")...)
	s.put(workloads.JobParts, 0, labels("held")...)
	s.put(workloads.JobSlow, slow, labels("cpu")...)
}

// rank adds what a rank has counted.
func (s *samples) rank(workload, gpu, communicator, rank string, called, measured, seconds float64) {
	labels := []string{gpu, "GPU-" + gpu, "default", workload, communicator, rank}
	s.put(workloads.RankCollectives, called, labels...)
	s.put(workloads.RankMeasured, measured, labels...)
	s.put(workloads.RankSeconds, seconds, labels...)
}

// told returns the steps of the workload w, after p has seen the samples.
func told(p *pace, after time.Duration, s samples) Workload {
	state := State{Time: noon.Add(after)}
	state.fill(s)
	p.tell(&state)
	return state.Workloads[0]
}

// wantSteps fails unless these are the seconds on the host, the goodput and the slow ones.
func wantSteps(t *testing.T, when string, w Workload, host, goodput, slow float64) {
	t.Helper()
	want := fmt.Sprintf(`{"seconds":1,"part_seconds":{"held":0,"host":%v,"waiting":0.75},"goodput_ratio":%v,`+
		`"slow_ratio":{"cpu":%v}}`, host, goodput, slow)
	text := string(fixture.Value(json.Marshal(w.Steps))(t))
	fixture.Equal(t, text, want, "%s: the steps are", when)
}

// TestStepsAreRecent: at first the steps are those since the workload began, later those of the last minutes.
func TestStepsAreRecent(t *testing.T) {
	var p pace
	at := func(after time.Duration, n, outside, slow float64, hostly float64) Workload {
		var s samples
		s.steps("w", "0", n, outside, slow)
		s.steps("w", "1", n, outside, 0)
		s.put(workloads.JobParts, hostly, "0", "GPU-0", "default", "w", "host")
		return told(&p, after, s)
	}
	wantSteps(t, "at first", at(0, 100, 100, 7, 0), 0.25, 0.5, 7./200)
	wantSteps(t, "within a minute", at(30*time.Second, 130, 100, 7, 0), 0.25, 1, 0)
	at(time.Minute, 160, 100, 7, 0)
	wantSteps(t, "after slower steps", at(2*time.Minute, 200, 120, 9, 40), 0.75, 6./7, 2./200)
	wantSteps(t, "when no step ended for a while", at(10*time.Minute, 200, 120, 9, 40), 0.75, 6./7, 2./200)
	wantSteps(t, "when the slow ones were long ago", at(18*time.Minute, 300, 120, 9, 40), 0.25, 1, 0)
	fixture.Equal(t, len(p.past), 2, "… moments are kept of 15 minutes")
}

// TestGoodputFallsWhileAWorkloadStands: after ten minutes of steps, all of its time is outside.
func TestGoodputFallsWhileAWorkloadStands(t *testing.T) {
	var p pace
	want := map[int]float64{10: 1, 15: 2. / 3, 20: 1. / 3, 25: 0, 30: 0}
	for minute := range 31 {
		var s samples
		s.steps("w", "0", float64(60*min(minute, 10)), float64(60*max(0, minute-10)), 0)
		w := told(&p, time.Duration(minute)*time.Minute, s)
		if part, ok := want[minute]; ok && math.Abs(*w.Steps.Goodput-part) > 1e-9 {
			t.Errorf("after %d minutes its goodput is %g, want %g", minute, *w.Steps.Goodput, part)
		}
	}
}

// TestStepsBelongToTheCurrentWorkload: a workload that is new, has come again
// or has left a GPU has the steps since it began.
func TestStepsBelongToTheCurrentWorkload(t *testing.T) {
	var p pace
	var both, one, none samples
	both.steps("w", "0", 100, 0, 0)
	both.steps("w", "1", 100, 100, 0)
	one.steps("w", "0", 120, 0, 3)
	none.job("w", "0", 0, 0)
	wantSteps(t, "on two GPUs", told(&p, 0, both), 0.25, 2./3, 0)
	wantSteps(t, "on one", told(&p, 2*time.Minute, one), 0.25, 1, 3./120)
	w := told(&p, 4*time.Minute, none)
	fixture.If(t, w.Steps != nil, "without any, they are %+v", w.Steps)
}

// TestStepIsThatOfTheSlowestGPU that steps; a server has none.
func TestStepIsThatOfTheSlowestGPU(t *testing.T) {
	var server samples
	server.job("w", "0", 0, 0)
	server.put(workloads.JobSteps, 0, "0", "GPU-0", "default", "w")
	if w := told(new(pace), 0, server); w.Steps != nil {
		t.Errorf("a server has the steps %+v", w.Steps)
	}
	for _, c := range []struct{ first, second, want float64 }{{1, 1, 3}, {1, 0, 2}, {0, 0, 0}} {
		var s samples
		s.job("w", "0", c.first, 2)
		s.job("w", "1", c.second, 3)
		s.put(workloads.JobSteps, 5, "0", "GPU-0", "default", "w")
		if w := told(new(pace), 0, s); w.Steps.Seconds != c.want || w.Steps.Parts != nil || w.Steps.Goodput != nil {
			t.Errorf("%+v: the steps are %+v", c, w.Steps)
		}
	}
}

// TestRanksHaveTheirRecentTime checks order, place and recent mean of ranks.
func TestRanksHaveTheirRecentTime(t *testing.T) {
	var p pace
	at := func(after time.Duration, n float64) Workload {
		var s samples
		s.steps("w", "0", n, 0, 0)
		s.rank("w", "0", "c0", "10", n, n, n)
		s.rank("w", "0", "c0", "9", 2*n, n, max(n, 2*n-100))
		s.rank("w", "1", "b0", "0", n, 0, 0)
		return told(&p, after, s)
	}
	at(0, 100)
	w := at(time.Minute, 200)
	text := string(fixture.Value(json.Marshal([][]Rank{w.GPUs[0].Job.Ranks, w.GPUs[1].Job.Ranks}))(t))
	const want = `[[{"communicator":"c0","rank":9,"collectives":400,"collective_seconds":2},` +
		`{"communicator":"c0","rank":10,"collectives":200,"collective_seconds":1}],` +
		`[{"communicator":"b0","rank":0,"collectives":200}]]`
	fixture.Equal(t, text, want, "the ranks are")
}

// TestHangHasAnExplanation: programs need no table of reasons.
func TestHangHasAnExplanation(t *testing.T) {
	var s samples
	s.put(workloads.JobHang, 61, "0", "GPU-0", "default", "w", "3", "stopped", "a.py:1 in f")
	text := string(fixture.Value(json.Marshal(told(new(pace), 0, s).GPUs[0].Job))(t))
	const want = `{"stepping":false,"hang":{"seconds":61,"rank":"3","reason":"stopped",` +
		`"what":"it was stopped by a signal or a debugger","where":"a.py:1 in f"}}`
	fixture.Equal(t, text, want, "the job is")
}
