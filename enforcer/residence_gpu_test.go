//go:build gpu

package enforcer_test

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"gpusteward/internal/fixture"
)

var (
	turnsGiB     = flag.Float64("turns.gib", 24, "memory of each of the two programs that take turns, in `GiB`")
	turnsFixed   = flag.Float64("turns.fixed", 100, "memory of a third one, which stays, in `GiB`: it makes the GPU small")
	turnsTurn    = flag.Duration("turns.turn", time.Minute, "turn")
	turnsSeconds = flag.Int("turns.seconds", 425, "`seconds` that are measured")
	wakings      = flag.Int("wakings", 6, "`number` of times that each notebook is idle")
)

// startRealAgent runs the agent with this section of its configuration on the machine's GPUs.
func startRealAgent(t *testing.T, enforcer string) *agent {
	t.Helper()
	return startAgentOn(t, &host{}, enforcer, "all")
}

// trainer starts exact.py as a tenant's program; empty: without the hook.
func (a *agent) trainer(tenant string, gib float64) *worker {
	a.t.Helper()
	var env []string
	if tenant != "" {
		env = slices.Concat(a.hook, []string{"GPUSTEWARD_TENANT=" + tenant})
	}
	bench := os.Getenv("GS_BENCH")
	if bench == "" {
		bench = "hook/bench"
	}
	return startWorker(a.t, tenant, env, "python3", filepath.Join(bench, "exact.py"), fmt.Sprint(gib))
}

// steps returns how many steps a program had done at a moment.
func (w *worker) by(at int64) float64 {
	s, _ := w.Measured()
	return s.By(at)
}

// TestGPUTurns has two programs of 60 % of a GPU's memory take turns. The GPU is as large as a third program leaves it.
// Both together do at least 80 % of what one of them does alone, and no allocation fails.
func TestGPUTurns(t *testing.T) {
	a := startRealAgent(t, fmt.Sprintf("  overcommit: {gpus: [all], turn: %v}\n  tenants:\n"+
		"    - {name: fixed, priority: high}\n    - {name: a}\n    - {name: b}\n", *turnsTurn))
	fixed := a.trainer("fixed", *turnsFixed)
	fixed.hear(t, 2*time.Minute, "ready")
	fixed.Tell("loop 2")
	first := a.trainer("a", *turnsGiB)
	first.hear(t, 2*time.Minute, "ready")
	first.Tell("loop 0")
	wait := func(w *worker, steps float64) {
		t.Helper()
		at := w.by(fixture.Monotonic())
		poll(t, 5*time.Minute, "it does not work", func() bool { return w.by(fixture.Monotonic()) > at+steps })
	}
	wait(first, 50)
	from := fixture.Monotonic()
	poll(t, time.Minute, "ten seconds pass", func() bool { return fixture.Monotonic() > from+1e10 })
	lone := (first.by(from+1e10) - first.by(from)) / 10
	second := a.trainer("b", *turnsGiB)
	began := time.Now()
	second.hear(t, 5*time.Minute, "ready")
	t.Logf("the second program's allocation waited for %.1f s", time.Since(began).Seconds())
	second.Tell("loop 0")
	wait(second, 1)
	from = fixture.Monotonic()
	to := from + int64(*turnsSeconds)*1e9
	const second1 = int64(1e9)
	var turns []turn
	who, idle := -1, 0
	for at := from; at < to; at += second1 {
		poll(t, time.Minute, "a second passes", func() bool { return fixture.Monotonic() > at+second1 })
		busy := -1
		for i, w := range []*worker{first, second} {
			if w.by(at+second1)-w.by(at) > 1 {
				busy = i
			}
		}
		switch {
		case busy < 0:
			idle++
		case busy != who:
			who = busy
			turns = append(turns, turn{who, at})
		}
	}
	t.Logf("%d turns, %d of %d s without a step", len(turns), idle, *turnsSeconds)
	for i, one := range turns {
		t.Logf("turn %d: %.0f s", one.who, float64(turns[min(i+1, len(turns)-1)].from-one.from)/1e9)
	}
	if last := len(turns) - 1; last >= 2 { // whole cycles
		to = turns[last-last%2].from
	}
	one, two, lasted := first.by(to)-first.by(from), second.by(to)-second.by(from), float64(to-from)/1e9
	t.Logf("alone %.1f steps/s; in %.0f s together %.3f of it (%.0f and %.0f steps)", lone, lasted, (one+two)/lone/lasted,
		one, two)
	for _, line := range strings.Split(a.ask("/metrics"), "\n") {
		if strings.HasPrefix(line, "nvgpu_suspen") || strings.HasPrefix(line, "nvgpu_overcommit") {
			t.Log(line)
		}
	}
	fixture.If(t, len(turns) < 3 || one+two < .8*lone*lasted,
		"they do not take turns, or lose more than a fifth of the time")
}

// A turn is the time in which one of two programs works.
type turn struct {
	who  int
	from int64
}

// TestGPUNotebooks has programs that are idle give way, and measures how long
// their next work takes: with the hook, and without it.
func TestGPUNotebooks(t *testing.T) {
	a := startRealAgent(t, "  default: {reclaim: {idle: 5s}}\n  tenants:\n    - {name: n, reclaim: {idle: 5s, keep: 1 GiB}}\n")
	books := map[string]*worker{"hooked": a.trainer("n", 4), "unhooked": a.trainer("", 4)}
	took := map[string][]float64{}
	done := map[string]int{}
	for name, w := range books {
		w.hear(t, 2*time.Minute, "ready")
		w.Tell("go 10")
		w.hear(t, time.Minute, "did")
		done[name] = 10
	}
	for i := range *wakings {
		a.metric("nvgpu_suspensions_total", float64(2*(i+1)))
		for _, name := range []string{"hooked", "unhooked"} {
			began := time.Now()
			books[name].Tell("go 1")
			done[name]++
			books[name].hear(t, 2*time.Minute, fmt.Sprint("did ", done[name]))
			took[name] = append(took[name], time.Since(began).Seconds())
		}
	}
	for name, all := range took {
		slices.Sort(all)
		t.Logf("%s: the first step after a suspension takes %.2f s (median of %d; %.2f to %.2f)", name, all[len(all)/2],
			len(all), all[0], all[len(all)-1])
	}
}

// TestGPUKilledEnforcer kills the agent at moments of a suspension and of a resumption. In the end the program works,
// and its state is that of a twin that nobody disturbed.
func TestGPUKilledEnforcer(t *testing.T) { killedEnforcer(t, "n") }

// TestGPUKilledEnforcerWithoutHook does the same to a program without the hook.
func TestGPUKilledEnforcerWithoutHook(t *testing.T) { killedEnforcer(t, "") }

func killedEnforcer(t *testing.T, tenant string) {
	a := startRealAgent(t, "  tenants: [{name: n}]\n")
	const steps = 20
	ask := func(w *worker, order, answer string) string {
		w.Tell(order)
		return w.hear(t, 2*time.Minute, answer)
	}
	begin := func(tenant string) *worker {
		w := a.trainer(tenant, 2)
		w.hear(t, 2*time.Minute, "ready")
		return w
	}
	twin := begin("")
	ask(twin, fmt.Sprint("go ", *killings*steps), "did")
	want := ask(twin, "hash", "hash")
	twin.Kill()
	w := begin(tenant)
	t.Cleanup(func() {
		w.Kill()
		t.Logf("the program's end: %v", w.Cmd.ProcessState) // other than "signal: killed" it ended by itself
		if t.Failed() {
			kernel, _ := exec.Command("dmesg").Output()
			t.Logf("the agent: %s\nthe kernel: %s", a.log("all"), kernel[max(0, len(kernel)-2000):])
		}
	})
	a.killedInCycles(w, func(i int) { ask(w, fmt.Sprint("go ", steps), fmt.Sprint("did ", (i+1)*steps)) })
	got := ask(w, "hash", "hash")
	fixture.If(t, got != want, "its state is %s, and that of its twin %s", got, want)
}

// TestGPURests has a program let the GPU rest for two seconds after each step: alone,
// beside one that works, and while that one is suspended and resumed. It prints how far the
// driver's count of its time is from its charges, and wants it accused of nothing.
func TestGPURests(t *testing.T) {
	a := startRealAgent(t, "  tenants: [{name: rests}, {name: works}]\n")
	rests := a.trainer("rests", 8)
	rests.hear(t, 2*time.Minute, "ready")
	rests.Tell("loop 2")
	drift := regexp.MustCompile(`(?m)^nvgpu_quota_charge_drift_ratio\{.*tenant="rests".* (\S+)$`)
	look := func(phase string, seconds int) {
		var all []float64
		tick := time.Tick(time.Second)
		for range seconds {
			<-tick
			if m := drift.FindStringSubmatch(a.ask("/metrics")); m != nil {
				v, _ := strconv.ParseFloat(m[1], 64)
				all = append(all, v)
			}
		}
		slices.Sort(all)
		t.Logf("%s: the driver's count less the charges, parts of the GPU's time in %d of %d s: %v", phase, len(all), seconds, all)
	}
	look("alone", 45)
	works := a.trainer("works", 16)
	works.hear(t, 2*time.Minute, "ready")
	works.Tell("loop 0")
	look("beside one that works", 30)
	for range 3 {
		for _, order := range []string{"suspend", "resume-process"} {
			fixture.Must(t, a.order(order, works.Cmd.Process.Pid))
			look("after "+order, 15)
		}
	}
	accused := regexp.MustCompile(`(?m)^nvgpu_quota_violations_total\{.*tenant="rests".* [1-9]\S*$`)
	if all := accused.FindAllString(a.ask("/metrics"), -1); all != nil {
		t.Errorf("it is accused: %s", all)
	}
}
