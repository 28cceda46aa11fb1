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
	killWithin = flag.Duration("killings.within", 4*time.Second, "latest `moment`, after it has begun")
	killings   = flag.Int("killings", 3, "`number` of cycles in which the enforcer is killed twice")
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

// killedInCycles suspends a program and resumes it again and again, and kills the
// agent at a random moment of each. After each cycle works is called when the program
// is to work again.
func (a *agent) killedInCycles(w *worker, cycles int, within time.Duration, works func(cycle int)) {
	t := a.t
	t.Helper()
	pid := strconv.Itoa(w.cmd.Process.Pid)
	order := func(ctx context.Context, what string) error {
		said, err := exec.CommandContext(ctx, a.path, what, "--runtime.dir="+filepath.Join(a.dir, "run"), pid).CombinedOutput()
		for strings.Contains(string(said), "no workload") && ctx.Err() == nil { // it does not know the process yet
			time.Sleep(50 * time.Millisecond)
			said, err = exec.CommandContext(ctx, a.path, what, "--runtime.dir="+filepath.Join(a.dir, "run"), pid).CombinedOutput()
		}
		if err != nil {
			return fmt.Errorf("%s: %w: %s", what, err, said)
		}
		return nil
	}
	moments := map[string]int{}
	for i := range cycles {
		for _, o := range []struct{ order, phase string }{{"suspend", "suspending"}, {"resume-process", "resuming"}} {
			if o.order == "resume-process" && a.recorded() != "suspended" {
				continue // the first kill came before it was suspended, and it was resumed
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			ended := make(chan error, 1)
			go func() { ended <- order(ctx, o.order) }()
			var err error
			over := false
			poll(t, time.Minute, "the order has no effect", func() bool {
				select {
				case err = <-ended:
					over = true
				default:
				}
				return over || a.recorded() == o.phase
			})
			if !over {
				select {
				case err = <-ended:
					over = true
				case <-time.After(time.Duration(rand.Float64() * float64(within))):
				}
			}
			switch {
			case !over:
				moments[o.phase]++
			case err == nil:
				moments["after "+o.phase]++
			default:
				t.Errorf("cycle %d: %v", i, err)
			}
			a.again()
			cancel()
		}
		phase := ""
		poll(t, time.Minute, "it is half suspended", func() bool {
			phase = a.recorded()
			return phase == "" || phase == "suspended"
		})
		if phase == "suspended" {
			moments["suspended after it"]++
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			if err := order(ctx, "resume-process"); err != nil {
				t.Errorf("cycle %d: %v", i, err)
			}
			cancel()
		}
		works(i)
	}
	t.Logf("%d cycles: %v", cycles, moments)
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
	a.killedInCycles(w, *killings, 2500*time.Millisecond, func(i int) {
		at := fixture.Monotonic()
		if !w.until(20*time.Second, func(s *series) bool { return s.by(fixture.Monotonic()) > s.by(at) }) {
			t.Fatalf("cycle %d: the program does not work\n%s", i, a.log("all"))
		}
	})
	if strings.Contains(a.log("all"), "the escalation changed a level") {
		t.Errorf("the program is accused\n%s", a.log("all"))
	}
}
