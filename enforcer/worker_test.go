package enforcer_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"gpusteward/internal/fixture"
)

// A worker is a child process that reads orders from stdin and prints results.
// Lines `step NS COUNT` and `burst NS LATENCY_US` are gathered here; other
// lines go to the test that waits for them.
type worker struct {
	name string
	cmd  *exec.Cmd
	in   io.WriteCloser
	said chan string // closed when its output ends

	mu     sync.Mutex
	steps  series
	bursts []float64     // latencies, ms
	moved  chan struct{} // closed and replaced at each step
}

// startWorker starts a command with env in addition to this process's own
// environment. The end of the test kills it and waits for it.
func startWorker(t *testing.T, name string, env []string, argv ...string) *worker {
	t.Helper()
	w := &worker{name: name, cmd: exec.Command(argv[0], argv[1:]...), said: make(chan string, 64),
		moved: make(chan struct{})}
	w.cmd.Env = append(os.Environ(), env...)
	w.cmd.Stderr = os.Stderr
	var err error
	if w.in, err = w.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := w.cmd.StdoutPipe()
	fixture.Must(t, err)
	if err := w.cmd.Start(); err != nil {
		t.Fatalf("start %s: %v", name, err)
	}
	go w.read(out)
	t.Cleanup(w.kill)
	return w
}

func (w *worker) read(out io.Reader) {
	defer close(w.said)
	for lines := bufio.NewScanner(out); lines.Scan(); {
		f := strings.Fields(lines.Text())
		if len(f) != 3 || (f[0] != "step" && f[0] != "burst") {
			w.said <- lines.Text()
			continue
		}
		at, _ := strconv.ParseInt(f[1], 10, 64)
		value, _ := strconv.ParseFloat(f[2], 64)
		w.mu.Lock()
		if f[0] == "burst" {
			w.bursts = append(w.bursts, value/1e3)
		} else {
			w.steps.add(at, value)
			close(w.moved)
			w.moved = make(chan struct{})
		}
		w.mu.Unlock()
	}
}

// kill ends the worker as a crash would, and waits for it.
func (w *worker) kill() {
	w.cmd.Process.Kill()
	for range w.said {
	}
	w.cmd.Wait()
}

// tell writes a line to the worker. A missing worker is noticed at the wait for
// its answer.
func (w *worker) tell(line string) { io.WriteString(w.in, line+"\n") }

// hear waits for a line that begins with one of these words, and returns it. If
// the output ends, or the silence is too long, the test fails.
func (w *worker) hear(t *testing.T, limit time.Duration, words ...string) string {
	t.Helper()
	line, err := w.listen(limit, words...)
	fixture.Must(t, err)
	return line
}

// listen is like hear, and returns an error in place of a failure.
func (w *worker) listen(limit time.Duration, words ...string) (string, error) {
	deadline := time.After(limit)
	for {
		select {
		case line, ok := <-w.said:
			if !ok {
				return "", fmt.Errorf("%s ended without saying %q", w.name, words)
			}
			for _, word := range words {
				if strings.HasPrefix(line, word) {
					return line, nil
				}
			}
		case <-deadline:
			return "", fmt.Errorf("%s did not say %q within %v", w.name, words, limit)
		}
	}
}

// until waits until the steps satisfy done; false after the limit.
func (w *worker) until(limit time.Duration, done func(*series) bool) bool {
	deadline := time.After(limit)
	for {
		w.mu.Lock()
		ok, moved := done(&w.steps), w.moved
		w.mu.Unlock()
		if ok {
			return true
		}
		select {
		case <-moved:
		case <-deadline:
			return false
		}
	}
}

// begin discards the measurements before the next run; cost is that of a step.
func (w *worker) begin(cost float64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.steps, w.bursts = series{cost: cost}, nil
}

// measured returns the output of the worker since begin. The caller only reads
// it.
func (w *worker) measured() (*series, []float64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.steps
	return &s, w.bursts
}

// cpu returns the processor time of all threads of the process, in hundredths
// of a second. An ended process has a value until it is reaped.
func (w *worker) cpu() time.Duration {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", w.cmd.Process.Pid))
	if err != nil {
		return 0
	}
	f := strings.Fields(string(raw[strings.LastIndexByte(string(raw), ')')+1:]))
	user, _ := strconv.ParseInt(f[11], 10, 64)
	system, _ := strconv.ParseInt(f[12], 10, 64)
	return time.Duration(user+system) * 10 * time.Millisecond // USER_HZ is 100 on every Linux
}
