package diag

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"gpusteward/health/incident"
	"gpusteward/internal/fixture"
	"gpusteward/internal/worker"
)

// tethered returns the options of a test on the host, and a file. The file delivers a byte when a GPU begins to hang,
// and ends when all children have ended.
func (h host) tethered(t *testing.T) (o Options, said *os.File) {
	t.Helper()
	said, theirs, err := os.Pipe()
	fixture.Must(t, err)
	t.Cleanup(func() { _ = said.Close(); _ = theirs.Close() })
	o = h.options(t)
	o.files = []*os.File{theirs}
	return o, said
}

// whenItHangs returns an after that is over once a GPU begins to hang, as said delivers, for the orders that concern
// that GPU and step. Other orders have all the time that they need.
func whenItHangs(said *os.File, gpu string, step Step) after {
	hangs := make(chan time.Time)
	go func() {
		_, _ = io.ReadFull(said, make([]byte, 1))
		close(hangs)
	}()
	return func(o Order, _ time.Duration) <-chan time.Time {
		if o.GPU == gpu && o.Step == step {
			return hangs
		}
		return nil
	}
}

// allEnded fails if a child still holds the other end of said.
func allEnded(t *testing.T, o Options, said *os.File) {
	t.Helper()
	_ = o.files[0].Close()
	fixture.Must(t, said.SetReadDeadline(time.Now().Add(time.Minute)))
	_, err := io.Copy(io.Discard, said)
	fixture.If(t, err != nil, "a child goes on: %v", err)
}

// TestHangs expects a hanging GPU to affect its own verdict only, and its child
// to be gone, also where an injected fault makes a kernel endless.
func TestHangs(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		gpu   int
		step  Step
		fault Fault
	}{{1, Open, ""}, {1, Memory, ""}, {1, Bandwidth, ""}, {0, Compute, Hang}} {
		t.Run(string(c.step), func(t *testing.T) {
			t.Parallel()
			h := h200s(2)
			if c.fault == "" {
				h.Hangs = map[int]Step{c.gpu: c.step}
			}
			o, said := h.tethered(t)
			o.Patience, o.Fault, o.after = 6*time.Second, c.fault, whenItHangs(said, fmt.Sprint("GPU-", c.gpu), c.step)
			r := Run(t.Context(), o)
			text, status := r.Report("text", incident.Warning)
			if want := "the GPU did not finish " + string(c.step) + " in "; status != 2 || !strings.Contains(text, want) {
				t.Errorf("exit status %d and no %q in\n%s", status, want, text)
			}
			well := slices.DeleteFunc(r.Results, func(one Result) bool { return one.GPU != fmt.Sprint(1-c.gpu) || one.Peer != "" })
			fixture.AtLeast(t, len(well), 14, "the other GPU has … results: was it tested?")
			fixture.EqualSlices(t, (&Report{Results: well}).failures(), nil, "the other GPU's failures")
			allEnded(t, o, said)
		})
	}
}

// TestCancelledDiagAccusesNoGPU expects a cancelled test to end, to say so, and to accuse no GPU.
func TestCancelledDiagAccusesNoGPU(t *testing.T) {
	t.Parallel()
	h := h200s(2)
	h.Hangs = map[int]Step{1: Memory}
	o, said := h.tethered(t)
	o.Patience = time.Hour
	ctx, end := context.WithCancel(t.Context())
	go func() {
		_, _ = io.ReadFull(said, make([]byte, 1))
		end()
	}()
	r := Run(ctx, o)
	text, status := r.Report("text", incident.Warning)
	if got := r.failures(); len(got) != 0 || status != 3 ||
		!strings.Contains(text, " was not tested: the test was ended") {
		t.Errorf("failures %q, exit status %d\n%s", got, status, text)
	}
	allEnded(t, o, said)
}

// TestChildrenEndWithTheirParent expects no child on a GPU after the parent is killed.
func TestChildrenEndWithTheirParent(t *testing.T) {
	t.Parallel()
	h := h200s(2)
	h.Hangs = map[int]Step{1: Memory}
	o, said := h.tethered(t)
	parent := exec.Command("/proc/self/exe", worker.Begins("parent")...)
	parent.Env, parent.ExtraFiles = append(os.Environ(), o.environment...), o.files
	fixture.Must(t, parent.Start())
	_ = o.files[0].Close()
	_, err := io.ReadFull(said, make([]byte, 1))
	fixture.Stop(t, err != nil, "no GPU hangs: %v", err)
	fixture.Must(t, parent.Process.Kill())
	_ = parent.Wait()
	allEnded(t, o, said)
}

// TestNoChild expects the state unknown for a host on which no child can start.
func TestNoChild(t *testing.T) {
	r := Run(t.Context(), Options{Node: "node7", children: &worker.Kind{}})
	text, status := r.Report("text", incident.Warning)
	fixture.If(t, status != 3 || !strings.Contains(text, "earlier children"), "exit status %d\n%s", status, text)
}

// mute returns a child without a process, which ends when it is given up, if it ends. Its orders and
// answers pass through the test.
func mute(t *testing.T, ends bool) (c *child, orders *json.Decoder, answers io.WriteCloser) {
	t.Helper()
	in, theirs := io.Pipe()
	out, answers := io.Pipe()
	t.Cleanup(func() { _, _ = in.Close(), answers.Close() })
	ctx, end := context.WithCancelCause(t.Context())
	c = talkWith(theirs, out, end)
	go func() {
		if <-ctx.Done(); ends {
			c.how = context.Cause(ctx)
			close(c.ended)
		}
	}()
	return c, json.NewDecoder(in), answers
}

// TestChildIsLate expects a child to have exactly its time. A child that does
// not answer is given up, and receives no more orders.
func TestChildIsLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, orders, answers := mute(t, true)
		begun := time.Now()
		go func() {
			var o Order
			_ = orders.Decode(&o)
			time.Sleep(7260*time.Millisecond - 1)
			_ = json.NewEncoder(answers).Encode(Reading{Skipped: string(o.Step)})
			_ = orders.Decode(&o) // there is no second answer
		}()
		r, err := c.do(t.Context(), Order{Step: Memory}, 7260*time.Millisecond)
		if err != nil || r.Skipped != "memory" || time.Since(begun) != 7260*time.Millisecond-1 {
			t.Fatalf("%+v, %v after %v", r, err, time.Since(begun))
		}
		begun = time.Now()
		_, err = c.do(t.Context(), Order{Step: Load}, 7260*time.Millisecond)
		took := time.Since(begun)
		fixture.If(t, took != 7260*time.Millisecond || !errors.Is(err, errHangs) ||
			err.Error() != "the GPU did not finish load in 7.3s", "%v after %v", err, took)
		fixture.Equal(t, errors.Is(c.how, err), true, "it was given up for that:")
		_, again := c.do(t.Context(), Order{}, time.Hour)
		fixture.If(t, !errors.Is(again, err), "asked again it says %v", again)
		c.close()
	})
}

// TestChildEndsWithItsTest expects a test's end to end its child, and to accuse no GPU, also where
// the answer is broken by then.
func TestChildEndsWithItsTest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, orders, answers := mute(t, true)
		ctx, end := context.WithCancel(t.Context())
		go func() {
			_ = orders.Decode(new(Order))
			end()
			_ = answers.Close()
		}()
		_, err := c.do(ctx, Order{}, time.Hour)
		fixture.If(t, !errors.Is(err, errEnded) || !errors.Is(c.how, errEnded), "%v, %v", err, c.how)
	})
}

// TestChildStays expects a child that does not end by itself to be given up in time.
func TestChildStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _, _ := mute(t, false)
		begun := time.Now()
		c.close()
		fixture.Equal(t, time.Since(begun), parting, "closed after")
	})
	synctest.Test(t, func(t *testing.T) {
		c, orders, answers := mute(t, true)
		begun := time.Now()
		go func() {
			_ = orders.Decode(new(Order))
			_, _ = io.WriteString(answers, "what?")
		}()
		fixture.Fails(t, fixture.Error(c.do(t.Context(), Order{Step: Load}, time.Hour)), "in load, invalid character 'w'", "garbage")
		fixture.Equal(t, time.Since(begun), parting, "given up after")
	})
}

// hostile is what a child does with an order, by the name of its work: real ones, none of which obeys.
var hostile = map[string]struct {
	work func(answer io.Writer) error
	want string
}{
	"complains":  {func(io.Writer) error { return errors.New("first\nsecond") }, "in load, its process failed: exit status 1: first"},
	"fails":      {func(io.Writer) error { syscall.Exit(3); return nil }, "in load, its process failed: exit status 3"},
	"ends":       {func(io.Writer) error { return nil }, "in load, its process ended"},
	"garbage":    {func(w io.Writer) error { return write(w, "what?", 1) }, "in load, invalid character 'w' looking for beginning of value"},
	"half":       {func(w io.Writer) error { return write(w, `{"Error": "`, 1) }, "in load, its process ended"},
	"100 MiB":    {func(w io.Writer) error { return write(w, `{"Load": [{},`+strings.Repeat("{},", 1<<15), 1100) }, "in load, its answer is longer than 8 MiB"},
	"endless":    {func(w io.Writer) error { return write(w, strings.Repeat("1", 1<<15), 1<<40) }, "in load, its answer is longer than 8 MiB"},
	"chatters":   {func(w io.Writer) error { return errors.Join(write(os.Stderr, "noise\n", 1<<15), write(w, "{}", 1)) }, ""},
	"spares one": {func(w io.Writer) error { return write(w, "{}{}", 1) }, ""},
}

func write(w io.Writer, text string, times int) (err error) {
	for ; err == nil && times > 0; times-- {
		_, err = io.WriteString(w, text)
	}
	return err
}

func init() {
	for name, h := range hostile {
		worker.Register(name, func([]string) error {
			if err := json.NewDecoder(os.NewFile(3, "orders")).Decode(new(Order)); err != nil {
				return err
			}
			return h.work(os.NewFile(4, "answers"))
		})
	}
}

// TestChildAnswersAreChecked expects the reason of a child's end, or of an answer that is none, and no child
// that stays.
func TestChildAnswersAreChecked(t *testing.T) {
	t.Parallel()
	for name, h := range hostile {
		kind := does(name)
		c := fixture.Value((&test{Options: Options{children: kind, after: really}}).spawn())(t)
		_, err := c.do(t.Context(), Order{Step: Load}, time.Hour)
		fixture.Equal(t, fmt.Sprint(err), cmp.Or(h.want, "<nil>"), "%s:", name)
		_, again := c.do(t.Context(), Order{}, time.Hour)
		fixture.If(t, h.want != "" && !errors.Is(again, err), "%s: asked again it says %v", name, again)
		c.close()
		<-c.ended
		fixture.Equal(t, kind.Held(), 0, "%s: children that stay", name)
	}
}
