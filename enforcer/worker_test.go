package enforcer_test

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	bench "gpusteward/bench/worker"
	"gpusteward/internal/fixture"
	"gpusteward/internal/procs"
)

// A worker is a child process that obeys lines and reports steps of one cost.
type worker struct {
	*bench.Worker
	cost float64
}

// startWorker starts a command with env in addition to this process's own
// environment. The end of the test kills it and waits for it.
func startWorker(t *testing.T, name string, env []string, argv ...string) *worker {
	t.Helper()
	w := &worker{Worker: fixture.Value(bench.Start(name, exec.Command(argv[0], argv[1:]...), env...))(t)}
	t.Cleanup(w.Kill)
	return w
}

// hear waits for a line that begins with one of these words, and returns it. If
// the output ends, or the silence is too long, the test fails.
func (w *worker) hear(t *testing.T, limit time.Duration, words ...string) string {
	t.Helper()
	return fixture.Value(w.Listen(limit, words...))(t)
}

// until waits until the steps satisfy done; false after the limit.
func (w *worker) until(limit time.Duration, done func(*series) bool) bool {
	return w.Until(limit, func(s bench.Series) bool { return done(&series{s, w.cost}) })
}

// begin discards the measurements before the next run; cost is that of a step.
func (w *worker) begin(cost float64) {
	w.cost = cost
	w.Begin()
}

// measured returns the output of the worker since begin. The caller only reads it.
func (w *worker) measured() (*series, []float64) {
	s, bursts := w.Measured()
	return &series{s, w.cost}, bursts
}

// cpu returns the processor time of all threads of the process, in hundredths
// of a second. An ended process has a value until it is reaped.
func (w *worker) cpu() time.Duration {
	line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", w.Cmd.Process.Pid))
	stat, _ := procs.ParseStat(line)
	return time.Duration(stat.Ticks) * 10 * time.Millisecond // USER_HZ is 100 on every Linux
}
