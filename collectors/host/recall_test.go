package host

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"gpusteward/internal/fixture"
)

func TestRecall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		proc := &fakeProc{}
		start := time.Now()
		first := in("/a.slice/a.service")
		first.Began = start
		proc.set(1, first)
		table := NewTable(Options{Proc: proc})
		recall := func(pid int, at time.Time) string {
			p, ok := table.Recall(pid, at)
			if !ok {
				return ""
			}
			return p.Workload.Key
		}
		fixture.Equal(t, recall(1, start.Add(-2*time.Second)), "", "… had the PID before it began")
		fixture.Equal(t, recall(1, start), "unit:a.service", "the living process is of")
		time.Sleep(time.Minute)
		proc.set(1, nil)
		ended := time.Now()
		fixture.Equal(t, recall(1, ended), "unit:a.service", "the process that just ended is of")
		fixture.Equal(t, recall(1, ended.Add(2*time.Second)), "", "… still has the PID after it ended")
		time.Sleep(time.Minute)
		next := in("/a.slice/b.service")
		next.Start, next.Began = 6, time.Now()
		proc.set(1, next) // reuse the PID
		if a, b := recall(1, ended.Add(-time.Second)), recall(1, time.Now()); a != "unit:a.service" ||
			b != "unit:b.service" {
			t.Errorf("the PID was of %q and is of %q", a, b)
		}
		fixture.Equal(t, recall(1, ended.Add(30*time.Second)), "", "… had the PID while no process had it")
		time.Sleep(recalled - time.Minute + time.Second)
		fixture.Equal(t, recall(1, ended.Add(-time.Second)), "", "it is")
	})
}

func TestRecallOfAForgottenProcess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		proc := &fakeProc{}
		for pid := range mostKnown + 10 {
			p := in("/a.slice/a.service")
			p.Began = time.Now()
			proc.set(pid, p)
		}
		table := NewTable(Options{Proc: proc})
		for round := range 3 {
			for pid := range mostKnown {
				keyOf(t, table, pid)
			}
			time.Sleep(forget + sweepEach)
			keyOf(t, table, mostKnown+round) // sweeps
		}
		fixture.Equal(t, fmt.Sprint(len(table.past), proc.handles()), fmt.Sprint(mostKnown, 1), "past processes and handles are")
		proc.set(5, nil)
		if p, ok := table.Recall(5, time.Now().Add(-forget-sweepEach)); !ok || p.Workload.Key != "unit:a.service" {
			t.Errorf("%+v, %v", p, ok)
		}
	})
}
