//go:build gpu

package suspend

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/procfs"

	"gpusteward/enforcer/action"
	"gpusteward/internal/fixture"
	"gpusteward/internal/procs"
)

// TestGPUFaultsOfSuspended has a thread of a suspended process call what makes the driver's
// library fault. The guard holds it, and it goes on when the process has its state back.
func TestGPUFaultsOfSuspended(t *testing.T) {
	for _, call := range []string{"none", "cuStreamQuery", "cuEventQuery", "cuEventElapsedTime", "cuStreamSynchronize",
		"cuEventSynchronize", "cuCtxSynchronize"} {
		t.Run(call, func(t *testing.T) {
			e := begin(t, 0, "calls.py", call)
			pid := e.cmd.Process.Pid
			count := func(order string) string {
				time.Sleep(200 * time.Millisecond) // many calls
				e.tell(order)
				if !e.out.Scan() {
					return "the process ended"
				}
				return strings.TrimPrefix(e.out.Text(), "count ")
			}
			s := suspender(t)
			s.Guard = &Guards{}
			defer s.Close()
			s.suspend(t, e, listed(t, pid))
			before, during := count("begin"), count("count")
			held := s.Guard.Holds(pid)
			where := heldAt(pid)
			s.resume(t, e)
			after, last := count("count"), count("count")
			t.Logf("%s: suspended %s, %s; held %v in %q; resumed %s, %s", call, before, during, held, where, after, last)
			fixture.If(t, strings.Contains(last, "ended") || after == last || held != (call != "none"),
				"%s: it is not held, or does not go on", call)
		})
	}
}

// heldAt returns the program counters of the threads of a process that are held, and their mappings.
func heldAt(pid int) (all []string) {
	var maps []*procfs.ProcMap
	if process, err := procfs.NewProc(pid); err == nil {
		maps, _ = process.ProcMaps()
	}
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	for _, task := range tasks {
		tid, _ := strconv.Atoi(filepath.Base(task))
		at, _ := os.ReadFile(filepath.Join(task, "syscall"))
		var stack, counter uint64
		if n, _ := fmt.Sscanf(string(at), "-1 0x%x 0x%x", &stack, &counter); n != 2 || procs.State(filepath.Dir(task), tid) != 't' {
			continue
		}
		all = append(all, fmt.Sprintf("%#x", counter))
		for _, m := range maps {
			if uint64(m.StartAddr) <= counter && counter < uint64(m.EndAddr) {
				all = append(all, m.Pathname)
			}
		}
	}
	return all
}

// TestGPUKilledCall kills the process that makes a call. The driver ends the call nevertheless, and the process that it
// is about lives. The design of Helper rests on this.
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
				fixture.Value(call(t.Context(), op, pid))(t)
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

// TestGPUSuspendedCalls has a thread call the driver while its process is being suspended, and only once it is. It
// prints which calls wait, and which end the process. A process that calls nothing lives.
func TestGPUSuspendedCalls(t *testing.T) {
	out := fixture.Value(exec.Command("python3", program("calls.py")).Output())(t)
	for call := range strings.Lines(string(out)) {
		call = strings.TrimSpace(call)
		for _, late := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s,late=%v", call, late), func(t *testing.T) { suspendedCalls(t, call, late) })
		}
	}
}

func suspendedCalls(t *testing.T, call string, late bool) {
	e := begin(t, 0, "calls.py", call)
	count := func(order string) string {
		e.tell(order)
		if !e.out.Scan() {
			return "the process ended"
		}
		return strings.TrimPrefix(e.out.Text(), "count ")
	}
	settled := func() string { // a thread that does not wait makes many calls meanwhile
		time.Sleep(100 * time.Millisecond)
		return count("count")
	}
	s := suspender(t)
	s.Alive = func(of action.Target) bool {
		state := procs.State("/proc", of.PID)
		return state != 0 && state != 'Z'
	}
	if !late {
		count("begin")
		settled()
	}
	s.send(t, e, listed(t, e.cmd.Process.Pid))
	if end := s.result(t); end.Err != nil { // of the process, too
		t.Logf("%s, late %v: %v", call, late, end.Err)
		fixture.If(t, call == "none", "a process that calls nothing is not suspended")
		return
	}
	if late {
		count("begin")
	}
	away := settled() + ", " + settled()
	s.resume(t, e)
	back, last := settled(), settled()
	_ = e.cmd.Process.Kill()
	t.Logf("%s, late %v: suspended %s; resumed %s, %s; %v", call, late, away, back, last, e.cmd.Wait())
	fixture.If(t, call == "none" && strings.Contains(last, "ended"),
		"a process that calls nothing ends: %v", e.cmd.ProcessState)
}
