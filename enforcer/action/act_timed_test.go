//go:build timed

package action

import (
	"os/exec"
	"slices"
	"testing"
	"time"

	"gpusteward/enforcer/escalation"
	"gpusteward/internal/fixture"
)

// TestHowSoonActionsAreFelt measures the time from a decision until each of 200 processes has stopped or ended.
func TestHowSoonActionsAreFelt(t *testing.T) {
	const most = 300 * time.Millisecond // the goal is 100 ms on a machine of many processors
	a := actor(t)
	cmds := make([]*exec.Cmd, 200)
	who := make([]Target, len(cmds))
	for i := range cmds {
		cmds[i] = child(t, "sleep", "1000")
		who[i] = target(t, a, cmds[i].Process.Pid)
	}
	report := func(what string, took []time.Duration) {
		slices.Sort(took)
		t.Logf("decision to %s, %d processes: p50 %v, p99 %v", what, len(took), took[len(took)/2],
			took[len(took)*99/100])
		fixture.AtMost(t, took[len(took)*99/100], most, "%s: p99 is", what)
	}

	began := time.Now()
	answered(a.Pause(processGroup(who...), []string{bySignal})).tells(t, escalation.Done, "")
	took := make([]time.Duration, len(who))
	fixture.Eventually(t, "all stand still", func() bool {
		left := 0
		for i, w := range who {
			if took[i] == 0 && state(a, w.PID) == 'T' {
				took[i] = time.Since(began)
			}
			if took[i] == 0 {
				left++
			}
		}
		return left == 0
	})
	report("pause by SIGSTOP", took)
	answered(a.Resume(processGroup())).tells(t, escalation.Done, "")

	ends := make(chan time.Time, len(cmds))
	for _, cmd := range cmds {
		go func() { _ = cmd.Wait(); ends <- time.Now() }()
	}
	began = time.Now()
	answered(a.Terminate(began, processGroup(who...), time.Minute)).is(t, escalation.Done, "SIGTERM: 200 done, 0 missed, 0 failed")
	for i := range took {
		took[i] = (<-ends).Sub(began)
	}
	report("end by SIGTERM", took)

	versions(t, func(t *testing.T, a *Actor, v1 bool) {
		dir, _ := realGroup(t, a, v1)
		who := sleepers(t, a, 200)
		for _, w := range who {
			join(t, dir, w.PID)
		}
		began := time.Now()
		answered(a.Pause(processGroup(who...), []string{byFreezer})).tells(t, escalation.Done, "")
		defer a.Resume(processGroup())
		fixture.Eventually(t, "all stand still", func() bool { is, err := a.Still(someone); return is && err == nil })
		all := time.Since(began)
		t.Logf("decision to pause by the freezer, all of %d processes: %v", len(who), all)
		fixture.AtMost(t, all, most, "it took")
	})
}
