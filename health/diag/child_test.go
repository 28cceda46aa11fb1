package diag

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"gpusteward/health/incident"
	"gpusteward/internal/fixture"
)

// tethered returns a function that starts children on the host, and a file. The
// file delivers a byte when a GPU begins to hang, and ends when all children
// have ended.
func (h host) tethered(t *testing.T) (command func() *exec.Cmd, said *os.File) {
	t.Helper()
	said, theirs, err := os.Pipe()
	fixture.Must(t, err)
	t.Cleanup(func() { _ = said.Close(); _ = theirs.Close() })
	start := h.command(t)
	return func() *exec.Cmd {
		c := start()
		c.ExtraFiles = []*os.File{theirs}
		return c
	}, said
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

// allEnded fails if a child still holds the other end of said, which the test
// closes.
func allEnded(t *testing.T, said *os.File) {
	t.Helper()
	fixture.Must(t, said.SetReadDeadline(time.Now().Add(time.Minute)))
	if _, err := io.Copy(io.Discard, said); err != nil {
		t.Errorf("a child goes on: %v", err)
	}
}

// TestHangs expects a hanging GPU to affect its own verdict only, and its child
// to be gone.
func TestHangs(t *testing.T) {
	t.Parallel()
	for _, s := range []Step{Open, Memory, Bandwidth} {
		t.Run(string(s), func(t *testing.T) {
			t.Parallel()
			h := h200s(2)
			h.Hangs = map[int]Step{1: s}
			command, said := h.tethered(t)
			r := Run(t.Context(), Options{Node: "node7", Command: command, Patience: 6 * time.Second,
				after: whenItHangs(said, "GPU-1", s)})
			text, status := r.Report("text", incident.Warning)
			if want := "the GPU did not finish " + string(s) + " in 6"; status != 2 || !strings.Contains(text, want) {
				t.Errorf("exit status %d and no %q in\n%s", status, want, text)
			}
			well := 0
			for _, one := range r.Results {
				if one.GPU == "0" && one.Peer == "" {
					if well++; one.Verdict == Fail {
						t.Errorf("GPU 0: %+v", one)
					}
				}
			}
			fixture.AtLeast(t, well, 14, "GPU 0 has … results: was it tested?")
			theirs := command().ExtraFiles[0]
			_ = theirs.Close()
			allEnded(t, said)
		})
	}
}

// TestFaultHang expects the injected fault to be an endless kernel.
func TestFaultHang(t *testing.T) {
	t.Parallel()
	command, said := h200s(2).tethered(t)
	r := Run(t.Context(), Options{Command: command, Fault: Hang, after: whenItHangs(said, "GPU-0", Compute)})
	if got := r.failures(); len(got) != 1 || got[0] != "compute:0" {
		t.Errorf("failures %q", got)
	}
}

// TestCancelledDiagAccusesNoGPU expects a cancelled test to end, to say so, and to accuse no GPU.
func TestCancelledDiagAccusesNoGPU(t *testing.T) {
	t.Parallel()
	h := h200s(2)
	h.Hangs = map[int]Step{1: Memory}
	command, said := h.tethered(t)
	ctx, end := context.WithCancel(t.Context())
	go func() {
		_, _ = io.ReadFull(said, make([]byte, 1))
		end()
	}()
	r := Run(ctx, Options{Node: "node7", Command: command, Patience: time.Hour})
	text, status := r.Report("text", incident.Warning)
	if got := r.failures(); len(got) != 0 || status != 3 ||
		!strings.Contains(text, " was not tested: the test was ended") {
		t.Errorf("failures %q, exit status %d\n%s", got, status, text)
	}
	_ = command().ExtraFiles[0].Close()
	allEnded(t, said)
}

// TestChildrenEndWithTheirParent expects no child on a GPU after the parent is
// killed.
func TestChildrenEndWithTheirParent(t *testing.T) {
	t.Parallel()
	h := h200s(2)
	h.Hangs = map[int]Step{1: Memory}
	command, said := h.tethered(t)
	parent := command()
	parent.Env = append(parent.Env, parentVariable+"=1")
	fixture.Must(t, parent.Start())
	_ = parent.ExtraFiles[0].Close()
	if _, err := io.ReadFull(said, make([]byte, 1)); err != nil {
		t.Fatalf("no GPU hangs: %v", err)
	}
	fixture.Must(t, parent.Process.Kill())
	_ = parent.Wait()
	allEnded(t, said)
}

// TestNoChild expects the state unknown for a host on which no child can start.
func TestNoChild(t *testing.T) {
	t.Parallel()
	r := Run(t.Context(), Options{Node: "node7", Command: func() *exec.Cmd { return exec.Command("/nonexistent") }})
	if text, status := r.Report("text", incident.Warning); status != 3 || !strings.Contains(text, "start a child: ") {
		t.Errorf("exit status %d\n%s", status, text)
	}
}

// mute returns a child that is a real process. Its orders and answers pass
// through the test.
func mute(t *testing.T, stderr io.Writer) (c *child, orders *json.Decoder, answers io.WriteCloser) {
	t.Helper()
	command := exec.Command("cat", "/nonexistent", "-")
	command.Stderr = stderr
	fixture.Must(t, fixture.Error(command.StdinPipe()))
	fixture.Must(t, command.Start())
	in, theirs := io.Pipe()
	out, answers := io.Pipe()
	t.Cleanup(func() { _, _, _ = in.Close(), answers.Close(), command.Process.Kill() })
	return &child{command: command, orders: theirs, answers: json.NewDecoder(out), after: really}, json.NewDecoder(in), answers
}

// TestChildIsLate expects a child to have exactly its time. A child that does
// not answer is killed, and receives no more orders.
func TestChildIsLate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, orders, answers := mute(t, nil)
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
		if took := time.Since(begun); took != 7260*time.Millisecond || !errors.Is(err, errHangs) ||
			err.Error() != "the GPU did not finish load in 7.3s" {
			t.Errorf("%v after %v", err, took)
		}
		fixture.Equal(t, c.command.ProcessState == nil, false, "the child goes on:")
		if _, again := c.do(t.Context(), Order{}, time.Hour); !errors.Is(again, err) {
			t.Errorf("asked again it says %v", again)
		}
		c.close()
	})
}

// TestChildEndsWithItsTest expects a test's end to end its child, and to accuse
// no GPU.
func TestChildEndsWithItsTest(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]bool{"before an answer": false, "with a broken answer": true} {
		synctest.Test(t, func(t *testing.T) {
			c, orders, answers := mute(t, nil)
			ctx, end := context.WithCancel(t.Context())
			go func() {
				_ = orders.Decode(new(Order))
				end()
				if answer {
					_ = answers.Close()
				}
			}()
			if _, err := c.do(ctx, Order{}, time.Hour); !errors.Is(err, errEnded) || c.command.ProcessState == nil {
				t.Errorf("%s: %v, %v", name, err, c.command.ProcessState)
			}
		})
	}
}

// TestChildCannotBeKilled expects a child that does not end to be left behind
// in time, with a report.
func TestChildCannotBeKilled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		said, full := io.Pipe() // the command does not end until all of it is read
		c, _, _ := mute(t, full)
		_, _ = said.Read(make([]byte, 1))
		begun := time.Now()
		_, err := c.do(t.Context(), Order{Step: Close}, time.Second)
		if took := time.Since(begun); took != time.Second+parting || !errors.Is(err, errHangs) ||
			!strings.HasSuffix(err.Error(), "in 1s, and its process cannot be killed") {
			t.Errorf("%v after %v", err, took)
		}
		_ = said.Close()
	})
	synctest.Test(t, func(t *testing.T) {
		said, full := io.Pipe()
		c, _, _ := mute(t, full)
		_, _ = said.Read(make([]byte, 1))
		begun := time.Now()
		_ = c.command.Process.Kill()
		c.close()
		fixture.Equal(t, time.Since(begun), parting, "closed after")
		_ = said.Close()
	})
}

// TestChildEnds expects the reason of a child's end: its own words, or its exit
// status.
func TestChildEnds(t *testing.T) {
	t.Parallel()
	for script, want := range map[string]string{
		"echo; echo first >&2; echo second >&2; exit 3": "its process ended in load: first",
		"exit 3": "its process ended in load: exit status 3",
		"exit 0": "its process ended in load: EOF",
	} {
		c := fixture.Value(begin(exec.Command("sh", "-c", "read order; "+script)))(t)
		_, err := c.do(t.Context(), Order{Step: Load}, time.Hour)
		if err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", script, err, want)
		}
		if _, again := c.do(t.Context(), Order{}, time.Hour); !errors.Is(again, err) {
			t.Errorf("asked again it says %v", again)
		}
	}
}

func TestTail(t *testing.T) {
	t.Parallel()
	var said tail
	for _, text := range []string{strings.Repeat("a", 1500), strings.Repeat("b", 499), "\n"} {
		if n, err := said.Write([]byte(text)); n != len(text) || err != nil {
			t.Errorf("%d, %v", n, err)
		}
	}
	if got := said.line(); len(got) != 1999 || got[0] != 'a' {
		t.Errorf("%d bytes are kept: %.3s", len(got), got)
	}
	_, _ = said.Write([]byte(strings.Repeat("c", 1600)))
	fixture.Equal(t, said.line(), strings.Repeat("b", 399), "the first line is")
}
