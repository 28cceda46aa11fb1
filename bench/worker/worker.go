// Package worker runs programs that obey lines and report their steps, for measurements of real and
// simulated GPUs.
package worker

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"
)

// A Worker is a process that reads orders from its standard input and prints results. Lines
// `step NS COUNT` and `burst NS LATENCY_US` are gathered; Listen has the others. Its methods may be
// called concurrently, but only one caller at a time may listen.
type Worker struct {
	Name string
	Cmd  *exec.Cmd

	in   io.WriteCloser
	said chan string // closed when its output ends

	mu     sync.Mutex
	steps  Series
	bursts []float64     // latencies, ms
	moved  chan struct{} // closed and replaced at each step
}

// Start starts a command with env in addition to the command's environment, or to this process's own
// if it has none.
func Start(name string, cmd *exec.Cmd, env ...string) (*Worker, error) {
	w := &Worker{Name: name, Cmd: cmd, said: make(chan string, 64), moved: make(chan struct{})}
	cmd.Env = append(cmd.Environ(), env...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	w.in = in
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go w.read(out)
	return w, nil
}

func (w *Worker) read(out io.Reader) {
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
			w.steps.Add(at, value)
			close(w.moved)
			w.moved = make(chan struct{})
		}
		w.mu.Unlock()
	}
}

// Kill ends the worker as a crash would, and waits for it.
func (w *Worker) Kill() {
	_ = w.Cmd.Process.Kill()
	for range w.said {
	}
	_ = w.Cmd.Wait()
}

// Tell writes a line to the worker. A missing worker is noticed at the wait for its answer.
func (w *Worker) Tell(line string) { _, _ = io.WriteString(w.in, line+"\n") }

// Listen waits for a line that begins with one of these words, and returns it. It is an error if the
// output ends, or the time is over.
func (w *Worker) Listen(limit time.Duration, words ...string) (string, error) {
	deadline := time.After(limit)
	for {
		select {
		case line, ok := <-w.said:
			if !ok {
				return "", fmt.Errorf("%s ended without saying %q", w.Name, words)
			}
			for _, word := range words {
				if strings.HasPrefix(line, word) {
					return line, nil
				}
			}
		case <-deadline:
			return "", fmt.Errorf("%s did not say %q within %v", w.Name, words, limit)
		}
	}
}

// Until waits until the steps satisfy done; false after the limit.
func (w *Worker) Until(limit time.Duration, done func(Series) bool) bool {
	deadline := time.After(limit)
	for {
		w.mu.Lock()
		ok, moved := done(w.steps), w.moved
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

// Begin discards the measurements before the next run.
func (w *Worker) Begin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.steps, w.bursts = Series{}, nil
}

// Measured returns the steps and the latencies in ms since Begin. The caller only reads them.
func (w *Worker) Measured() (Series, []float64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.steps, w.bursts
}
