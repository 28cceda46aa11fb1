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
	"testing"
	"time"

	"gpusteward/enforcer/suspend"
	"gpusteward/internal/fixture"
)

var (
	killWithin = flag.Duration("killings.within", 2500*time.Millisecond,
		"latest moment, `after` the suspension or resumption has begun")
	killings = flag.Int("killings", 4, "`number` of cycles in which the agent is killed")
)

// recorded returns the phase of the one record of a suspension in the agent's state;
// empty: there is none.
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
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		a.t.Fatal(err)
	}
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

// killedInCycles suspends a program and resumes it again and again. It kills the
// agent in turn at a random moment of the suspension and of the resumption. After
// each cycle the program is to work again, and works is called.
func (a *agent) killedInCycles(w *worker, works func(cycle int)) {
	t, pid := a.t, w.cmd.Process.Pid
	t.Helper()
	moments := map[string]int{}
	for i := range *killings {
		order, phase := "suspend", "suspending"
		if i%2 == 1 {
			if err := a.order(order, pid); err != nil {
				t.Fatalf("cycle %d: %v", i, err)
			}
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
			if err := a.order("resume-process", pid); err != nil {
				t.Errorf("cycle %d: %v", i, err)
			}
		}
		works(i)
		t.Logf("cycle %d: it lives", i)
	}
	t.Logf("the agent was killed while the program was: %v", moments)
}

// TestKilledAgentLosesNobody kills the agent at moments of cycles on a simulated
// GPU. Unlike an enforcer that ends, it cannot wait for its calls of the driver.
func TestKilledAgentLosesNobody(t *testing.T) {
	t.Setenv("GS_STUB_CHECKPOINT_RATE", strconv.Itoa(1<<30))
	t.Setenv("GS_STUB_RESTORE_RATE", strconv.Itoa(1<<30))
	a := startAgent(t, 1, 0, "open", "    - {name: a, select: [{executables: [\"*/a\"]}]}\n", "all")
	w := a.job("a", 0, "--kernel-us=2000", "--alloc-mib=1024", "--seconds=600")
	ready(t, w)
	w.tell("go")
	a.killedInCycles(w, func(i int) {
		at := fixture.Monotonic()
		if !w.until(20*time.Second, func(s *series) bool { return s.by(fixture.Monotonic()) > s.by(at) }) {
			t.Fatalf("cycle %d: the program does not work\n%s", i, a.log("all"))
		}
	})
	if strings.Contains(a.log("all"), "the escalation changed a level") {
		t.Errorf("the program is accused\n%s", a.log("all"))
	}
}

// TestSuspendedProcessOutlivesTheAgent kills the agent while a process is suspended whose
// work is done. Until the next agent resumes it, nothing asks the driver about its work:
// that would end it. So it is with a process that asks all the time.
func TestSuspendedProcessOutlivesTheAgent(t *testing.T) {
	for name, options := range map[string][]string{
		"at rest": {"--burst-ms=2", "--sleep-ms=1000"}, "asking": {"--kernel-us=2000", "--report-ms=10"},
	} {
		t.Run(name, func(t *testing.T) {
			a := startAgent(t, 1, 0, "open", "    - {name: a, select: [{executables: [\"*/a\"]}]}\n", "all")
			w := a.job("a", 0, append(options, "--alloc-mib=64", "--seconds=600")...)
			ready(t, w)
			w.tell("go")
			works := func() bool {
				at := fixture.Monotonic()
				return w.until(20*time.Second, func(s *series) bool { return s.by(fixture.Monotonic()) > s.by(at) })
			}
			if !works() {
				t.Fatal("it never works")
			}
			if err := a.order("suspend", w.cmd.Process.Pid); err != nil {
				t.Fatal(err)
			}
			a.again()
			a.metric(`nvgpu_broker_sessions{state="active"}`, 1)
			if err := a.order("resume-process", w.cmd.Process.Pid); err != nil {
				t.Fatal(err)
			}
			if !works() {
				t.Errorf("it does not work any more: %v", w.cmd.ProcessState)
			}
		})
	}
}
