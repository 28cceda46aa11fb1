package diag

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"gpusteward/internal/worker"
)

// work is what a child is told to do.
const work = "test-gpus"

// Bounds of the children.
const (
	maxChildren = 64              // each with one GPU or two, or with all of them
	maxAnswer   = 8 << 20         // bytes; two vitals a second of ten minutes take a tenth
	parting     = 5 * time.Second // that a process may take to end, because the driver clears its memory
)

// children make the calls of the driver, which may hang where no signal reaches them, or crash the
// process. They have the capabilities of this command, and no limit of memory: CUDA loads modules of the
// kernel where there are none, and maps more than the memory of all GPUs.
var children = worker.Kind{Command: worker.Begins(work), Running: maxChildren, Children: maxChildren, Parting: parting}

func init() { worker.Register(work, func([]string) error { return follow(openDriver) }) }

// follow is a child's work: it has its orders and gives its answers by the files that spawn hands over.
func follow(open func() (Driver, error)) error {
	prepare()
	return Work(os.NewFile(3, "orders"), os.NewFile(4, "answers"), open)
}

// unprepared lists variables of the environment that change what CUDA sees or leaves behind.
var unprepared = []string{"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_LAUNCH_BLOCKING", "CUDA_DISABLE_PTX_JIT",
	"CUDA_FORCE_PTX_JIT"}

// prepare has this process see every GPU.
func prepare() {
	for _, name := range unprepared {
		_ = os.Unsetenv(name)
	}
	_ = os.Setenv("CUDA_CACHE_DISABLE", "1")
}

// A child is a process that calls the driver.
type child struct {
	orders  io.WriteCloser
	answers io.ReadCloser
	bounded io.LimitedReader // the same
	decoder *json.Decoder
	end     context.CancelCauseFunc // gives it up
	ended   chan struct{}           // closed once it has ended, or was given up
	how     error                   // it ended
	gone    error
	after   after
}

// spawn starts a child.
func (t *test) spawn() (*child, error) {
	theirOrders, orders, err1 := os.Pipe()
	answers, theirAnswers, err2 := os.Pipe()
	if err := errors.Join(err1, err2); err != nil {
		return nil, fmt.Errorf("start a child: %w", err)
	}
	ctx, end := context.WithCancelCause(context.Background())
	c := talkWith(orders, answers, end)
	c.after = t.after
	go func() {
		_, c.how = t.children.Do(ctx, worker.Order{Env: t.environment,
			Files: append([]*os.File{theirOrders, theirAnswers}, t.files...)})
		_, _ = theirOrders.Close(), theirAnswers.Close() // then there is no answer any more
		close(c.ended)
	}()
	return c, nil
}

func talkWith(orders io.WriteCloser, answers io.ReadCloser, end context.CancelCauseFunc) *child {
	c := &child{orders: orders, answers: answers, end: end, ended: make(chan struct{}), after: really}
	c.bounded.R = answers
	c.decoder = json.NewDecoder(&c.bounded)
	return c
}

// errHangs says that a child did not answer in time.
var errHangs = errors.New("did not finish")

// errEnded says that somebody ended the test.
var errEnded = errors.New("the test was ended")

// do gives the child an order, and waits for the answer at most for the time most. It gives up a child
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
		c.bounded.N = maxAnswer
		if r.err = json.NewEncoder(c.orders).Encode(o); r.err == nil {
			r.err = c.decoder.Decode(&r.Reading)
		}
		if r.err != nil && c.bounded.N == 0 {
			r.err = fmt.Errorf("its answer is longer than %d MiB", maxAnswer>>20)
		}
		answered <- r
	}()
	select {
	case r := <-answered:
		switch {
		case r.err == nil:
			return r.Reading, nil
		case ctx.Err() == nil:
			c.gone = fmt.Errorf("in %s, %w", o.Step, c.broken(r.err))
			return Reading{}, c.gone
		}
	case <-c.after(o, most):
		return Reading{}, c.kill(fmt.Errorf("the GPU %w %s in %v", errHangs, o.Step, most.Round(time.Second/10)))
	case <-ctx.Done():
	}
	return Reading{}, c.kill(errEnded)
}

// kill ends the child for the reason err, which says so if it cannot end because it hangs in the driver.
func (c *child) kill(err error) error {
	c.end(err)
	<-c.ended
	_, _ = c.orders.Close(), c.answers.Close()
	if c.gone = err; errors.Is(c.how, err) {
		c.gone = c.how
	}
	return c.gone
}

// broken returns the reason why a child gave no valid answer.
func (c *child) broken(err error) error {
	_, _ = c.orders.Close(), c.answers.Close()
	select {
	case <-c.ended:
	case <-time.After(parting):
		c.end(err)
		<-c.ended
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.EPIPE) {
		return cmp.Or(c.how, errors.New("its process ended"))
	}
	return err
}

// close lets the child end by itself, and gives it up if it does not.
func (c *child) close() {
	if c.gone != nil {
		return
	}
	_, _ = c.orders.Close(), c.answers.Close()
	select {
	case <-c.ended:
	case <-time.After(parting):
		c.end(errEnded)
	}
}
