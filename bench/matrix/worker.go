package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// A worker is a process of worker.py, which obeys lines and reports the steps of its
// program. Lines `step NS COUNT` are gathered here; others go to listen.
type worker struct {
	name string
	cmd  *exec.Cmd
	in   io.WriteCloser
	said chan string // closed when its output ends

	mu    sync.Mutex
	steps series
}

// startWorker starts a command with env in addition to this process's own environment.
func startWorker(name string, env []string, argv ...string) (*worker, error) {
	w := &worker{name: name, cmd: exec.Command(argv[0], argv[1:]...), said: make(chan string, 64)}
	w.cmd.Env = append(os.Environ(), env...)
	w.cmd.Stderr = os.Stderr
	w.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err := w.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	w.in = in
	if err := w.cmd.Start(); err != nil {
		return nil, err
	}
	go w.read(out)
	return w, nil
}

func (w *worker) read(out io.Reader) {
	defer close(w.said)
	for lines := bufio.NewScanner(out); lines.Scan(); {
		f := strings.Fields(lines.Text())
		if len(f) != 3 || f[0] != "step" {
			w.said <- lines.Text()
			continue
		}
		at, _ := strconv.ParseInt(f[1], 10, 64)
		steps, _ := strconv.ParseFloat(f[2], 64)
		w.mu.Lock()
		w.steps.add(at, steps)
		w.mu.Unlock()
	}
}

// kill ends the worker and its ranks.
func (w *worker) kill() {
	_ = syscall.Kill(-w.cmd.Process.Pid, syscall.SIGKILL)
	for range w.said {
	}
	_ = w.cmd.Wait()
}

// tell writes a line to the worker. A missing worker is noticed at the wait for
// its answer.
func (w *worker) tell(line string) { _, _ = io.WriteString(w.in, line+"\n") }

// listen waits for a line that begins with one of these words, and returns it.
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

// begin discards the measurements before the next run.
func (w *worker) begin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.steps = series{}
}

// measured returns the steps since begin, when the worker has said that its run is over.
func (w *worker) measured() *series {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.steps
	return &s
}

// pin binds the worker's threads, and its later ones, to so many processors from the first on.
func (w *worker) pin(first, n int) error {
	list := fmt.Sprintf("%d-%d", first, first+n-1)
	if out, err := exec.Command("taskset", "-acp", list, fmt.Sprint(w.cmd.Process.Pid)).CombinedOutput(); err != nil {
		return fmt.Errorf("taskset -acp %s: %w %s", list, err, out)
	}
	return nil
}
