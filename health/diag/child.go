package diag

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// A child is a process that calls the driver. A call may hang where no signal reaches it, or crash
// the process.
type child struct {
	command *exec.Cmd
	orders  io.WriteCloser
	answers *json.Decoder
	said    tail // on standard error
	gone    error
	after   after
}

// A tail keeps the end of what is written to it.
type tail struct {
	mu   sync.Mutex
	text []byte
}

const longestTail = 2000

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, b...)
	t.text = t.text[max(0, len(t.text)-longestTail):]
	return len(b), nil
}

// line returns the first line that is kept. After a crash, it names the reason.
func (t *tail) line() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	line, _, _ := strings.Cut(strings.TrimSpace(string(t.text)), "\n")
	return line
}

// begin starts a child.
func begin(command *exec.Cmd) (*child, error) {
	c := &child{command: command, after: really}
	command.Stderr = &c.said
	// A terminal's Ctrl-C only reaches the parent. A child without a parent is killed.
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	orders, err := command.StdinPipe()
	if err != nil {
		return nil, err
	}
	answers, err := command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	c.orders, c.answers = orders, json.NewDecoder(answers)
	return c, command.Start()
}

// errHangs says that a child did not answer in time.
var errHangs = errors.New("did not finish")

// errEnded says that somebody ended the test.
var errEnded = errors.New("the test was ended")

// do gives the child an order, and waits for the answer at most for the time most. It kills a child
// that does not answer. Later orders then fail.
func (c *child) do(ctx context.Context, o Order, most time.Duration) (Reading, error) {
	if c.gone != nil {
		return Reading{}, c.gone
	}
	type result struct {
		Reading
		err error
	}
	answered := make(chan result, 1)
	go func() {
		var r result
		if r.err = json.NewEncoder(c.orders).Encode(o); r.err == nil {
			r.err = c.answers.Decode(&r.Reading)
		}
		answered <- r
	}()
	select {
	case r := <-answered:
		switch {
		case r.err == nil:
			return r.Reading, nil
		case ctx.Err() == nil:
			c.gone = fmt.Errorf("its process ended in %s: %w", o.Step, c.ended(r.err))
			return Reading{}, c.gone
		}
	case <-c.after(o, most):
		return Reading{}, c.kill(fmt.Errorf("the GPU %w %s in %v", errHangs, o.Step, most.Round(time.Second/10)))
	case <-ctx.Done():
	}
	return Reading{}, c.kill(errEnded)
}

// parting is the time that a process may take to end, because the driver clears its memory.
const parting = 5 * time.Second

// wait waits for the process to end. The error says how it ended.
func (c *child) wait() (ended bool, how error) {
	done := make(chan error, 1)
	go func() { done <- c.command.Wait() }()
	select {
	case how = <-done:
		return true, how
	case <-time.After(parting):
		return false, nil
	}
}

// kill ends the child for the reason err. It leaves a child behind that hangs in the driver and
// cannot end.
func (c *child) kill(err error) error {
	c.gone = err
	_ = c.command.Process.Kill()
	if ended, _ := c.wait(); !ended {
		c.gone = fmt.Errorf("%w, and its process cannot be killed", err)
	}
	return c.gone
}

// ended returns the reason why a child closed its pipe.
func (c *child) ended(err error) error {
	_, how := c.wait()
	if line := c.said.line(); line != "" {
		return errors.New(line)
	}
	return cmp.Or(how, err)
}

// close lets the child end by itself, and kills it if it does not.
func (c *child) close() {
	if c.gone != nil {
		return
	}
	_ = c.orders.Close()
	if ended, _ := c.wait(); !ended {
		_ = c.command.Process.Kill()
	}
}
