//go:build gpu

package integration

import (
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"testing"
	"time"

	"gpusteward/internal/fixture"
)

// A training is a program under the hook and an agent that observes it.
type training struct {
	*measured
	config, fault string // files: the agent's configuration, and what is wrong with the program
}

const observed = "enforcer:\n  enabled: true\n  tenants: [{name: research, select: [{users: [0]}]%s}]\n"

// train starts a program of jobs.py on the first two processors.
func train(t *testing.T, kind string) training {
	dir := t.TempDir()
	tr := training{config: filepath.Join(dir, "gpusteward.yml"), fault: filepath.Join(dir, "fault")}
	fixture.Rewrite(t, tr.config, fmt.Sprintf(observed, ""))
	fixture.Rewrite(t, tr.fault, "")
	agent := binary(t)
	tr.measured = startMeasured(t, agent, "--config.file="+tr.config)
	bench := fixture.Given(t, "GS_BENCH", "enforcer/hook/bench")
	tr.background("taskset", "-c", "0,1", agent, "exec", "--require-broker", "--runtime.dir="+tr.runtime,
		"--library="+fixture.Given(t, "GS_HOOK", "enforcer/hook/build/libgpusteward.so"), "--", "python3",
		filepath.Join(bench, "jobs.py"), kind, "900", filepath.Join(dir, "times"))
	return tr
}

// background starts a program, and returns what ends it. It ends with the test.
func (tr training) background(argv ...string) (end func()) {
	tr.t.Helper()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), "GS_FAULT="+tr.fault)
	cmd.Stderr = os.Stderr
	fixture.Must(tr.t, cmd.Start())
	ended := false
	end = func() {
		if !ended {
			ended = true
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	}
	tr.t.Cleanup(end)
	return end
}

var slowdown = regexp.MustCompile(`(?m)^nvgpu_job_slowdown_ratio\{cause="([^"]*)",evidence="([^"]*)".* (\S+)$`)

// slow returns the cause that is told now; "": the program is not slow.
func (tr training) slow() (cause, evidence string) {
	if m := slowdown.FindStringSubmatch(tr.scrape()); m != nil {
		return m[1], m[3] + ": " + m[2]
	}
	return "", ""
}

// told waits for a cause, or for none.
func (tr training) told(want bool, within time.Duration) (cause, evidence string, took time.Duration) {
	began := time.Now()
	for {
		cause, evidence = tr.slow()
		took = time.Since(began)
		if (cause != "") == want || took > within {
			return cause, evidence, took
		}
		time.Sleep(250 * time.Millisecond)
	}
}

// reload puts further terms of the tenant in force.
func (tr training) reload(terms string) {
	fixture.Rewrite(tr.t, tr.config, fmt.Sprintf(observed, terms))
	tr.hup()
}

// TestGPUCauses slows down a program that trains GPT-2 for one reason after the other. It wants the reason told 35 s
// later, and none before the first fault, and prints what was told first and when nothing was told any more.
func TestGPUCauses(t *testing.T) {
	tr := train(t, "changing")
	eventually(t, "100 steps", func() bool {
		n, _ := tr.value("nvgpu_job_steps_total")
		return n >= 100
	})
	var paces []float64 // steps in 5 s, before any fault: a cause is told of what differs more than these
	for range 10 {
		before, _ := tr.value("nvgpu_job_steps_total")
		cause, evidence, _ := tr.told(true, 5*time.Second)
		fixture.If(t, cause != "", "before any fault: %s, %s", cause, evidence)
		after, _ := tr.value("nvgpu_job_steps_total")
		paces = append(paces, after-before)
	}
	fmt.Printf("steps in 5 s, before any fault: %.0f\n", paces)
	within := func(word string) func() func() {
		return func() func() {
			fixture.Rewrite(t, tr.fault, word)
			return func() { fixture.Rewrite(t, tr.fault, "") }
		}
	}
	right, all := 0, 0
	for _, c := range []struct {
		name   string
		causes []string // any of them; "": none is told
		begin  func() (end func())
	}{
		{"a loader that is late", []string{"host"}, within("data")},
		{"garbage collection", []string{"code"}, within("garbage")},
		{"reading from storage", []string{"storage", "host"}, within("storage")}, // no pressure is known in some containers
		{"allocator churn", []string{"memory"}, within("memory")},
		{"burners on its processors", []string{"cpu"}, func() func() {
			var ends []func()
			for range 6 {
				ends = append(ends, tr.background("taskset", "-c", "0,1", "sh", "-c", "while :; do :; done"))
			}
			return func() {
				for _, end := range ends {
					end()
				}
			}
		}},
		{"a neighbour on the GPU", []string{"neighbour"}, func() func() {
			return tr.background("taskset", "-c", fmt.Sprintf("2-%d", max(2, runtime.NumCPU()-1)), "python3", "-c", matmul)
		}},
		{"a lower limit", []string{"quota"}, func() func() {
			tr.reload(", limit: 30 %")
			return func() { tr.reload("") }
		}},
		{"longer sequences", []string{""}, within("work")}, // another job from then on
	} {
		all++
		began, end := time.Now(), c.begin()
		first, said, took := tr.told(true, 45*time.Second)
		time.Sleep(time.Until(began.Add(35 * time.Second))) // what is told by then has seen no steps from before
		cause, evidence := tr.slow()
		end()
		ok := slices.Contains(c.causes, cause)
		if ok {
			right++
		}
		_, _, well := tr.told(false, 60*time.Second)
		fmt.Printf("%-26s %q, %s, after %4.1f s; in the end %q, right: %v, %s; well after %4.1f s\n", c.name, first, said,
			took.Seconds(), cause, ok, evidence, well.Seconds())
		time.Sleep(3 * time.Second) // steps of both kinds in a span are neither
	}
	fmt.Printf("causes: %d of %d right\n", right, all)
	fixture.If(t, right < all, "%d of %d causes are right", right, all)
}

// products multiplies square matrices, and prints how many.
const products = `
import sys, time, torch
n, kind, values = int(sys.argv[1]), getattr(torch, sys.argv[2]), getattr(torch, sys.argv[3])
torch.backends.cuda.matmul.allow_tf32 = False
a = values(n, n, device="cuda").to(kind)
done = 0
while True:
    for _ in range(20): a @ a
    torch.cuda.synchronize()
    done += 20
    print("step", time.monotonic_ns(), done, flush=True)
`

// TestGPUFlops compares the estimate of a GPU's operations with programs that do known ones.
func TestGPUFlops(t *testing.T) {
	m := startMeasured(t, binary(t))
	for _, c := range []struct {
		kind, values string
		n            int
	}{{"bfloat16", "randn", 8192}, {"bfloat16", "zeros", 8192}, {"float16", "randn", 2048}, {"float32", "randn", 8192},
		{"float64", "randn", 4096}} { // zeros need less power, so that the clock stays at its maximum
		t.Run(fmt.Sprint(c.kind, "_", c.values, "_", c.n), func(t *testing.T) {
			j := m.job("gpst-flops.service", "python3", "-c", products, fmt.Sprint(c.n), c.kind, c.values)
			defer func() { j.end(); _ = j.Cmd.Wait() }()
			eventually(t, "a product", func() bool { return len(j.done().At) > 0 })
			time.Sleep(5 * time.Second) // a window of the counters, and the clocks
			before := j.done()
			var estimates []float64
			for range 16 {
				time.Sleep(500 * time.Millisecond)
				if v, ok := m.value("nvgpu_gpm_flops"); ok {
					estimates = append(estimates, v)
				}
			}
			s := j.done()
			from, after := before.At[len(before.At)-1], s.At[len(s.At)-1]
			done := 2 * math.Pow(float64(c.n), 3) * (s.By(after) - s.By(from)) / (float64(after-from) / 1e9)
			sum := 0.0
			for _, v := range estimates {
				sum += v / float64(len(estimates))
			}
			own, _ := m.value("nvgpu_job_flops")
			clock, _ := m.value("nvgpu_clock_hertz", `"sm"`)
			fmt.Printf("%s %s %d: %.2f TFLOP/s done, estimate %.2f (%+.1f %%), of the workload %.2f, SM clock %.0f MHz\n",
				c.kind, c.values, c.n, done/1e12, sum/1e12, 100*(sum/done-1), own/1e12, clock/1e6)
			fixture.If(t, len(estimates) == 0 || math.Abs(sum/done-1) > 0.05,
				"the estimate of %s is off by more than 5 %%", c.kind)
		})
	}
}
