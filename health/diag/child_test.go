package diag

import (
	"context"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"gpusteward/health/incident"
)

// tethered returns what starts children on the host, and a file that reads a
// byte when a GPU begins to hang, and its end when all children have ended.
func (h host) tethered(t *testing.T) (command func() *exec.Cmd, said *os.File) {
	t.Helper()
	said, theirs, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = said.Close(); _ = theirs.Close() })
	start := h.command(t)
	return func() *exec.Cmd {
		c := start()
		c.ExtraFiles = []*os.File{theirs}
		return c
	}, said
}

// allEnded wants nobody to hold the other end of said, which the test gives up.
func allEnded(t *testing.T, said *os.File) {
	t.Helper()
	if err := said.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, said); err != nil {
		t.Errorf("a child goes on: %v", err)
	}
}

// TestHangs wants a GPU that hangs, wherever it does, to cost its own verdict
// and no more, and its child to be gone.
func TestHangs(t *testing.T) {
	t.Parallel()
	for _, s := range []Step{Open, Memory, Bandwidth} {
		t.Run(string(s), func(t *testing.T) {
			t.Parallel()
			h := h200s(2)
			h.Hangs = map[int]Step{1: s}
			command, said := h.tethered(t)
			r := Run(t.Context(), Options{Node: "node7", Command: command, Patience: 6 * time.Second})
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
			if well < 14 {
				t.Errorf("GPU 0 has %d results: was it tested?", well)
			}
			theirs := command().ExtraFiles[0]
			_ = theirs.Close()
			allEnded(t, said)
		})
	}
}

// TestFaultHang wants the fault that is put in to be a kernel without an end.
func TestFaultHang(t *testing.T) {
	t.Parallel()
	r := tested(t, h200s(2), Options{Fault: Hang, Patience: 6 * time.Second})
	if got := r.failures(); len(got) != 1 || got[0] != "compute:0" {
		t.Errorf("failures %q", got)
	}
}

// TestIsEnded wants a test that somebody ends to end, to say so, and to accuse
// no GPU.
func TestIsEnded(t *testing.T) {
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
	if got := r.failures(); len(got) != 0 || status != 3 || !strings.Contains(text, " was not tested: the test was ended") {
		t.Errorf("failures %q, exit status %d\n%s", got, status, text)
	}
	_ = command().ExtraFiles[0].Close()
	allEnded(t, said)
}

// TestChildrenEndWithTheirParent wants none to be left on a GPU when the parent
// is killed.
func TestChildrenEndWithTheirParent(t *testing.T) {
	t.Parallel()
	h := h200s(2)
	h.Hangs = map[int]Step{1: Memory}
	command, said := h.tethered(t)
	parent := command()
	parent.Env = append(parent.Env, parentVariable+"=1")
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	_ = parent.ExtraFiles[0].Close()
	if _, err := io.ReadFull(said, make([]byte, 1)); err != nil {
		t.Fatalf("no GPU hangs: %v", err)
	}
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = parent.Wait()
	allEnded(t, said)
}

// TestNoChild wants a host where no child can start to be unknown.
func TestNoChild(t *testing.T) {
	t.Parallel()
	r := Run(t.Context(), Options{Node: "node7", Command: func() *exec.Cmd { return exec.Command("/nonexistent") }})
	if text, status := r.Report("text", incident.Warning); status != 3 || !strings.Contains(text, "start a child: ") {
		t.Errorf("exit status %d\n%s", status, text)
	}
}
