//go:build gpu

package suspend

import (
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"
	"time"

	"gpusteward/internal/fixture"
)

// TestGPUKilledCall kills the process that makes a call. The driver ends the call
// nevertheless, and the process that it is about lives. The design of Helper rests on
// this.
func TestGPUKilledCall(t *testing.T) {
	for _, c := range []struct {
		op     Op
		before []Op
		then   State
		after  []time.Duration
	}{
		{Checkpoint, []Op{Lock}, Checkpointed, []time.Duration{600 * time.Millisecond, time.Second}},
		{Restore, []Op{Lock, Checkpoint}, Locked, []time.Duration{500 * time.Millisecond, 800 * time.Millisecond}},
	} {
		for _, after := range c.after {
			e := train(t, 0)
			e.tell("go 1")
			e.hear("did")
			pid := e.cmd.Process.Pid
			call := suspender(t).Call
			for _, op := range c.before {
				if _, err := call(t.Context(), op, pid); err != nil {
					t.Fatal(err)
				}
			}
			child := exec.Command(os.Args[0], Command, string(c.op), strconv.Itoa(pid))
			fixture.Must(t, child.Start())
			time.Sleep(after)
			_ = child.Process.Kill()
			err := child.Wait()
			fate := make(chan error, 1)
			go func() { fate <- e.cmd.Wait() }()
			select {
			case ends := <-fate:
				t.Errorf("%s, whose caller was killed after %v (%v): the process ends: %v", c.op, after, err, ends)
				continue
			case <-time.After(5 * time.Second):
			}
			state, asked := call(t.Context(), Ask, pid)
			t.Logf("%s, whose caller was killed after %v (%v): the process is %s (%v)", c.op, after, err, state, asked)
			fixture.Equal(t, state, c.then, "%s did not end", c.op)
			_ = syscall.Kill(pid, syscall.SIGKILL)
			<-fate
		}
	}
}
