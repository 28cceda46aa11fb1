package enforcer_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"gpusteward/enforcer/suspend"
	"gpusteward/internal/fixture"
)

var (
	killWithin = flag.Duration("killings.within", 2500*time.Millisecond,
		"latest moment, `after` the suspension or resumption has begun")
	killings = flag.Int("killings", 4, "`number` of cycles in which the agent is killed")
)

// recorded returns the phase of the one record of a suspension in the agent's state; empty: there is none.
func (a *agent) recorded() string {
	var file struct {
		State struct {
			Suspended []suspend.Record `json:"suspended"`
		} `json:"state"`
	}
	text, err := os.ReadFile(filepath.Join(a.dir, "all/enforcer.json"))
	if err == nil {
		err = json.Unmarshal(text, &file)
	}
	fixture.Stop(a.t, err != nil && !errors.Is(err, os.ErrNotExist), "%v", err)
	if len(file.State.Suspended) == 0 {
		return ""
	}
	return string(file.State.Suspended[0].Phase)
}

// order gives the agent an order about a process, once the agent knows it.
func (a *agent) order(what string, pid int) error {
	ctx, cancel := context.WithTimeout(a.t.Context(), time.Minute)
	defer cancel()
	for {
		said, err := exec.CommandContext(ctx, a.path, what, "--runtime.dir="+filepath.Join(a.dir, "run"),
			strconv.Itoa(pid)).CombinedOutput()
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil || !strings.Contains(string(said), "no workload"):
			return fmt.Errorf("%s: %w: %s", what, err, said)
		}
		select {
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// killedInCycles suspends a program and resumes it again and again. It kills the agent in turn at a random moment of
// the suspension and of the resumption. After each cycle the program is to work again, and works is called.
func (a *agent) killedInCycles(w *worker, works func(cycle int)) {
	t, pid := a.t, w.Cmd.Process.Pid
	t.Helper()
	moments := map[string]int{}
	for i := range *killings {
		order, phase := "suspend", "suspending"
		if i%2 == 1 {
			err := a.order(order, pid)
			fixture.Stop(t, err != nil, "cycle %d: %v", i, err)
			order, phase = "resume-process", "resuming"
		}
		ended := make(chan error, 1)
		go func() { ended <- a.order(order, pid) }()
		var err error
		over := func(wait <-chan time.Time) bool {
			select {
			case err = <-ended:
				return true
			case <-wait:
				return false
			}
		}
		now := make(chan time.Time)
		close(now)
		done := false
		poll(t, time.Minute, "the order has no effect", func() bool {
			done = done || over(now)
			return done || a.recorded() == phase
		})
		done = done || over(time.After(time.Duration(rand.Float64()*float64(*killWithin))))
		a.again()
		switch {
		case !done:
			moments[phase]++
			<-ended
		case err == nil:
			moments["after it was "+phase]++
		default:
			t.Errorf("cycle %d: %v", i, err)
		}
		settled := ""
		poll(t, time.Minute, "it is half suspended", func() bool {
			settled = a.recorded()
			return settled == "" || settled == string(suspend.Suspended)
		})
		if settled != "" {
			err := a.order("resume-process", pid)
			fixture.If(t, err != nil, "cycle %d: %v", i, err)
		}
		works(i)
		t.Logf("cycle %d: it lives", i)
	}
	t.Logf("the agent was killed while the program was: %v", moments)
}
